"""The merged stream, as its readers see it.

The tail: events that are durable in a node's log and not in the merged stream yet.

For who must not wait for the merger: an entity that reads what it wrote just now. What the stream's last frames say is
done lies before the tail of each log; behind it everything is read, and what the stream has already is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import JournalCorrupt, PositionInvalid
from stateside.core.positions import Position
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.frames import Offsets
from stateside.journal.merge.gaps import Gap, Gaps
from stateside.journal.merge.partition import MERGED, MergedPartition, Sources, StreamIdentity, without_sources
from stateside.journal.merge.receipts import Wanted
from stateside.journal.nodes.log import node_logs
from stateside.journal.segment import PARTITION
from stateside.journal.stream import FileStream, moved


def tail(folder: Path, done: Position, entity: str, first: int, last: int) -> list[Event]:
    """Of the entity's events with the sequences from one to another, both included, those that follow without a gap.

    `done`: up to where all of the logs is in the stream. Memory: these events, and one append.
    """
    found: dict[int, Event] = {}
    for name, log in node_logs(folder).items():
        for _, batch in log.batches(done[name], log.durable_end().offset):
            wanted = batch.filter(pc.equal(batch.column("entity"), entity))
            found.update((event.sequence, event) for event in decode(wanted) if event.sequence is not None)
    following = []
    for sequence in range(first, last + 1):
        if sequence not in found:
            break
        following.append(found[sequence])
    return following


class MergedStream:
    """All events of all nodes, by partition and offset: a `Stream`. Any number of processes and threads may read it.

    An entity's events stand in one partition, in the order of their sequences. An offset keeps its event for good.
    Before its first merger a stream is empty, and has no partitions.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._merged = folder, folder / MERGED
        self._files: dict[str, FileStream] = {}

    def id(self) -> str | None:
        """Which stream this is, the same for its whole life and for no other one; None before its first merger."""
        born = StreamIdentity.read(self._merged)
        return None if born is None else born.id

    def partitions(self) -> Sequence[str]:
        """The names of the partitions, always the same."""
        born = StreamIdentity.read(self._merged)
        return [] if born is None else born.names()

    def end(self) -> Position:
        """The position after the last event of every partition. It never goes back."""
        return Position.of({name: self._partition(name).durable_end().offset for name in self.partitions()})

    def begin(self) -> Position:
        """The position of the first events that are there: the start, until retention drops some."""
        return Position.of({name: self._partition(name).begin()[PARTITION] for name in self.partitions()})

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event.

        The events of many small frames come as one batch.
        """
        yield from self._opened(partition).batches(partition, start, stop)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events at these offsets, which ascend: some of them at a time. Reads the frames that have them alone."""
        yield from self._opened(partition).gather(partition, offsets)

    def events(self, partition: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """The events of a partition from one offset up to another (its end by default), in order."""
        for _, batch in self.batches(partition, start, self.end()[partition] if stop is None else stop):
            yield from decode(batch)

    def wait(self, position: Position, timeout_s: float) -> bool:
        """Wait until the end has moved beyond the position, so long at most; whether it has. 0 s: only look."""
        return moved(self.end, position, timeout_s)

    def position_of(self, receipt: Position) -> Position | None:
        """The position in this stream just behind the events that a node's receipt is for; None if they are not merged.

        PositionInvalid if there is no such log, PositionAhead if it does not go so far. Where the node's log has been
        trimmed it is this stream's end now: they are before that, and nothing tells any more where.
        """
        wanted = self.wanted(receipt)
        return None if wanted is None else wanted.position()

    def covers(self, receipt: Position) -> bool:
        """Whether the events that a node's receipt is for are in the stream."""
        return self.position_of(receipt) is not None

    def wait_for(self, receipt: Position, timeout_s: float) -> Position | None:
        """Wait until a node's events are merged, so long at most; then as `position_of`, None if they are not."""
        deadline, wanted = time.monotonic() + timeout_s, None
        while True:
            end = self.end()
            wanted = wanted or self.wanted(receipt)
            found = None if wanted is None else wanted.position()
            if found is not None or not self.wait(end, max(0.0, deadline - time.monotonic())):
                return found

    def tail(self, entity: str, first: int, last: int) -> list[Event]:
        """An entity's events of these sequences that are in a node's log and may not be merged yet (`merge.tail`)."""
        return tail(self._folder, self.sources().done, entity, first, last)

    def sources(self) -> Sources:
        """Up to where the nodes' logs are in this stream, and up to where its merger had read them."""
        found = Sources()
        for name in self.partitions():
            found = found.joined(self._partition(name).sources())
        return found

    def gaps(self) -> list[Gap]:
        """The entities that wait for a missing event, for the longest first, as the merger told last."""
        return list(self.stalled().shown)

    def stalled(self) -> Gaps:
        """The same, the first thousand of them, and how many there are."""
        return Gaps.read(self._merged)

    def wanted(self, receipt: Position) -> Wanted | None:
        """As `position_of`, to be asked again and again; None before the first merger."""
        born = StreamIdentity.read(self._merged)
        return None if born is None else Wanted(self._folder, born, receipt, self.end)

    def _opened(self, partition: str) -> FileStream:
        """A partition to read; JournalCorrupt if what lies there is another stream's, or another partition."""
        born = StreamIdentity.read(self._merged)
        if born is None or partition not in born.names():
            raise PositionInvalid(
                f"This stream has no partition {partition!r}",
                where=str(self._merged),
                next_step="The reader's position belongs to another stream",
            )
        files = self._files.setdefault(partition, FileStream(self._merged / partition, without_sources, partition))
        if files.id() not in (None, str(born.journal_id(partition))):
            raise JournalCorrupt(
                f"What lies there is not partition {partition} of this stream",
                where=str(self._merged / partition),
                next_step="Restore the folder from a copy; nothing was skipped or changed",
            )
        return files

    def _partition(self, name: str) -> MergedPartition:
        return MergedPartition(self._merged / name)
