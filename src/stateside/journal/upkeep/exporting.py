"""Exports: events of a journal as JSON lines, which `stateside append` takes, or as a Parquet file.

Events come as they are stored, not upcast. A Parquet file has the journal's columns (`columns`), and before them
`partition` and `offset`. A file is there when all of it is: it is written aside, synced and renamed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from stateside.journal.columns import SCHEMA, decode
from stateside.journal.event import json_bytes
from stateside.journal.lines import fields_of
from stateside.journal.stream import Stream
from stateside.journal.upkeep.selection import Selection
from stateside.positions import Position
from stateside.storage import sync_directory

Format = Literal["jsonl", "parquet"]
Watch = Callable[[int, int], None]

_PLACE: Final = [pa.field("partition", pa.string(), nullable=False), pa.field("offset", pa.int64(), nullable=False)]
EXPORT_SCHEMA: Final = pa.schema([*_PLACE, *SCHEMA])
_GROUP_EVENTS = 100_000  # a row group of Parquet


@dataclass(frozen=True, slots=True)
class Exported:
    """So many events were written; the next export goes on at `position`."""

    events: int
    position: Position


def nobody(offset: int, stop: int) -> None:
    """Watches nothing."""


def export(stream: Stream, selection: Selection, target: Path, format: Format, watch: Watch = nobody) -> Exported:
    """Write the selected events to a new file, or over an old one, in one step."""
    with _whole_file(target) as file:
        return export_to(stream, selection, file, format, watch)


def export_to(stream: Stream, selection: Selection, file: IO[bytes], format: Format, watch: Watch = nobody) -> Exported:
    """Write the selected events to an open file or pipe."""
    start, stop = selection.range(stream)
    write = _write_lines if format == "jsonl" else _write_parquet
    count = write(_watched(replace(selection, stop=stop), stream, start, stop, watch), file)
    return Exported(count, stop)


def _watched(
    selection: Selection, stream: Stream, start: Position, stop: Position, watch: Watch
) -> Iterator[pa.RecordBatch]:
    """The batches with their places in front; the watch is told how far the range is read."""
    reached, total = start, stop.events() - start.events()
    for partition, offsets, batch in selection.batches(stream):
        if batch.num_rows:
            columns = [pa.array([partition] * batch.num_rows, pa.string()), pa.array(offsets, pa.int64())]
            yield pa.RecordBatch.from_arrays([*columns, *batch.columns], schema=EXPORT_SCHEMA)
            reached = reached.joined(Position.of({partition: int(offsets[-1]) + 1}))
            watch(reached.events() - start.events(), total)
    watch(total, total)


def _write_lines(batches: Iterator[pa.RecordBatch], file: IO[bytes]) -> int:
    count = 0
    for batch in batches:
        events = decode(batch.drop_columns([field.name for field in _PLACE]))
        file.writelines(json_bytes(fields_of(event)) + b"\n" for event in events)
        count += batch.num_rows
    file.flush()
    return count


def _write_parquet(batches: Iterator[pa.RecordBatch], file: IO[bytes]) -> int:
    count = 0
    with pq.ParquetWriter(file, EXPORT_SCHEMA, compression="zstd") as writer:
        for group in _groups(batches):
            writer.write_table(group)
            count += group.num_rows
    return count


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """As many batches together as make a row group."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(some.num_rows for some in waiting) >= _GROUP_EVENTS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


@contextmanager
def _whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is written to its end, durably; else nothing of it stays."""
    aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(target.absolute().parent)
