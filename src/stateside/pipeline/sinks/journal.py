"""Journal sink: a query's rows become events again, for other queries to read.

Exactly-once protocol; a crash at any step, followed by a rerun of the same batch, changes nothing:

1. The rows become events with ids made of query, batch and key (see below): a rerun makes the same ids. A row that
   cannot be an event refuses the whole batch, before any event is stored.
2. The journal is opened, which repairs the leftovers of a crash. On the first batch the sink looks up the highest batch
   of this query in the journal. A batch with a higher number is new, if it is not the first one of this run; any other
   batch may be a rerun, or a leader paused inside the batch may be about to store it (`leadership`).
3. The mark beside the checkpoint must name the query that emits, and a position after which its events may lie: a
   journal end from before this batch's first append. The mark is written before the first append of a query, and
   advanced now and then, before the first append of a new batch.
4. The events are appended, in groups that fit into a frame each. If the batch may be a rerun, events whose ids are
   stored are skipped; if a rerun makes another event of a row, the stored event counts, with a warning in the log.
5. The caller lets Spark commit the batch. A crash before the commit repeats the batch, which then finds all its ids.

The steady state is step 4 alone, without a lookup: the number shows that a batch is new. An old position in the mark is
never wrong, only slower: all of a batch's events lie beyond every journal end from before its first append. So nothing
depends on what the query reads. The driver's lease ensures that one process at a time emits for a query.

Readers see a batch's events group by group. A query that reads the types it emits feeds itself without end: emit types
that the query does not read.

Columns of the rows:

column      type                  becomes
entity      string                the event's entity
type        string                the event's type
time        timestamp             the event's time
tags        array<string>         its tags; none if there is no such column, or a null
payload     string                its payload, a JSON object as text. Without such a column all others are the payload,
                                  a field each, in the JSON forms that `json_rows` lists

An event's id is QUERY/BATCH/KEY; the key is a digest of entity, type and time. Several rows of one key in a batch are
sorted by tags and payload and numbered: KEY, KEY.1, KEY.2. So a repeated batch makes the same ids whatever the row
order, and even if a payload differs slightly the second time (sums of floats do).
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from stateside.core.errors import (
    ArchiveInvalid,
    IdConflict,
    JournalLocked,
    OperatingError,
    SinkAway,
    SinkRefused,
    ViewInvalid,
)
from stateside.core.json_file import JsonFile
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal import Log, Writer, open_journal
from stateside.journal.columns import SCHEMA as EVENT_SCHEMA
from stateside.journal.contract import PARTITION
from stateside.journal.event import Event, fault
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step, inside
from stateside.spark_state.batch_log import Checkpoint

_NEEDED = ("entity", "type", "time")
_RESERVED = ("id", "appended")  # assigned by the journal
_ROW_CHARS_SHOWN_MAX = 300


def check_columns(view: str, schema: pa.Schema) -> None:
    """ViewInvalid, naming the column, unless rows of this schema can be events."""
    for name in _NEEDED:
        if name not in schema.names:
            raise _invalid(view, f"have no column {name!r}", f"Select one: events need {', '.join(_NEEDED)}")
    for field in schema:
        _check_type(view, field)
    others = [name for name in _payload_names(schema) if name != "payload"]
    if "payload" in schema.names and others:
        raise _invalid(
            view, f"have a payload and the column {others[0]!r} beside it", "Put it into the payload, or leave it out"
        )
    check_json(pa.schema([schema.field(name) for name in others]))


def events_of(rows: pa.Table, batch: BatchId) -> list[Event]:
    """The rows as events, in order of time; SinkRefused, naming the row, if one cannot be an event."""
    events = sorted((_checked(event) for event in _events(rows)), key=_order)
    numbers: defaultdict[str, int] = defaultdict(int)
    return [replace(event, id=_id(batch, event, numbers)) for event in events]


def batch_of(id_: str) -> int:
    """The batch number in an emitted event's id."""
    return int(id_.rsplit("/", 2)[1])


def _events(rows: pa.Table) -> Iterator[Event]:
    """The rows as events without ids."""
    times = rows["time"].cast(EVENT_SCHEMA.field("time").type).cast(pa.int64()).to_pylist()
    tags = rows["tags"].to_pylist() if "tags" in rows.schema.names else [None] * rows.num_rows
    columns = (rows["entity"].to_pylist(), rows["type"].to_pylist(), times, _payloads(rows), tags)
    for entity, type_, time_us, payload, given_tags in zip(*columns, strict=True):
        yield Event("-", entity, type_, time_us, payload, tuple(given_tags or ()))


