"""Clocks: time as an argument, so that tests decide the time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol


class Clock(Protocol):
    """The time of day, for stamps and append times. Never used inside a batch: batches are deterministic."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still between calls of `advance`."""

    time_us: int = 0

    def now_us(self) -> int:
        return self.time_us

    def advance(self, delta_us: int) -> None:
        self.time_us += delta_us


_LONGER: Final = ((2 * 86_400_000, 86_400_000, "d"), (2 * 3_600_000, 3_600_000, "h"), (100_000, 60_000, "min"))


def age_text(ms: float) -> str:
    """An age or a duration for people: 850 ms, 78.0 s, 2 min, 5 h, 3 d. The pages' JavaScript has the same rule."""
    for least_ms, unit_ms, unit in _LONGER:
        if ms >= least_ms:
            return f"{int(ms // unit_ms):,} {unit}"
    if ms >= 1_000:
        return f"{ms // 100 / 10:.1f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
