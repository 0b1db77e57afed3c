"""Measures two ways of doing the same work, turn and turn about, and reports medians, spread and their ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 7


@dataclass(frozen=True)
class Side:
    """One way: its name, and a function that does the work once and returns how many units it did.

    If it has others do it (Spark, a child process), the time that this process had the processor says nothing.
    """

    name: str
    work: Callable[[], int]
    others_do_it: bool = False


@dataclass(frozen=True)
class Result:
    name: str
    unit: str
    ours: list[float]
    peer: list[float]
    ours_name: str
    peer_name: str
    ours_cpu: list[float] = field(default_factory=list)  # the same in units per second of the processor's time
    peer_cpu: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        measured = {"ours": self.ours, "peer": self.peer, "ours_cpu": self.ours_cpu, "peer_cpu": self.peer_cpu}
        sides = {side: _summary(values) for side, values in measured.items() if values}
        return {"name": self.name, "unit": self.unit, **sides, "ratio": round(self.ratio, 3)}

    @property
    def ratio(self) -> float:
        """How fast ours is, as a multiple of the peer: the median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.ours, self.peer, strict=True))

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.ratio:.2f}x of {self.peer_name}"]
        sides = ((self.ours_name, self.ours, self.ours_cpu), (self.peer_name, self.peer, self.peer_cpu))
        for name, values, cpu in sides:
            lines.append(f"    {name:<28} {_figures(_summary(values), self.unit)}{_by_cpu(cpu)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Figure:
    """Something that is measured by itself: a size, or the times that something took."""

    name: str
    unit: str
    value: float

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "value": round(self.value, 3)}

    def __str__(self) -> str:
        return f"{self.name}: {self.value:,.1f} {self.unit}"


def compare(name: str, unit: str, ours: Side, peer: Side, rounds: int = ROUNDS) -> Result:
    """Run both sides once unmeasured, then in turn; who goes first alternates, because the machine is noisy."""
    ours.work(), peer.work()
    speeds: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": []}
    for number in range(rounds):
        pair = [("ours", ours), ("peer", peer)]
        for key, side in pair if number % 2 == 0 else reversed(pair):
            speeds[key].append(_speed(side.work))
    (ours_speeds, ours_cpu), (peer_speeds, peer_cpu) = (map(list, zip(*speeds[key], strict=True)) for key in speeds)
    by_others = ours.others_do_it or peer.others_do_it
    cpu = ([], []) if by_others else (ours_cpu, peer_cpu)
    return Result(name, unit, ours_speeds, peer_speeds, ours.name, peer.name, *cpu)


def _speed(work: Callable[[], int]) -> tuple[float, float]:
    """Units per second, by the clock and by the time that the processor had for it: others may use the machine too."""
    began, began_cpu = time.perf_counter(), time.process_time()
    units = work()
    return units / (time.perf_counter() - began), units / (time.process_time() - began_cpu)


def _by_cpu(speeds: list[float]) -> str:
    return f", {statistics.median(speeds):,.0f} by the processor's time" if speeds else ""


def _figures(summary: dict[str, float], unit: str) -> str:
    """The speed; of what is done fewer than a hundred times a second, the milliseconds that each takes."""
    if summary["median"] >= 100:
        return f"{summary['median']:>12,.0f} {unit}  ({summary['low']:,.0f} to {summary['high']:,.0f})"
    median, low, high = (1_000 / summary[name] for name in ("median", "high", "low"))
    return f"{median:>12,.0f} ms each  ({low:,.0f} to {high:,.0f})"


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
