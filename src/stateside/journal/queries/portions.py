"""Portions: a stream's events as the views take them in, some ten thousand in a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateside.journal.columns import SCHEMA
from stateside.journal.frames import Offsets
from stateside.journal.stream import Stream, located

TRANSACTION_EVENTS = 50_000
TRANSACTION_BYTES = 32 << 20

_COLUMNS = ["id", "entity", "type", "time", "tags", "sequence"]
_NOWHERE: Offsets = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Portion:
    """What a transaction takes in: all events with offsets start <= offset < behind, and where they stand."""

    start: int
    behind: int
    offsets: Offsets
    batch: pa.RecordBatch


def portions(stream: Stream, partition: str, start: int, stop: int) -> Iterator[Portion]:
    """The events in portions of the size that a transaction takes, with what the views need of them.

    The last one reaches `stop`, with no event in it perhaps: a stream may have a gap there.
    """
    waiting: list[pa.RecordBatch] = []
    places: list[Offsets] = []
    rows = size = 0
    for offsets, batch in located(stream, partition, start, stop):
        for low in range(0, batch.num_rows, TRANSACTION_EVENTS):
            waiting.append(batch.select(_COLUMNS).slice(low, TRANSACTION_EVENTS))
            places.append(offsets[low : low + TRANSACTION_EVENTS])
            rows, size = rows + waiting[-1].num_rows, size + waiting[-1].nbytes
            if rows >= TRANSACTION_EVENTS or size >= TRANSACTION_BYTES:
                behind = int(places[-1][-1]) + 1
                yield Portion(start, behind, np.concatenate(places), _joined(waiting))
                start, waiting, places, rows, size = behind, [], [], 0, 0
    if start < stop:
        yield Portion(start, stop, np.concatenate([_NOWHERE, *places]), _joined(waiting))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one; without any an empty one."""
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=pa.schema([SCHEMA.field(name) for name in _COLUMNS]))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
