"""The frontier: the set of events that the documents account for; it makes sealing exactly-once.

When a batch that ends at position P, with the watermark W, is sealed, the documents account for every usage event
before P whose period ends at W or earlier: the closed rows became invoices, the late events notes. (P, W) is a
*corner*. A query that starts over, with a new checkpoint or an older one, cuts the journal into other batches with
other watermarks; so its corners need not lie beyond the old ones in both dimensions, and all maximal corners are kept:

    period's end ▲
               W2│▒▒▒▒▒▒▒┐                ▒ accounted for
               W1│▒▒▒▒▒▒▒└─────────┐
                 │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
                 └───────P2────────P1──► position

A batch then seals the rest of its own rectangle, whichever query sealed the other part, with whichever batches:

- Periods up to the highest watermark are closed. Rows of closed periods are skipped: their events are accounted for,
  or found by the next rule.
- Events of closed periods in the batch's range not covered by any corner are late.
- Rows of other periods become invoices: the documents have no event of such a period.

So a rerun of a stored batch has nothing left to do, and a batch of a new query seals exactly the events not reached by
the old query. If a query has read beyond the corner with the highest watermark, while its own watermark is lower, the
query has folded events of closed periods into rows that will be skipped: the sweep then begins at the highest corner.

The corners are counters in the documents' own table log, and change with the rows in one step. A batch that stores
nothing moves no corner: the documents account for the same events as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CORNERS = "frontier/corners"


@dataclass(frozen=True, slots=True)
class Corner:
    """Accounts for every usage event before this position whose period ends at this time or earlier."""

    position: int
    closed_us: int

    def within(self, other: Corner) -> bool:
        """Whether the other corner accounts for at least the same events."""
        return self.position <= other.position and self.closed_us <= other.closed_us


@dataclass(frozen=True, slots=True)
class Frontier:
    """The maximal corners, by falling position and so by rising watermark; empty without documents."""

    corners: tuple[Corner, ...] = ()

    @property
    def closed_us(self) -> int:
        """Periods that end up to this time are closed."""
        return self.corners[-1].closed_us if self.corners else 0

    @property
    def position(self) -> int:
        """The highest position that any document depends on: the journal must reach that far."""
        return self.corners[0].position if self.corners else 0

    def sweep_from(self, start: int, watermark_before_us: int) -> int:
        """The start of the sweep for late events, for a batch that begins at `start`."""
        ahead = self.closed_us > watermark_before_us
        return min(start, self.corners[-1].position) if ahead else start

    def covers(self, offsets: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events, given by offset and end of their period, are accounted for."""
        covered = np.zeros(len(offsets), np.bool_)
        for corner in self.corners:
            covered |= (offsets < corner.position) & (ends_us <= corner.closed_us)
        return covered

    def closed_before(self, offsets: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events, given by offset and end of their period, arrived after documents had closed the period."""
        closed = np.zeros(len(offsets), np.bool_)
        for corner in self.corners:
            closed |= (offsets >= corner.position) & (ends_us <= corner.closed_us)
        return closed

    def moved(self, position: int, watermark_us: int) -> Frontier:
        """The frontier after sealing a batch with this end position and watermark."""
        new = Corner(position, max(watermark_us, self.closed_us))
        if any(new.within(corner) for corner in self.corners):
            return self
        return Frontier((*(corner for corner in self.corners if not corner.within(new)), new))

    def counters(self) -> dict[str, int]:
        """The frontier as a table's counters; `of` parses them."""
        counters = {CORNERS: len(self.corners)}
        for number, corner in enumerate(self.corners):
            counters |= dict(zip(_names(number), (corner.position, corner.closed_us), strict=True))
        return counters

    @classmethod
    def of(cls, counter: Callable[[str], int | None] | Mapping[str, int]) -> Frontier:
        """The frontier in a table's counters."""
        get = counter.get if isinstance(counter, Mapping) else counter
        names = (_names(number) for number in range(get(CORNERS) or 0))
        return cls(tuple(Corner(get(position) or 0, get(closed) or 0) for position, closed in names))


def _names(number: int) -> tuple[str, str]:
    return f"frontier/{number}/position", f"frontier/{number}/closed_us"
