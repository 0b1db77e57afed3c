"""The files of a merged stream: its identity, and the journal of each partition.

Columns of a merged event beside the journal's own:

    source         string  the event's log, NAME.EPOCH
    source_offset  int64   the event's offset in its log
    sources_done   string  in the last event of a frame: a position in the logs; all earlier events are in the stream
    sources_read   string  in the last event of a frame: a position in the logs; no later event is in the stream yet

From the last two columns a merger resumes, and a reader finds the place of an event without an index.

Gaps: entities whose next event is missing, published by the merger for other processes.

The file `gaps.json` in the folder of the merged stream has the number of gaps and the oldest 1,000 of them. The merger
writes the file when the gaps change, without a sync: after a loss of power the next merger writes the file again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4, uuid5

import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import JournalCorrupt, SettingInvalid
from stateside.core.json_file import JsonFile
from stateside.core.positions import Position
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.file_writer import JournalWriter
from stateside.journal.backends.files.segment import DurableEnd
from stateside.journal.columns import SCHEMA, conformed

GAPS_SHOWN_MAX: Final = 1_000
_GAPS_NAME: Final = "gaps.json"


@dataclass(frozen=True, slots=True)
class Gap:
    """An entity whose next event is missing. `since_us`: when the entity's first waiting event was appended."""

    entity: str
    missing_sequence: int
    since_us: int


@dataclass(frozen=True, slots=True)
class Gaps:
    """The number of gaps, and the oldest ones in `shown`."""

    count: int = 0
    shown: tuple[Gap, ...] = ()

    @classmethod
    def of(cls, gaps: Sequence[Gap]) -> Gaps:
        """`gaps`: all gaps, oldest first."""
        return cls(len(gaps), tuple(gaps[:GAPS_SHOWN_MAX]))

    @classmethod
    def read(cls, merged: Path) -> Gaps:
        """The gaps last published by the merger of the stream in this folder."""
        return _GAPS.read_if_valid(merged / _GAPS_NAME) or cls()

    def write(self, merged: Path) -> None:
        """Publish the gaps for other processes."""
        _GAPS.write(merged / _GAPS_NAME, self)


_GAPS = JsonFile(
    "The gaps",
    lambda document: Gaps(document["count"], tuple(Gap(**gap) for gap in document["gaps"])),
    lambda gaps: {"count": gaps.count, "gaps": [asdict(gap) for gap in gaps.shown]},
    durable=False,
)


_ADDED: Final = [
    pa.field("source", pa.string(), nullable=False),
    pa.field("source_offset", pa.int64(), nullable=False),
    pa.field("sources_done", pa.string()),
    pa.field("sources_read", pa.string()),
]
MERGED_SCHEMA: Final = pa.schema([*SCHEMA, *_ADDED])
_START: Final = Position.start()


@dataclass(frozen=True, slots=True)
class Piece:
    """Events of one log, in merge order."""

    log: str
    offsets: Sequence[int]
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Sources:
    """How far the logs are merged, and how far they were read."""

    done: Position = _START
    read: Position = _START

    def joined(self, other: Sources) -> Sources:
        """The farther of both."""
        return Sources(self.done.joined(other.done), self.read.joined(other.read))


def merged_frame(pieces: Sequence[Piece], sources: Sources) -> pa.RecordBatch:
    """The pieces as one batch in the stored schema."""
    table = pa.Table.from_batches([_with_source(piece) for piece in pieces]).combine_chunks()
    (batch,) = table.to_batches()
    for text in (sources.done, sources.read):
        column = pa.array([None] * (batch.num_rows - 1) + [str(text)], pa.string())
        batch = batch.append_column(MERGED_SCHEMA.field(batch.num_columns), column)
    return batch.cast(MERGED_SCHEMA)


def sources_of(batch: pa.RecordBatch) -> Sources | None:
    """The sources recorded by the last event of a batch; None if the event is not the last one of a frame."""
    done, read = (batch.column(name)[-1].as_py() for name in ("sources_done", "sources_read"))
    return None if done is None else Sources(Position.parse(done), Position.parse(read))


