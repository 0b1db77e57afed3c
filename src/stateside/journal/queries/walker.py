"""Walkers: one reader's way through a stream, page by page, up to an end that was looked up before.

Partition after partition, each in the order of its offsets: so the same start and end give the same items in the same
order on every read, whatever becomes of the views meanwhile. All events of an entity stand in one partition, in the
order of their sequence; so they come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from stateside.errors import EventsGone, JournalAway, PositionAhead
from stateside.journal.queries.views import Views
from stateside.journal.stream import Stream, begin
from stateside.positions import Position

Item = TypeVar("Item")


class Walker(ABC, Generic[Item]):
    """Remembers where it stands, and goes on from there. Not for two threads at the same time."""

    def __init__(self, stream: Stream, views: Views, start: Position | None) -> None:
        """PositionAhead if the stream does not reach that far."""
        self._stream, self._views = stream, views
        self._at = dict((start or Position.start()).parts)
        self._id = stream.id()
        if start is not None and not stream.end().covers(start):
            raise PositionAhead(
                f"The position {start} lies behind the end of this stream, {stream.end()}",
                next_step="It is of another stream, or of one that was replaced: begin anew",
            )
        for partition, offset in begin(stream).parts:
            if self._at.get(partition, 0) < offset:
                raise EventsGone(
                    f"The events at {partition}:{self._at.get(partition, 0)} to {partition}:{offset - 1} are gone",
                    where=f"the stream {self._id}",
                    next_step=f"Start at {begin(stream)} to do without them, or bring them back from a copy",
                )

    @property
    def done(self) -> bool:
        """Whether nothing more can come, however far the stream goes on."""
        return False

    def pages(self, end: Position) -> Iterator[list[Item]]:
        """All pages up to there, none of them empty. Afterwards the walker stands there.

        JournalAway if another stream has taken the place of the one that it began in.
        """
        for partition in self._stream.partitions():
            at, stop = self._at.get(partition, 0), end[partition]
            while at < stop and not self.done:
                self.check_stream()
                for page, reached in self._read(partition, at, stop):
                    at = self._at[partition] = reached
                    if page:
                        yield page
            self._at[partition] = max(at, stop)

    @abstractmethod
    def _read(self, partition: str, at: int, stop: int) -> Iterator[tuple[list[Item], int]]:
        """The next pages, each with the offset that is reached with it. It is asked again until that is `stop`."""

    def _position(self, partition: str, offset: int) -> Position:
        """Where this walker stands if it has come so far in this partition."""
        if self._at.keys() <= {partition}:
            return Position(((partition, offset),))
        return Position.of(self._at | {partition: offset})

    def check_stream(self) -> None:
        """JournalAway if another stream has taken the place of the one that the walker began in."""
        found = self._stream.id()
        if self._id not in (None, found):
            raise JournalAway(
                f"The stream is another one than it was when the query began: {found}, not {self._id}",
                next_step="Begin the query anew",
            )
        self._id = found
