"""The journal as a Spark source, through the Python Data Source API: offsets are positions, rows come as Arrow.

    spark.dataSource.register(JournalSource)
    events = spark.readStream.format("stateside-journal").option("path", …).option("fields", "cents long").load()
    events = spark.read.format("stateside-journal").option("path", …).option("start", "0:100").load()

Columns: the event's own (`offset`, `id`, `entity`, `type`, `time`, `appended`, `tags`, `payload`), the columns in the
option `columns`, then the payload fields in the option `fields` with their types. `JournalStreamReader` is a stream,
whose life reads top down; `JournalBatchReader` reads a range as a DataFrame; `EventReader` has their common part.

Predicates that Spark pushes down to a batch read, as far as zone maps of segments can use them:

    on `type`                     =, in
    on `time`, `appended`         =, <, <=, >, >=
    on `offset`                   =, <, <=, >, >=

Other predicates narrow nothing. (Spark never pushes `array_contains` down; the option `tags` selects by tag.)
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stateside.core.errors import EventsGone, JournalAway, PositionAhead, PositionInvalid, ViewInvalid
from stateside.core.layout import BARRIER
from stateside.core.positions import Position
from stateside.journal import Journal, Log, open_journal
from stateside.journal.contract import PARTITION, DurableEnd
from stateside.journal.payload import check_fields, fitted
from stateside.journal.predicates import EVER, Conditions, NumberRange, selected, shares, split, stretches
from stateside.pipeline.dead_letters import Refusals, Validator, passed
from stateside.pipeline.progress import NEXT_BATCH
from stateside.pipeline.sources import EVENTS_PER_BATCH_MAX, JOURNAL_FORMAT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def narrowed(conditions: Conditions, pushed: Filter) -> Conditions:
    """The conditions, with this predicate added."""
    match getattr(pushed, "attribute", None):
        case ("type",):
            types = _texts(pushed)
            if types is not None:
                known = conditions.types
                return replace(conditions, types=types if known is None else known & types)
        case ("time",):
            return replace(conditions, time=conditions.time.cut(_span(pushed, _microseconds)))
        case ("appended",):
            return replace(conditions, appended=conditions.appended.cut(_span(pushed, _microseconds)))
    return conditions


def offsets_of(pushed: Filter) -> NumberRange:
    """The offsets that meet this predicate."""
    return _span(pushed, _whole) if getattr(pushed, "attribute", None) == ("offset",) else EVER


def _texts(pushed: Filter) -> frozenset[str] | None:
    if isinstance(pushed, EqualTo) and isinstance(pushed.value, str):
        return frozenset([pushed.value])
    if isinstance(pushed, In) and all(isinstance(value, str) for value in pushed.value):
        return frozenset(pushed.value)
    return None


def _span(pushed: Filter, number_of: Any) -> NumberRange:
    number = number_of(getattr(pushed, "value", None))
    if number is None:
        return EVER
    match pushed:
        case EqualTo():
            return NumberRange(number, number)
        case GreaterThan():
            return NumberRange(first=number + 1)
        case GreaterThanOrEqual():
            return NumberRange(first=number)
        case LessThan():
            return NumberRange(last=number - 1)
        case LessThanOrEqual():
            return NumberRange(last=number)
    return EVER


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


ENVELOPE: Final = (
    "offset long, id string, entity string, type string, time timestamp, appended timestamp, "
    "tags array<string>, payload string"
)
ENVELOPE_NAMES: Final = tuple(column.split()[0] for column in ENVELOPE.split(", "))
CHOSEN: Final = {  # optional, so the schema of older queries stays the same
    "partition": "string",
    "sequence": "long",
    "version": "int",
    "metadata": "map<string,string>",
    "data": "binary",
    "extra": "string",
}
_MAP: Final = pa.map_(pa.string(), pa.string())


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """The comma-separated columns of the option `columns`; ViewInvalid for an unknown column."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    unknown = [name for name in names if name not in CHOSEN]
    if unknown or len(set(names)) < len(names):
        raise ViewInvalid(
            f"The columns {text!r} cannot be added to events", next_step=f"Name some of {', '.join(CHOSEN)}, each once"
        )
    return names


def ddl(chosen: Sequence[str], fields: str | None) -> str:
    """All columns as DDL, because there is no JVM here to parse `fields`."""
    added = ", ".join(f"{name} {CHOSEN[name]}" for name in chosen)
    return ", ".join(filter(None, (ENVELOPE, added, fields)))


