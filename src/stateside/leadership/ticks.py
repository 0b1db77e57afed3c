"""Time that only passes: each process measures with its own, and never compares it with another's."""

from __future__ import annotations

import time
from collections.abc import Callable

Ticks = Callable[[], float]  # seconds since some moment

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since this machine was started, with those in which it slept: who watches has not looked meanwhile."""
    return time.clock_gettime(_BOOT_CLOCK)
