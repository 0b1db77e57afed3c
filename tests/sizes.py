"""How long the long tests are: short in `make test`, as long as they can be in `make test-full`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

FULL = "STATESIDE_TEST_FULL" in os.environ


def sized(short: T, full: T) -> T:
    """The one of the two that this run is for."""
    return full if FULL else short