class EventRows:
    """Converts events to rows of `schema`, which Spark expects."""

    def __init__(self, schema: pa.Schema, chosen: Sequence[str]) -> None:
        self._schema, self._chosen = schema, tuple(chosen)
        first_field = len(ENVELOPE_NAMES) + len(self._chosen)
        self._fields = pa.schema([schema.field(index) for index in range(first_field, len(schema))])
        check_fields(self._fields)
        twice = {name for name in schema.names if schema.names.count(name) > 1}
        if twice:
            raise ViewInvalid(
                f"There are two columns {min(twice)!r}",
                next_step="Leave one of them out of the source's fields and columns",
            )

    def of(
        self,
        partition: str,
        first: int,
        batch: pa.RecordBatch,
        wanted: pa.Array | None,
        refusals: Refusals | None = None,
    ) -> list[pa.RecordBatch]:
        """The batch, which begins at this offset of a partition, in Spark's exact types.

        With `refusals`, events that do not fit or are dated too far ahead go there. Without, each event is a row, with
        nulls for all fields if it does not fit.
        """
        offsets = pa.array(np.arange(first, first + batch.num_rows))
        count = batch.num_rows if wanted is None else wanted.true_count
        if not count:
            return []
        if count < batch.num_rows:
            offsets, batch = offsets.filter(wanted), batch.filter(wanted)
        fields, misfits = fitted(batch.column("payload"), self._fields)
        columns = [
            offsets,
            *(batch.column(name) for name in ENVELOPE_NAMES[1:]),
            *(_column(name, partition, batch) for name in self._chosen),
            *fields.columns,
        ]
        table = pa.Table.from_arrays(columns, names=self._schema.names)
        if refusals is not None:
            good = passed(refusals, partition, offsets, batch, misfits, fields)
            table = table if good is None else table.filter(good)
        return list(table.cast(self._schema).combine_chunks().to_batches())


def _column(name: str, partition: str, batch: pa.RecordBatch) -> pa.Array:
    if name == "partition":
        return pa.array([partition]).take(pa.array(np.zeros(batch.num_rows, np.int8)))
    column = batch.column(name)
    return column if name not in _READ else _READ[name](column)


