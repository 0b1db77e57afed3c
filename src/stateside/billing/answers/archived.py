"""What an answer has of the documents: all that count, or those of the last known version while their storage is away.

Open periods come from the live rows, and need no document. While the table of documents cannot be read, an answer has
its drafts as ever, and of closed periods what a read before has left in this process's memory. It says so:

    "archive": {"state": "current"}                        all documents that count are in the answer
    "archive": {"state": "away",                           their table cannot be read; the answer has those
                "as_of": "2026-04-18T12:30:00Z",             of all events up to the known position, as of then;
                "age_ms": 78000,                             null, both, if none are known
                "position": "0:4711",
                "unknown": {"after": "2026-03-04T00:00:00Z", "up_to": "2026-04-04T00:00:00Z"}}

What is known is complete for the stamp (P, W) of the last read that succeeded (see `gate`): it has all documents of
periods that end up to W, with the late events before P. An answer that stands at (P', W') lacks notes of late events
between P and P', which its `as_of` tells, and every document of the periods that end after W and up to W'. The rows of
these have left the live rows: what they amounted to is not in the answer at all, which is told as `unknown`. Without
such a period it is null.

An answer whose floor asks for something fresher than what is known is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stateside.billing.calendar import Cycle
from stateside.clock import Clock, SystemClock
from stateside.errors import ArchiveAway, NotFreshEnough
from stateside.positions import Position
from stateside.serving.reading.floor import Floor
from stateside.serving.stamp import Stamp, iso_time

T = TypeVar("T")
LATER = "Ask again once the storage is back; open periods are answered meanwhile"


@dataclass(frozen=True, slots=True)
class Known:
    """Up to where the documents in memory are complete, and as of when."""

    position: Position
    watermark_us: int
    as_of_us: int


@dataclass(frozen=True, slots=True)
class Archived:
    """How much of the documents an answer of this stamp has; see the module's text."""

    stamp: Stamp
    known: Known | None = None
    away: ArchiveAway | None = None
    age_ms: int | None = None
    unknown: tuple[int | None, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an answer."""
        if self.away is None:
            return {"state": "current"}
        known, unknown = self.known, self.unknown
        return {
            "state": "away",
            "as_of": None if known is None else iso_time(known.as_of_us),
            "age_ms": self.age_ms,
            "position": None if known is None else known.position,
            "unknown": None
            if unknown is None
            else {"after": None if unknown[0] is None else iso_time(unknown[0]), "up_to": iso_time(unknown[1])},
        }

    def lacks(self, end_us: int) -> bool:
        """Whether the documents of periods that end then are unknown, and are needed."""
        return self.unknown is not None and (self.unknown[0] or 0) < end_us <= self.unknown[1]

    def require(self, ends_us: Iterable[int], what: str) -> None:
        """ArchiveAway if the documents of a period that ends at one of these moments are unknown."""
        if self.away is not None and any(self.lacks(end_us) for end_us in ends_us):
            raise self.refusal(f"{what} cannot be answered: its documents are not known here, and cannot be read now")

    def refusal(self, what: str) -> ArchiveAway:
        """The error for what cannot be answered without the documents."""
        return ArchiveAway(what, where=None if self.away is None else self.away.where, next_step=LATER)

    def labelled(self) -> Stamp:
        """The stamp of the answer: one that lacks documents is never taken for one that has them."""
        if self.away is None:
            return self.stamp
        return replace(self.stamp, edition=f"{self.stamp.edition} {self.as_dict() | {'age_ms': None}}")


class Archive:
    """Reads documents for answers, and remembers what the last read that succeeded is complete for.

    `cycles` gives those of all plans, which say whether a period has ended since.
    """

    def __init__(self, cycles: Callable[[], Iterable[Cycle]], clock: Clock | None = None) -> None:
        self._cycles, self._clock = cycles, clock or SystemClock()
        self._known: Known | None = None

    async def read(self, stamp: Stamp, floor: Floor, read: Callable[[bool], T]) -> tuple[T | None, Archived]:
        """What `read(False)` finds, in a thread, or else `read(True)`, of what is known; None if nothing is.

        NotFreshEnough or ArchiveAway if the floor asks for more than is known.
        """
        try:
            found = await asyncio.to_thread(read, False)
        except ArchiveAway as error:
            return await self._remembered(stamp, floor, read, error)
        if self._known is None or stamp.watermark_us >= self._known.watermark_us:
            as_of_us = self._clock.now_us() - stamp.age_ms * 1_000
            self._known = Known(stamp.position, stamp.watermark_us, as_of_us)
        return found, Archived(stamp)

    async def _remembered(
        self, stamp: Stamp, floor: Floor, read: Callable[[bool], T], away: ArchiveAway
    ) -> tuple[T | None, Archived]:
        found, known = None, self._known
        if known is not None:
            try:
                found = await asyncio.to_thread(read, True)
            except ArchiveAway:  # not all of it is in memory
                known = None
        age_ms = None if known is None else max(0, (self._clock.now_us() - known.as_of_us) // 1_000)
        archived = Archived(stamp, known, away, age_ms, self._unknown(known, stamp.watermark_us))
        _check(archived, floor)
        return found, archived

    def _unknown(self, known: Known | None, watermark_us: int) -> tuple[int | None, int] | None:
        """The range of ends of periods that were closed since; None if no plan has such a period."""
        if known is None:
            return (None, watermark_us) if watermark_us > 0 else None
        ends = (cycle.containing(known.watermark_us).end_us for cycle in set(self._cycles()))
        return (known.watermark_us, watermark_us) if any(end_us <= watermark_us for end_us in ends) else None


def _check(archived: Archived, floor: Floor) -> None:
    """Refuse what the floor asks for if the documents lack it; where nothing is sealed yet they lack nothing."""
    known, stamp = archived.known, archived.stamp
    if stamp.watermark_us <= 0 or (floor.max_age_ms is None and floor.min_position is None):
        return
    if known is None or archived.age_ms is None:
        raise archived.refusal("The documents of closed periods are not known here, and cannot be read now")
    missing = floor.missing(replace(stamp, position=known.position, age_ms=archived.age_ms))
    if missing is not None:
        raise NotFreshEnough(
            f"The documents of closed periods are not fresh enough: {missing}. Their storage is away",
            where=None if archived.away is None else archived.away.where,
            next_step="Ask without max_age_ms and min_position for what is known, or again once the storage is back",
        )
