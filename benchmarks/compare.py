"""Measures two ways of doing the same work, turn and turn about, and reports medians, spread and their ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROUNDS = 7


@dataclass(frozen=True)
class Side:
    """One way: its name, and a function that does the work once and returns how many units it did."""

    name: str
    work: Callable[[], int]


@dataclass(frozen=True)
class Result:
    name: str
    unit: str
    ours: list[float]
    peer: list[float]
    ours_name: str
    peer_name: str

    def as_dict(self) -> dict[str, Any]:
        sides = {side: _summary(values) for side, values in (("ours", self.ours), ("peer", self.peer))}
        return {"name": self.name, "unit": self.unit, **sides, "ratio": round(self.ratio, 3)}

    @property
    def ratio(self) -> float:
        """How fast ours is, as a multiple of the peer: the median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.ours, self.peer, strict=True))

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.ratio:.2f}x of {self.peer_name}"]
        for name, values in ((self.ours_name, self.ours), (self.peer_name, self.peer)):
            s = _summary(values)
            lines.append(f"    {name:<28} {_figures(s, self.unit)}")
        return "\n".join(lines)


def compare(name: str, unit: str, ours: Side, peer: Side, rounds: int = ROUNDS) -> Result:
    """Run both sides once unmeasured, then in turn; who goes first alternates, because the machine is noisy."""
    ours.work(), peer.work()
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(rounds):
        pair = [("ours", ours), ("peer", peer)]
        for key, side in pair if number % 2 == 0 else reversed(pair):
            speeds[key].append(_speed(side.work))
    return Result(name, unit, speeds["ours"], speeds["peer"], ours.name, peer.name)


def _speed(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    units = work()
    return units / (time.perf_counter() - began)


def _figures(summary: dict[str, float], unit: str) -> str:
    """The speed; of what is done fewer than a hundred times a second, the milliseconds that each takes."""
    if summary["median"] >= 100:
        return f"{summary['median']:>12,.0f} {unit}  ({summary['low']:,.0f} to {summary['high']:,.0f})"
    median, low, high = (1_000 / summary[name] for name in ("median", "high", "low"))
    return f"{median:>12,.0f} ms each  ({low:,.0f} to {high:,.0f})"


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
