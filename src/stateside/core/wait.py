"""Waits with a deadline: for a condition, or until an action no longer fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

LOOK_S: Final = 0.02

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def wait_until(condition: Callable[[], T], wait_s: float, look_s: float = LOOK_S) -> T:
    """Look every `look_s` until the condition is neither False nor None, for up to `wait_s`; returns its last value."""
    deadline_s = time.monotonic() + wait_s
    while ((found := condition()) is None or found is False) and time.monotonic() < deadline_s:
        time.sleep(look_s)
    return found


def retry(
    action: Callable[[], T],
    failure: type[E],
    wait_s: float,
    look_s: float = LOOK_S,
    *,
    passes: Callable[[E], bool] = lambda error: True,
) -> T:
    """The result of `action`, repeated after a `failure` for up to `wait_s`; then the failure is raised.

    `passes` says whether a failure may pass: any other one is raised at once.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            return action()
        except failure as error:
            if not passes(error) or time.monotonic() >= deadline_s:
                raise
        time.sleep(look_s)
