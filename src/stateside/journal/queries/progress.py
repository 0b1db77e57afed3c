"""Progress: how far views are that follow a stream, as a watch is told it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the views are: so many of the stream's events are in them, of so many."""

    events: int
    total: int

    @property
    def done(self) -> float:
        """The share of the work done, from 0 to 1."""
        return self.events / self.total if self.total else 1.0


Watch = Callable[[Progress], None]


def nobody(progress: Progress) -> None:
    """Watches nothing."""
