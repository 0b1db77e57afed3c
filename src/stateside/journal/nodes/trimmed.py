"""Trimmed events: what a node's log has no more the merged stream has, and says of each where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stateside.journal.merge.partition import MERGED, Born, MergedPartition
from stateside.journal.segment import PARTITION


def trimmed(folder: Path, log: str, start: int, stop: int) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """The events of a log with offsets start <= offset < stop, some at a time, with these offsets.

    Reads all of the stream. What retention has dropped there as well does not come.
    """
    born = Born.read(folder / MERGED)
    for name in () if born is None else born.names():
        partition = MergedPartition(folder / MERGED / name)
        for _, batch in partition.batches(partition.begin()[PARTITION], partition.durable_end().offset):
            offsets = batch.column("source_offset")
            within = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop))
            found = batch.filter(pc.and_(within, pc.equal(batch.column("source"), log)))
            if found.num_rows:
                yield found.column("source_offset").to_pylist(), found