def _maps(texts: pa.Array) -> pa.Array:
    """JSON objects of texts as maps."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _MAP)
    return pa.array([None if text is None else list(json.loads(text).items()) for text in texts.to_pylist()], _MAP)


_READ: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {"metadata": _maps}
BEGIN = "begin"  # a value of `start`: the first event still present
EVENTS_PER_TASK_MIN = 20_000  # fewer do not justify a second task
MarkBefore = Callable[[str, int], DurableEnd | None]
Ranges = Mapping[str, tuple[int, int]]


@dataclass
class OffsetRange(InputPartition):
    """One task: events of a partition with start <= offset < stop, and a durable end at or before them."""

    start: int
    stop: int
    mark: DurableEnd | None = None
    partition: str = PARTITION


@dataclass(frozen=True, slots=True)
class Stored:
    """A journal at one moment: a journal that leaves in the middle of a plan must not seem to have no partitions."""

    journal: Journal
    logs: Mapping[str, Log]
    id: str | None

    @classmethod
    def of(cls, journal: Journal) -> Stored:
        """Without an id if the journal was away, or replaced, at any of these looks."""
        before, logs = journal.id(), journal.logs()
        return cls(journal, logs, before if before == journal.id() else None)

    def end(self) -> Position:
        return Position.of({name: log.durable_end().offset for name, log in self.logs.items()})

    def begin(self) -> Position:
        return Position.of({name: log.begin().one() for name, log in self.logs.items()})


class EventReader:
    """Reads tasks. Created on the driver and shipped to the executors."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._folder = Path(options["path"])
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._start = options.get("start")
        self._conditions = Conditions(_option_texts(options, "types"), _option_texts(options, "tags"))
        self._rows = EventRows(self._schema, chosen_columns(options.get("columns")))
        self._validator = _validator(options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, as Arrow record batches."""
        if not isinstance(partition, OffsetRange):  # Spark's placeholder for an empty list of tasks
            return
        refusals = None if self._validator is None else Refusals(self._validator)
        for first, batch in self._batches(partition):
            yield from self._rows.of(partition.partition, first, batch, self._wanted(batch), refusals)
        if refusals is not None:
            refusals.flush()

    def _batches(self, task: OffsetRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        with self._noticing_absence():
            stored = self._stored()
            if stored.id is None:
                raise self._away()
            yield from selected(stored.logs[task.partition], task.start, task.stop, self._ruling(), task.mark)

    @contextmanager
    def _noticing_absence(self) -> Iterator[None]:
        """Raise JournalAway instead of any error caused by the journal's disappearance.

        An open reader finds a disappearing journal empty, cut or damaged, depending on the moment.
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
        """A mask of the events to read; None for all."""
        return self._conditions.wanted(batch)

    def _ruling(self) -> Conditions:
        """The conditions that rule out whole segments."""
        return self._conditions

    def _stored(self) -> Stored:
        return Stored.of(open_journal(self._folder))

    def _tasks(self, stored: Stored, ranges: Ranges, events: int, mark: MarkBefore) -> list[OffsetRange]:
        """Split these ranges into tasks of about `events` events each, without ruled-out stretches."""
        found: list[OffsetRange] = []
        for name, (start, stop) in ranges.items():
            parts = split(stretches(stored.logs[name], start, stop, self._ruling()), max(1, events))
            found.extend(OffsetRange(part.start, part.stop, mark(name, part.start), name) for part in parts)
        return found

    def _first(self, stored: Stored) -> Position:
        """The position of the option `start`, or the very first event."""
        if self._start is None:
            return Position.start()
        return stored.begin() if self._start == BEGIN else Position.parse(self._start)


def check_within(stored: Stored, position: Position, told: str) -> None:
    """PositionInvalid for a position with unknown partitions, PositionAhead for one beyond the stream's end."""
    unknown = [name for name, _ in position.parts if name not in stored.logs]
    if unknown and stored.id is not None:
        raise PositionInvalid(
            f"The {told} {position} is not of this stream, which has no partition {unknown[0]!r}",
            where=stored.journal.where,
            next_step="Name a position of it: receipts of nodes are none",
        )
    if not stored.end().covers(position):
        raise PositionAhead(
            f"The {told} {position} lies beyond the stream's end, {stored.end()}",
            where=stored.journal.where,
            next_step="It is of another stream, or of one that was replaced",
        )


def check_there(stored: Stored, start: Position) -> None:
    """EventsGone, with the range and the alternatives, if events from a position on were dropped."""
    begin = stored.begin()
    for name, offset in begin.parts:
        if start[name] < offset:
            raise EventsGone(
                f"The events at {name}:{start[name]} to {name}:{offset - 1} are gone: the journal begins at {begin}",
                where=stored.journal.where,
                next_step=f"Bring their segments back from a copy; or do without them, in a new query with "
                f"a checkpoint of its own: start = {begin}, or {BEGIN!r}",
            )


def _validator(options: Mapping[str, str]) -> Validator | None:
    if "refused" not in options:
        return None
    limit = options.get("futureUsMax")
    times = tuple(json.loads(options.get("times", "[]")))
    return Validator(Path(options["refused"]), None if limit is None else int(limit), times)


def _option_texts(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    return frozenset(json.loads(options[name])) if name in options else None


TASKS_MIN = 8  # if there are enough events
EVENTS_PER_TASK_MAX = 1_000_000


class JournalBatchReader(EventReader, DataSourceReader):
    """Reads from `start` (default: the very first event) to `end` (default: the durable end). One per execution."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._end = options.get("end")
        self._offsets: NumberRange = EVER

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use predicates to read less. Spark evaluates all of them again, because comparison semantics are Spark's."""
        for each in filters:
            self._conditions = narrowed(self._conditions, each)
            self._offsets = self._offsets.cut(offsets_of(each))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """JournalAway if there is no journal: an empty answer would pass for one without events."""
        with self._noticing_absence():
            return self._planned(self._stored())

    def _away(self) -> JournalAway:
        return JournalAway(
            "The journal is away, or there is none",
            where=str(self._folder),
            next_step="Bring it back, or name its folder. A journal exists once a writer opened it; "
            "that of nodes, once a merger ran",
        )

    def _planned(self, stored: Stored) -> list[InputPartition]:
        if stored.id is None:
            raise self._away()
        first, last = self._first(stored), stored.end() if self._end is None else Position.parse(self._end)
        check_within(stored, first, "start")
        check_within(stored, last, "end")
        if not last.covers(first):
            raise PositionInvalid(
                f"The start {first} does not lie before the end {last}", next_step="Exchange them, or leave one out"
            )
        check_there(stored, first)
        ranges = {name: self._cut(first[name], last[name]) for name in stored.logs}
        events = sum(stop - start for start, stop in ranges.values())
        most = max(TASKS_MIN, -(-events // EVENTS_PER_TASK_MAX))
        count = min(most, max(1, events // EVENTS_PER_TASK_MIN))
        return list(self._tasks(stored, ranges, -(-events // count), lambda partition, offset: None))

    def _cut(self, start: int, stop: int) -> tuple[int, int]:
        """Intersect a range with the pushed-down offsets."""
        start, stop = max(start, self._offsets.first), min(stop, self._offsets.last + 1)
        return start, max(start, stop)


JOURNAL = "journal"  # in an offset: the id of the stream
TASKS_MAX = 8
MARKS_MAX = 64
_PAUSE_POLL_S = 0.05
Offset = dict[str, int | str]


class JournalStreamReader(EventReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver and reads them in the tasks.

    An offset has each partition of the stream. For a merged stream it also has, for each node's log, the position up to
    which all its events lie before the offset: so a stamp covers a node's receipt.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._limit = int(options.get("eventsPerBatchMax", EVENTS_PER_BATCH_MAX))
        self._stop_at = Position.parse(options["stopAt"]) if "stopAt" in options else None
        self._pause_file = Path(options["pauseFile"]) if "pauseFile" in options else None
        self._pause_s = int(options.get("pauseMs", 0)) / 1_000
        self._limit_file = Path(options["limitFile"]) if "limitFile" in options else None
        self._barrier_file = Path(options["barrierFile"]) if "barrierFile" in options else None
        self._planned_from: Offset | None = None
        self._resumes_s = 0.0
        self._marks: dict[str, deque[DurableEnd]] = {}

    def initialOffset(self) -> Offset:
        """A new query starts at the journal's start, or at the option `start`."""
        stored = self._stored()
        first = self._first(stored)
        if not first.parts:
            return {PARTITION: 0}
        check_within(stored, first, "start")
        return self._offset(stored, {name: first[name] for name in stored.logs})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the present durable end, and nothing later."""
        end = self._stored().end()
        self._stop_at = end if self._stop_at is None else _least(end, self._stop_at)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch: the durable end, or the limit, divided among the partitions."""
        self._rest_after_commit(start)
        with self._noticing_absence():
            return self._latest(start, limit)

    def _rest_after_commit(self, start: Offset) -> None:
        """Wait until `pauseMs` after the last commit: the first plan from another offset comes right after it."""
        if self._planned_from not in (None, start):
            self._resumes_s = time.monotonic() + self._pause_s
        self._planned_from = start
        while (left_s := self._resumes_s - time.monotonic()) > 0 and not self._paused():
            time.sleep(min(left_s, _PAUSE_POLL_S))

    def _paused(self) -> bool:
        return self._pause_file is not None and self._pause_file.exists()

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        stored = self._stored()
        self._check_stream(stored, start)
        if self._paused():
            return start
        ends = {name: log.durable_end() for name, log in stored.logs.items()}
        for name, end in ends.items():
            self._marks.setdefault(name, deque(maxlen=MARKS_MAX)).append(end)
        barrier = self._barrier(start, ends)
        stops = {name: self._stop(name, end.offset, barrier) for name, end in ends.items()}
        waiting = {name: max(0, stop - int(start.get(name, 0))) for name, stop in stops.items()}
        if isinstance(limit, ReadMaxRows):
            planned = None if self._limit_file is None else NEXT_BATCH.read_if_valid(self._limit_file)
            waiting = shares(waiting, min(limit.max_rows, planned or limit.max_rows))
        else:
            assert isinstance(limit, ReadAllAvailable), limit
        if not any(waiting.values()):
            return start
        return self._offset(stored, {name: int(start.get(name, 0)) + more for name, more in waiting.items()}, start)

    def reportLatestOffset(self) -> Offset:
        """The durable end, for Spark's progress reports."""
        stored = self._stored()
        return {**(stored.end().as_dict() or {PARTITION: 0}), JOURNAL: stored.id or ""}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The batch's ranges in equal parts, at least EVENTS_PER_TASK_MIN events each."""
        with self._noticing_absence():
            return self._planned(start, end)

    def _planned(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        stored = self._stored()
        self._check_stream(stored, end)  # a repeated batch after a restart comes here first
        check_there(stored, _position(stored, start))
        ranges = {name: (int(start.get(name, 0)), int(end.get(name, 0))) for name in stored.logs}
        events = sum(last - first for first, last in ranges.values())
        count = min(TASKS_MAX, max(1, events // EVENTS_PER_TASK_MIN))
        return self._tasks(stored, ranges, -(-events // count), self._mark_before)

    def _barrier(self, start: Offset, partitions: Iterable[str]) -> Position | None:
        """The barrier, if it lies after the start, or beside it; else it was reached, or missed."""
        barrier = None if self._barrier_file is None else BARRIER.read_if_valid(self._barrier_file)
        if barrier is None:
            return None
        ahead = [barrier[name] - int(start.get(name, 0)) for name in partitions]
        return barrier if any(ahead) and min(ahead) >= 0 else None

    def _stop(self, partition: str, end: int, barrier: Position | None) -> int:
        limits = [limit[partition] for limit in (self._stop_at, barrier) if limit is not None]
        return min([end, *limits])

    def _offset(self, stored: Stored, offsets: Mapping[str, int], before: Offset | None = None) -> Offset:
        """An offset in Spark's form; `before` is an earlier one."""
        marks = {name: self._mark_before(name, offset - 1) for name, offset in offsets.items() if offset}
        others = {name: at for name, at in (before or {}).items() if name not in (*offsets, PARTITION, JOURNAL)}
        known = Position.of({name: int(at) for name, at in others.items()})
        sources = stored.journal.sources(offsets, {name: mark for name, mark in marks.items() if mark}).joined(known)
        return {**offsets, **sources.as_dict(), JOURNAL: stored.id or ""}

    def _check_stream(self, stored: Stored, offset: Offset) -> None:
        """Refuse to continue in a stream other than the one read so far, or in a shorter one."""
        read, expected, end = _position(stored, offset), offset.get(JOURNAL), stored.end()
        if expected and stored.id is None:
            raise self._away()
        if expected is not None and (stored.id != expected or not end.covers(read)):
            raise PositionInvalid(
                f"This query has read journal {expected} up to {read}; here is {stored.id}, up to {end}",
                where=str(self._folder),
                next_step="Bring the right journal back, or run the view on a new folder",
            )
        check_there(stored, read)

    def _mark_before(self, partition: str, offset: int) -> DurableEnd | None:
        marks = (mark for mark in self._marks.get(partition, ()) if mark.offset <= offset)
        return max(marks, key=lambda mark: mark.offset, default=None)


def _position(stored: Stored, offset: Offset) -> Position:
    """The offset as a position in the stream, without the nodes' logs."""
    return Position.of({name: int(offset.get(name, 0)) for name in stored.logs})


def _least(one: Position, other: Position) -> Position:
    return Position.of({name: min(offset, other[name]) for name, offset in one.parts})


FORMAT = JOURNAL_FORMAT


class JournalSource(DataSource):
    """The journal as a data source of Spark.

    Options: `path` (a journal, or a folder of nodes with its merged stream), `start` (a position, or `begin`: the first
    event still present), `fields` (DDL), `columns` (from `CHOSEN`, separated by commas), `types` and `tags` (JSON
    lists: only events with one of them), `refused` (a folder: events that do not fit the fields go there, not to the
    query), `futureUsMax` (refuses events dated further beyond their append time) and `times` (a JSON list: fields under
    the same limit). For a batch read: `end` (a position). For a stream: `eventsPerBatchMax`, `stopAt` (a position),
    `pauseFile` (while the file exists, no new batch is planned), `pauseMs` (from a commit to the next plan),
    `barrierFile` (has a position: if the stream is before it, a batch ends there), `limitFile` (has the events of the
    next batch, at most `eventsPerBatchMax`); `start` applies to new queries only.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl(chosen_columns(self.options.get("columns")), self.options.get("fields"))

    def streamReader(self, schema: StructType) -> JournalStreamReader:
        """Called by Spark once per query, on the driver; the reader is shipped to the tasks."""
        return JournalStreamReader(schema, self.options)

    def reader(self, schema: StructType) -> JournalBatchReader:
        """Called by Spark for each execution, on the driver; the reader is shipped to the tasks."""
        return JournalBatchReader(schema, self.options)
