"""The frontier: which events of the journal the documents account for. It is what makes sealing exactly once.

When a batch that ends at position P, with the watermark W, is sealed, the documents account for every usage event
before P whose period ends at W or earlier: the closed rows became invoices, the late events notes. That is a *corner*,
(P, W). A query that begins anew, with a new checkpoint or an older one, cuts the journal into other batches, which see
other watermarks; so its corners need not lie beyond the old ones in both directions, and all that count are kept:

    period's end ▲
               W2│▒▒▒▒▒▒▒┐                ▒ accounted for
               W1│▒▒▒▒▒▒▒└─────────┐
                 │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
                 └───────P2────────P1──► position

A batch then does what is left of its own rectangle, whatever was sealed before, by whom, and with which batches:

- Periods up to the highest watermark are closed. Rows of closed periods are left out: their events are accounted for,
  or come by the next rule.
- Events of closed periods in the batch's range that no corner covers are late.
- Rows of other periods become invoices: the documents have no event of such a period.

So a rerun of a batch that was stored finds nothing left, and a batch of a new query exactly what the old one had not
got to. If a query has read beyond the corner with the highest watermark, while its own is lower, then it has folded
events of closed periods into rows that will be left out: the range to sweep then begins at that corner.

The corners stand in the documents' own log, as counters, and change with the rows in one step. A batch that stores
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
    """Every usage event before this position whose period ends up to this time is accounted for."""

    position: int
    closed_us: int

    def within(self, other: Corner) -> bool:
        """Whether the other one accounts for at least the same events."""
        return self.position <= other.position and self.closed_us <= other.closed_us


@dataclass(frozen=True, slots=True)
class Frontier:
    """The corners that count, by falling position and so by rising watermark. None: there are no documents."""

    corners: tuple[Corner, ...] = ()

    @property
    def closed_us(self) -> int:
        """Periods that end up to this time are closed."""
        return self.corners[-1].closed_us if self.corners else 0

    @property
    def position(self) -> int:
        """The furthest position that any document depends on: the journal must reach so far."""
        return self.corners[0].position if self.corners else 0

    def sweep_from(self, start: int, watermark_before_us: int) -> int:
        """From where to look for late events in a batch that begins at `start`."""
        ahead = self.closed_us > watermark_before_us
        return min(start, self.corners[-1].position) if ahead else start

    def covers(self, offsets: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events, with these offsets and ends of their periods, are accounted for."""
        covered = np.zeros(len(offsets), np.bool_)
        for corner in self.corners:
            covered |= (offsets < corner.position) & (ends_us <= corner.closed_us)
        return covered

    def closed_before(self, offsets: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events, with these offsets and ends of their periods, came after documents had closed the period."""
        closed = np.zeros(len(offsets), np.bool_)
        for corner in self.corners:
            closed |= (offsets >= corner.position) & (ends_us <= corner.closed_us)
        return closed

    def moved(self, position: int, watermark_us: int) -> Frontier:
        """The frontier once a batch that ends so is sealed."""
        new = Corner(position, max(watermark_us, self.closed_us))
        if any(new.within(corner) for corner in self.corners):
            return self
        return Frontier((*(corner for corner in self.corners if not corner.within(new)), new))

    def counters(self) -> dict[str, int]:
        """As a table's counters; `of` reads them again."""
        counters = {CORNERS: len(self.corners)}
        for number, corner in enumerate(self.corners):
            counters |= dict(zip(_names(number), (corner.position, corner.closed_us), strict=True))
        return counters

    @classmethod
    def of(cls, counter: Callable[[str], int | None] | Mapping[str, int]) -> Frontier:
        """The frontier that a table's counters tell."""
        get = counter.get if isinstance(counter, Mapping) else counter
        names = (_names(number) for number in range(get(CORNERS) or 0))
        return cls(tuple(Corner(get(position) or 0, get(closed) or 0) for position, closed in names))


def _names(number: int) -> tuple[str, str]:
    return f"frontier/{number}/position", f"frontier/{number}/closed_us"