def _payloads(rows: pa.Table) -> Sequence[Any]:
    if "payload" in rows.schema.names:
        return [_parsed(text) for text in rows["payload"].to_pylist()]
    names = _payload_names(rows.schema)
    return [json.loads(text) for text in json_texts(rows.select(names))] if names else [{}] * rows.num_rows


def _parsed(text: str | None) -> Any:
    """The parsed JSON; invalid JSON stays a text, which no event accepts as its payload."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _checked(event: Event) -> Event:
    reason = fault(event)
    if reason is None:
        return event
    shown = {"entity": event.entity, "type": event.type, "time_us": event.time_us, "payload": event.payload}
    raise SinkRefused(
        f"A row cannot be an event: {reason}. The row: {str(shown)[:_ROW_CHARS_SHOWN_MAX]}",
        next_step="Nothing of its batch was stored. Mend the view: leave such rows out, or make them events",
    )


def _order(event: Event) -> tuple[int, str, str, tuple[str, ...], str]:
    return event.time_us, event.entity, event.type, event.tags, json.dumps(event.payload, sort_keys=True)


def _id(batch: BatchId, event: Event, numbers: defaultdict[str, int]) -> str:
    key = blake2b(json.dumps([event.entity, event.type, event.time_us]).encode(), digest_size=16).hexdigest()
    number = numbers[key]
    numbers[key] += 1
    return f"{batch.query}/{batch.batch}/{key}" + (f".{number}" if number else "")


def _payload_names(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in (*_NEEDED, "tags")]


def _check_type(view: str, field: pa.Field) -> None:
    kind = field.type
    if field.name in _RESERVED:
        raise _invalid(
            view, f"have a column {field.name!r}, which the journal itself gives", "Leave it out, or rename it"
        )
    if field.name in ("entity", "type", "payload") and not (pt.is_string(kind) or pt.is_large_string(kind)):
        raise _invalid(view, f"have a column {field.name!r} of the type {kind}", "Cast it to a string")
    if field.name == "time" and not (pt.is_timestamp(kind) and kind.tz):
        raise _invalid(view, f"have a column 'time' of the type {kind}", "Cast it to a timestamp with a time zone")
    if field.name == "tags" and not (pt.is_list(kind) and pt.is_string(kind.value_type)):
        raise _invalid(view, f"have a column 'tags' of the type {kind}", "Make it an array of strings")


def _invalid(view: str, what: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(f"The rows of the view {view!r} cannot go into the journal: they {what}", next_step=next_step)


EVENTS_PER_APPEND_MAX = 2_000  # so that even the largest events fit into one frame
LOOK_EVENTS_MAX = 100_000  # the mark is advanced when it lies further before the journal's end
log = logging.getLogger(__name__)


def journal(*, on_step: OnStep = ignore_step) -> SinkFactory:
    """A sink that appends a query's rows to the application's journal, as events; columns as listed in the module."""

    @inside
    def opened(context: SinkContext) -> JournalSink:
        check_columns(context.view, context.schema)
        places = context.layout.view(context.view)
        log = open_journal(context.layout.journal).log()
        mark = MarkFile(places.mark("journal"), Checkpoint(Storage.at(places.checkpoint)), log)
        mark.begin()
        return JournalSink(context.layout, mark, on_step)

    return opened


@dataclass(frozen=True, slots=True)
class JournalMark:
    """The emitting query (None: none yet), its journal, and the position and batch from which its events may lie."""

    query: str | None = None
    journal: str | None = None
    since: int = 0
    batch: int = 0


_MARK = JsonFile("The mark of the journal sink", lambda document: JournalMark(**document))


@dataclass(frozen=True, slots=True)
class MarkFile:
    """The mark's file, beside the checkpoint of its query."""

    path: Path
    checkpoint: Checkpoint
    journal: Log

    def begin(self) -> None:
        """For a new query, record the journal's end: a query that has not begun has emitted nothing.

        ArchiveInvalid if another query has emitted before: a new query would emit every event a second time.
        """
        query, mark = self.checkpoint.query_id(), self.read()
        if mark.query is not None and mark.query != query:
            raise ArchiveInvalid(
                f"The query {mark.query} has emitted events into the journal, and its checkpoint is gone: "
                "to go on would emit the same events a second time",
                where=str(self.path.parent.parent),
                next_step=f"Nothing was emitted. Bring the checkpoint back, or delete {self.path} to emit all again",
            )
        if query is None:
            self.write(JournalMark(since=self.journal.end().one(), journal=self.journal.id()))

    def write(self, mark: JournalMark) -> None:
        """Write the mark durably."""
        _MARK.write(self.path, mark)

    def read(self) -> JournalMark:
        """The stored mark; without a file, an empty mark, so the whole journal is searched."""
        return _MARK.read(self.path) or JournalMark()

    def since(self, batch: int) -> Position:
        """The position before a batch's events: the mark's, if it fits this journal and batch, else the start."""
        mark = self.read()
        known = mark.journal == self.journal.id() and mark.since <= self.journal.end().one()
        return self.journal.in_stamps(Position.of({PARTITION: mark.since if known and batch >= mark.batch else 0}))

    def highest(self, query: str) -> int:
        """The highest batch of a query with events in the journal."""
        mark, end = self.read(), self.journal.end().one()
        found = mark.batch
        for _, events in self.journal.batches(self.since(mark.batch).one(), end):
            ids = events.column("id")
            for id_ in ids.filter(pc.starts_with(ids, f"{query}/")).to_pylist():
                found = max(found, batch_of(id_))
        return found


