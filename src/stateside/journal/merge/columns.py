"""What a merged event has beside the journal's columns.

    source         string  the log that it comes from, NAME.EPOCH
    source_offset  int64   its offset there
    sources_done   string  in the last event of a frame: a position in the logs, before which nothing is missing here
    sources_read   string  in the last event of a frame: a position in the logs, behind which nothing is here yet

The last two are what a merger goes on from, and how a reader finds the place of an event without an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from stateside.journal.columns import SCHEMA, conformed
from stateside.positions import Position

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
    """Events of one log, in the order in which they are merged."""

    log: str
    offsets: Sequence[int]
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Sources:
    """Up to where the logs are merged, and up to where they were read."""

    done: Position = _START
    read: Position = _START

    def joined(self, other: Sources) -> Sources:
        """The farther of both."""
        return Sources(self.done.joined(other.done), self.read.joined(other.read))


def merged_frame(pieces: Sequence[Piece], sources: Sources) -> pa.RecordBatch:
    """The pieces as one batch, as it is stored."""
    table = pa.Table.from_batches([_with_source(piece) for piece in pieces]).combine_chunks()
    (batch,) = table.to_batches()
    for text in (sources.done, sources.read):
        column = pa.array([None] * (batch.num_rows - 1) + [str(text)], pa.string())
        batch = batch.append_column(MERGED_SCHEMA.field(batch.num_columns), column)
    return batch.cast(MERGED_SCHEMA)


def sources_of(batch: pa.RecordBatch) -> Sources | None:
    """What the last event of a batch says of the sources; None if it is not the last one of a frame."""
    done, read = (batch.column(name)[-1].as_py() for name in ("sources_done", "sources_read"))
    return None if done is None else Sources(Position.parse(done), Position.parse(read))


def without_sources(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events as every journal has them."""
    return conformed(batch.drop_columns([field.name for field in _ADDED]))


def _with_source(piece: Piece) -> pa.RecordBatch:
    rows = piece.batch.num_rows
    batch = piece.batch.append_column(_ADDED[0], pa.array([piece.log] * rows, pa.string()))
    return batch.append_column(_ADDED[1], pa.array(piece.offsets, pa.int64()))
