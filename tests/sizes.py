"""How long the long tests are: short in `make test` and `make test-fast`, all there is in `make test-full`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = "STATESIDE_TEST_FULL" in os.environ
FAST = "STATESIDE_TEST_FAST" in os.environ and not FULL


def sized(short: T, full: T) -> T:
    """The one that this run is for."""
    return full if FULL else short


def examples(short: int, full: int) -> int:
    """How many examples a property is tried with: a sixth of `short`, or all of `full`.

    Three at least, where there are as many: the first one is the simplest of all, and shows little.
    """
    return sized(min(short, max(3, short // 6)), full)


def thinned(places: range, step: int) -> range:
    """Every so-manieth place to damage, all of them in the long run. An odd step meets each byte of a field."""
    return places[:: sized(5 * step, 1)]


def some(cases: Sequence[T], step: int) -> Sequence[T]:
    """All cases in the long run; else, where each costs much for what it shows, the first and every so-manieth."""
    return cases[:: sized(step, 1)]


def in_full(reason: str) -> pytest.MarkDecorator:
    """Marks a test that `make test` leaves out; the reason says which other one shows the same there."""
    return pytest.mark.skipif(not FULL, reason=f"in `make test-full`: {reason}")


def not_in_fast(reason: str) -> pytest.MarkDecorator:
    """Marks a test that `make test-fast` leaves out, for what it costs; the reason says what stands for it there."""
    return pytest.mark.skipif(FAST, reason=f"in `make test`: {reason}")
