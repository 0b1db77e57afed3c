"""Time as an argument: whoever needs the time is given a clock, so that tests decide what time it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol


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


_LONGER: Final = ((2 * 86_400_000, 86_400_000, "d"), (2 * 3_600_000, 3_600_000, "h"), (100_000, 60_000, "min"))


def age_text(ms: float) -> str:
    """How old something is, or how long it took: 850 ms, 78.0 s, 2 min, 5 h, 3 d. Pages have the same rule."""
    for least_ms, unit_ms, unit in _LONGER:
        if ms >= least_ms:
            return f"{int(ms // unit_ms):,} {unit}"
    if ms >= 1_000:
        return f"{ms // 100 / 10:.1f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
