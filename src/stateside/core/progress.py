"""Progress of long work: a callback that receives the amount done so far and the total."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[int, int], None]


def nobody(done: int, total: int) -> None:
    """A watch that does nothing."""
