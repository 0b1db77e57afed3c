"""What the journal's batch reader and its stream reader share: the options, the tasks and the rows of a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stateside.errors import EventsGone, JournalAway, PositionAhead, PositionInvalid
from stateside.journal.conditions import Conditions
from stateside.journal.segment import PARTITION, DurableEnd
from stateside.journal.selecting import selected, split, stretches
from stateside.journal.stored import StoredStream
from stateside.pipeline.dead_letters import Refusals, Validator
from stateside.pipeline.event_rows import EventRows, chosen_columns
from stateside.positions import Position

BEGIN = "begin"  # as `start`: at the first events that are there
EVENTS_PER_TASK_MIN = 20_000  # fewer are not worth a second task

MarkBefore = Callable[[str, int], DurableEnd | None]
Ranges = Mapping[str, tuple[int, int]]


@dataclass
class OffsetRange(InputPartition):
    """One task's share: events of a partition with start <= offset < stop, and a mark at or before them."""

    start: int
    stop: int
    mark: DurableEnd | None = None
    partition: str = PARTITION


class EventReader:
    """Reads tasks. It is made on the driver and shipped to where they run."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._folder = Path(options["path"])
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._start = options.get("start")
        self._conditions = Conditions(_texts(options, "types"), _texts(options, "tags"))
        self._rows = EventRows(self._schema, chosen_columns(options.get("columns")))
        self._validator = _validator(options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task's share, as Arrow record batches."""
        if not isinstance(partition, OffsetRange):  # what Spark makes of no task at all
            return
        refusals = None if self._validator is None else Refusals(self._validator)
        for first, batch in self._batches(partition):
            yield from self._rows.of(partition.partition, first, batch, self._wanted(batch), refusals)
        if refusals is not None:
            refusals.flush()

    def _batches(self, task: OffsetRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        with self._noticing_absence():
            journal = self._stored().journals[task.partition]
            yield from selected(journal, task.start, task.stop, self._ruling(), task.mark)

    @contextmanager
    def _noticing_absence(self) -> Iterator[None]:
        """JournalAway instead of any error that comes because the journal leaves meanwhile.

        Who has opened it finds it empty, cut or damaged then, depending on the moment.
        """
        try:
            yield
        except Exception as error:
            if not isinstance(error, JournalAway) and self._stored().id is None:
                raise self._away() from error
            raise

    def _away(self) -> JournalAway:
        return JournalAway(
            "The journal is away", where=str(self._folder), next_step="Bring it back: the view waits for it"
        )

    def _wanted(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which events are read; None for all."""
        return self._conditions.wanted(batch)

    def _ruling(self) -> Conditions:
        """By which whole segments are ruled out."""
        return self._conditions

    def _stored(self) -> StoredStream:
        return StoredStream.at(self._folder)

    def _tasks(self, stored: StoredStream, ranges: Ranges, events: int, mark: MarkBefore) -> list[OffsetRange]:
        """These ranges in tasks of about so many events, without what is ruled out."""
        found: list[OffsetRange] = []
        for name, (start, stop) in ranges.items():
            parts = split(stretches(stored.journals[name], start, stop, self._ruling()), max(1, events))
            found.extend(OffsetRange(part.start, part.stop, mark(name, part.start), name) for part in parts)
        return found

    def _first(self, stored: StoredStream) -> Position:
        """Where the option `start` says, or at the very first event."""
        if self._start is None:
            return Position.start()
        return stored.begin() if self._start == BEGIN else Position.parse(self._start)


def check_within(stored: StoredStream, position: Position, told: str) -> None:
    """PositionInvalid for a position that names other partitions than the stream has, PositionAhead beyond its end."""
    unknown = [name for name, _ in position.parts if name not in stored.journals]
    if unknown and stored.id is not None:
        raise PositionInvalid(
            f"The {told} {position} is not of this stream, which has no partition {unknown[0]!r}",
            where=str(stored.folder),
            next_step="Name a position of it: receipts of nodes are none",
        )
    if not stored.end().covers(position):
        raise PositionAhead(
            f"The {told} {position} lies behind the stream's end, {stored.end()}",
            where=str(stored.folder),
            next_step="It is of another stream, or of one that was replaced",
        )


def check_there(stored: StoredStream, start: Position) -> None:
    """EventsGone if some of the events from a position on were dropped, with the range and the ways on."""
    begin = stored.begin()
    for name, offset in begin.parts:
        if start[name] < offset:
            raise EventsGone(
                f"The events at {name}:{start[name]} to {name}:{offset - 1} are gone: the journal begins at {begin}",
                where=str(stored.folder),
                next_step=f"Bring their segments back from a copy; or do without them, in a new query with "
                f"a checkpoint of its own: start = {begin}, or {BEGIN!r}",
            )


def _validator(options: Mapping[str, str]) -> Validator | None:
    if "refused" not in options:
        return None
    limit = options.get("futureUsMax")
    times = tuple(json.loads(options.get("times", "[]")))
    return Validator(Path(options["refused"]), None if limit is None else int(limit), times)


def _texts(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    return frozenset(json.loads(options[name])) if name in options else None
