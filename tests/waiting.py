"""Waiting until something is so: for as long as a slow and busy machine may take, and no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S_MAX = 90.0
LOOK_S = 0.02


def wait_until(condition: Callable[[], bool], told: Callable[[], str] = lambda: "it did not happen in time") -> None:
    """Look again and again; fails with what `told` says when the time is over."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(LOOK_S)
