"""Time as an argument: whoever needs the time is given a clock, so that tests decide what time it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day, for stamps and append times. Never used inside a batch: see DESIGN, determinism."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is told to go on."""

    time_us: int = 0

    def now_us(self) -> int:
        """The time that was set last."""
        return self.time_us

    def advance(self, delta_us: int) -> None:
        """Go on by so many microseconds."""
        self.time_us += delta_us