class JournalSink:
    """Appends batches to the journal, by the steps above."""

    def __init__(self, layout: Layout, mark: MarkFile, on_step: OnStep = ignore_step) -> None:
        self._folder = layout.journal
        self._mark = mark
        self._on_step = on_step
        self._writer: Writer | None = None
        self._query: str | None = None
        self._highest = -1  # the highest begun batch of that query

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Append the rows as events, unless they are stored."""
        if rows.num_rows:
            self._on_step(1)
            self._emit(events_of(rows, batch), batch)

    def __del__(self) -> None:
        self._close()  # the sink contract has no close: a collected sink releases its files

    def _emit(self, events: list[Event], batch: BatchId) -> None:
        with self._writing() as writer:
            self._on_step(2)
            new = self._begin(batch)
            self._on_step(3)
            self._note(batch.batch, writer, new)
            since = None if new else self._mark.since(batch.batch)
            for first in range(0, len(events), EVENTS_PER_APPEND_MAX):
                self._on_step(4)
                _append(writer, events[first : first + EVENTS_PER_APPEND_MAX], since)
            self._on_step(5)

    def _begin(self, batch: BatchId) -> bool:
        """Step 2: whether the batch is new. After this call the batch counts as begun, whatever its outcome."""
        if batch.query != self._query:
            self._highest = max(self._mark.highest(batch.query), batch.batch)
            self._query = batch.query
        new = batch.batch > self._highest
        self._highest = max(self._highest, batch.batch)
        return new

    def _note(self, batch: int, writer: Writer, new: bool) -> None:
        """Step 3: write the mark, or advance it."""
        mark = self._mark.read()
        if mark.query is None:
            since = self._mark.since(batch).one()
            self._mark.write(JournalMark(self._mark.checkpoint.query_id(), self._mark.journal.id(), since, mark.batch))
        elif new and writer.end.one() - mark.since >= LOOK_EVENTS_MAX:
            self._mark.write(JournalMark(mark.query, self._mark.journal.id(), writer.end.one(), batch))

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """The writer, reopened after any error; SinkAway if waiting or a repair helps."""
        try:
            self._writer = self._writer or open_journal(self._folder).writer()
            yield self._writer
        except (JournalLocked, OperatingError) as error:
            self._close()
            raise SinkAway(error.what, where=error.where, next_step=error.next_step) from error
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _append(writer: Writer, events: list[Event], since: Position | None) -> None:
    """Step 4, for one group; with `since`, some of the events may be stored."""
    if since is None:
        writer.append(events, compare_ids=False)  # ids contain the number of a new batch
        return
    try:
        writer.append_unstored(events, since=since)
    except IdConflict as conflict:
        log.warning("a rerun makes other events than those that are stored, which count: %s", conflict.what)
        others = [event for number, event in enumerate(events) if number not in conflict.events]
        _append(writer, others, since)