def without_sources(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events with the journal's columns only."""
    return conformed(batch.drop_columns([field.name for field in _ADDED]))


def _with_source(piece: Piece) -> pa.RecordBatch:
    rows = piece.batch.num_rows
    batch = piece.batch.append_column(_ADDED[0], pa.array([piece.log] * rows, pa.string()))
    return batch.append_column(_ADDED[1], pa.array(piece.offsets, pa.int64()))


MERGED = "merged"
PARTITIONS_MAX = 1_000
SEGMENT_BYTES_MAX = 16 * 1024 * 1024  # smaller than a node's: a search for an event's place scans one segment


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The stream's id and number of partitions, constant for the stream's life."""

    id: str
    partitions: int

    @classmethod
    def read(cls, merged: Path) -> StreamIdentity | None:
        """The identity of the stream in this folder; None before its first merger."""
        return _IDENTITY.read(merged / "born")

    @classmethod
    def bear(cls, merged: Path, partitions: int) -> StreamIdentity:
        """Create an empty stream, over leftovers of an earlier attempt. The stream exists once the file `born` does."""
        _refuse_orphans(merged)
        born = cls(str(uuid4()), partitions)
        for partition in born.names():
            segment.create(merged / partition, 0, MERGED_SCHEMA, born.journal_id(partition))
        _IDENTITY.write(merged / "born", born)
        return born

    def names(self) -> list[str]:
        """The names of the partitions."""
        return [str(number) for number in range(self.partitions)]

    def journal_id(self, partition: str) -> UUID:
        """The id of a partition's journal, which identifies a folder of another stream."""
        return uuid5(UUID(self.id), partition)

    def partition_of(self, entity: str) -> str:
        """The partition of an entity's events, for good."""
        return str(zlib.crc32(entity.encode()) % self.partitions)


_IDENTITY = JsonFile(
    "The identity of the merged stream", lambda document: StreamIdentity(**document), damage=JournalCorrupt
)


class MergedPartition(FileLog):
    """A partition's journal, read with all its columns."""

    @staticmethod
    def shown(batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as stored, with the source columns."""
        return batch

    def sources(self) -> Sources:
        """The sources recorded by the last frame."""
        end = self.durable_end().offset
        for _, batch in self.batches(max(0, end - 1), end):
            return sources_of(batch) or Sources()
        return Sources()


class MergedLog(JournalWriter):
    """The merger's writer of a partition's journal."""

    schema = MERGED_SCHEMA

    def __init__(self, directory: Path, journal_id: UUID, clock: Clock) -> None:
        super().__init__(directory, clock=clock, known=journal_id, segment_bytes_max=SEGMENT_BYTES_MAX)

    def store(self, batch: pa.RecordBatch) -> int:
        """Store a frame durably, with its source columns; returns the offset of its first event."""
        with self._turn():
            return self._store_frame(batch)


def opened(folder: Path, partitions: int) -> StreamIdentity:
    """The folder's stream, created if there is none; SettingInvalid if it has another number of partitions."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise SettingInvalid(f"A stream of {partitions} partitions", next_step=f"Give it 1 to {PARTITIONS_MAX}")
    born = StreamIdentity.read(folder / MERGED) or StreamIdentity.bear(folder / MERGED, partitions)
    if born.partitions != partitions:
        raise SettingInvalid(
            f"This stream was born with {born.partitions} partitions, not {partitions}",
            where=str(folder / MERGED),
            next_step=f"Start the merger with {born.partitions}. For another number make a new stream: an entity keeps "
            "its partition for good",
        )
    return born


def _refuse_orphans(merged: Path) -> None:
    """JournalCorrupt if there are events of a stream whose file `born` is missing."""
    for path in merged.glob("*/end"):
        marked = DurableEnd.read(path.parent)
        if marked is not None and marked.offset:
            raise JournalCorrupt(
                f"There are merged events in partition {path.parent.name}, but the file `born` is missing",
                where=str(merged),
                next_step="Restore that file from a copy; nothing was changed",
            )
