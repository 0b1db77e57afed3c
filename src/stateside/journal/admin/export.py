"""Exports: selected events of a journal as JSON lines, readable by `stateside append`, or as a Parquet file.

Events come as stored, not upcast. A Parquet file has the journal's columns (`columns`), preceded by `partition` and
`offset`. A file appears only when complete: it is written under a temporary name, synced and renamed. `Selection`
selects events by position and content.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import IO, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stateside.core.errors import PositionAhead, RequestInvalid
from stateside.core.positions import Position
from stateside.core.progress import Watch, nobody
from stateside.core.storage import sync_directory
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.columns import SCHEMA, decode
from stateside.journal.contract import Journal
from stateside.journal.event import TIME_US_MAX, TIME_US_MIN, Event, json_bytes
from stateside.journal.json_lines import fields_of
from stateside.journal.queries import FoundEvent, Queries, Query
from stateside.journal.queries.predicate import EntityEvents, EventQuery, EventsBetween, TaggedEvents, TypedEvents


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of events from `start` up to `stop` (the end by default) with all given properties.

    Times are the events' own: from_us <= time < to_us.
    """

    start: Position = Position.start()  # noqa: RUF009 - a value
    stop: Position | None = None
    entity: str | None = None
    tag: str | None = None
    type: str | None = None
    from_us: int | None = None
    to_us: int | None = None

    def found(self, queries: Queries) -> Iterator[FoundEvent]:
        """The present events, in order. The views serve the most selective property."""
        return (one for one in self._query(queries).current(self.start, self.stop) if self._has(one.event))

    def live(self, queries: Queries) -> Iterator[FoundEvent]:
        """As `found`, followed by new events forever or up to the stop.

        RequestInvalid for a stop in a stream of several partitions, which have no common order.
        """
        stop, found = self.stop, self._query(queries).live(self.start)
        if stop is not None:
            if len(queries.stream.partitions()) > 1:
                raise RequestInvalid(
                    "A stream of several partitions is not followed up to a position",
                    next_step="Follow it without an end, or read what is there up to the position",
                )
            found = takewhile(lambda one: stop.covers(one.position), found)
        return (one for one in found if self._has(one.event))

    def batches(self, stream: Journal) -> Iterator[tuple[str, Offsets, pa.RecordBatch]]:
        """The present events as stored, in batches: partition, offsets, events.

        Batches may be empty. Scans the whole range, whatever the selection, at some millions of events per second.
        """
        start, stop = self.range(stream)
        questions = self._questions()
        for partition in stream.partitions():
            for first, batch in stream.batches(partition, start[partition], stop[partition]):
                wanted = np.ones(batch.num_rows, bool)
                for question in questions:
                    wanted &= question.matches(batch)
                rows = np.flatnonzero(wanted)
                yield partition, rows + first, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))

    def range(self, stream: Journal) -> tuple[Position, Position]:
        """The range of positions; PositionAhead or RequestInvalid if the journal has no such range."""
        end = stream.end()
        stop = self.stop or end
        for position in (self.start, stop):
            if not end.covers(position):
                raise PositionAhead(f"The journal ends at {end}, before {position}", next_step="Give a position in it")
        if not stop.covers(self.start):
            raise RequestInvalid(f"{self.start} lies beyond {stop}", next_step="Give the earlier position first")
        return self.start, stop

    def _query(self, queries: Queries) -> Query[FoundEvent]:
        if self.entity is not None:
            return queries.entity(self.entity)
        if self.tag is not None:
            return queries.tagged(self.tag)
        if self.type is not None:
            return queries.typed(self.type)
        return queries.between(*self._times()) if self._is_timed() else queries.all()

    def _has(self, event: Event) -> bool:
        from_us, to_us = self._times()
        return (
            self.entity in (None, event.entity)
            and (self.tag is None or self.tag in event.tags)
            and self.type in (None, event.type)
            and from_us <= event.time_us < to_us
        )

    def _questions(self) -> list[EventQuery]:
        found: list[EventQuery] = []
        if self.entity is not None:
            found.append(EntityEvents(self.entity))
        if self.tag is not None:
            found.append(TaggedEvents(self.tag))
        if self.type is not None:
            found.append(TypedEvents(self.type))
        return [*found, EventsBetween(*self._times())] if self._is_timed() else found

    def _is_timed(self) -> bool:
        return (self.from_us, self.to_us) != (None, None)

    def _times(self) -> tuple[int, int]:
        return (
            TIME_US_MIN if self.from_us is None else self.from_us,
            TIME_US_MAX if self.to_us is None else self.to_us,
        )


Format = Literal["jsonl", "parquet"]
_PLACE: Final = [pa.field("partition", pa.string(), nullable=False), pa.field("offset", pa.int64(), nullable=False)]
EXPORT_SCHEMA: Final = pa.schema([*_PLACE, *SCHEMA])
_GROUP_EVENTS = 100_000  # events per row group


@dataclass(frozen=True, slots=True)
class Exported:
    """The number of events written; the next export resumes at `position`."""

    events: int
    position: Position


def export(stream: Journal, selection: Selection, target: Path, format: Format, watch: Watch = nobody) -> Exported:
    """Write the selected events to a file, atomically, replacing an old one."""
    with _whole_file(target) as file:
        return export_to(stream, selection, file, format, watch)


def export_to(
    stream: Journal, selection: Selection, file: IO[bytes], format: Format, watch: Watch = nobody
) -> Exported:
    """Write the selected events to an open file or pipe."""
    start, stop = selection.range(stream)
    write = _write_lines if format == "jsonl" else _write_parquet
    count = write(_watched(replace(selection, stop=stop), stream, start, stop, watch), file)
    return Exported(count, stop)


def _watched(
    selection: Selection, stream: Journal, start: Position, stop: Position, watch: Watch
) -> Iterator[pa.RecordBatch]:
    """The batches preceded by their places; reports progress to `watch`."""
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
    """The batches grouped into row groups."""
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
    """A file that gets its name once complete and durable; removed on an error."""
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
