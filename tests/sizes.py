"""How long the long tests are: short in `make test`, as long as they can be in `make test-full`."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = "STATESIDE_TEST_FULL" in os.environ


def sized(short: T, full: T) -> T:
    """The one of the two that this run is for."""
    return full if FULL else short


def thinned(places: range, step: int) -> range:
    """Every so-manieth place to damage, all of them in the long run. An odd step meets each byte of a field."""
    return places[:: sized(step, 1)]


def in_full(reason: str) -> pytest.MarkDecorator:
    """Marks a test that `make test` leaves out; the reason says which other one shows the same there."""
    return pytest.mark.skipif(not FULL, reason=f"in `make test-full`: {reason}")
