"""Waiting until something is so: for as long as a slow and busy machine may take, and no longer than it takes."""

from __future__ import annotations

from collections.abc import Callable

from stateside.core import wait

WAIT_S_MAX = 90.0


def wait_until(condition: Callable[[], bool], told: Callable[[], str] = lambda: "it did not happen in time") -> None:
    """Look again and again; fails with what `told` says when the time is over."""
    assert wait.wait_until(lambda: bool(condition()), WAIT_S_MAX), told()
