"""Dead letters: events that do not reach a view, kept with the reason.

| reason | |
|---|---|
| `malformed` | a message on Kafka that is no event, or not exactly one JSON object |
| `mismatch` | a payload that does not fit the declared fields (`journal.payload`) |
| `future-dated` | a time more than `future_s_max` beyond the append time: it would move the watermark there |

Whether an event is one depends on the event, its append time and the declaration alone, so a batch that is run again
refuses the same ones. How each is stored once:

1. The task that reads an event refuses it, before the view's function and so before any watermark sees its time. The
   task writes what it refused to files in `views/VIEW/refused/`, and fails if it cannot.
2. Spark commits the batch.
3. The driver puts the letters of the files up to the batch's end into the table `dead_letters`, unless the table has
   their key (view, partition, offset) already.
4. It deletes the files. A crash between two steps leaves files for the next look; a start deletes those that lie
   beyond the last commit, as their batch is run again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import RequestInvalid, StatesideError
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import write_atomically
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.json_lines import fields_of
from stateside.journal.payload import mismatch
from stateside.spark_state.batch_log import Checkpoint

if TYPE_CHECKING:
    from stateside.archive import ArchiveTable

MALFORMED: Final = "malformed"
MISMATCH: Final = "mismatch"
FUTURE_DATED: Final = "future-dated"
FILE_LETTERS_MAX: Final = 10_000  # more of one task go into a second file: some 10 MB

_TIME: Final = pa.timestamp("us", tz="UTC")
LETTERS: Final = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        ("id", pa.string()),
        ("entity", pa.string()),
        ("type", pa.string()),
        ("time", _TIME),
        ("appended", _TIME),
        pa.field("event", pa.string()),  # as a line of JSON (`journal.lines`); of a message on Kafka its value
    ]
)
TABLE: Final = "dead_letters"
_STORED: Final = pa.schema([pa.field("view", pa.string(), nullable=False), *LETTERS])
_KEY: Final = ("view", "partition", "offset")
_NEVER: Final = 2**63 - 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Validator:
    """Refuses events in the tasks that read them; what is refused goes to the folder."""

    folder: Path
    future_us_max: int | None  # None: an event may lie as far in the future as it likes
    times: tuple[str, ...] = ()  # the fields that a watermark is made of (`watermarks`): they may not, either

    def future(self, times: pa.Array, fields: pa.Table, appended: pa.Array) -> dict[int, str]:
        """The rows whose time, or one of `times`, lies too far beyond their append time, by number; with the detail."""
        found: dict[int, str] = {}
        if self.future_us_max is None:
            return found
        named = {f"field {name!r}, ": fields[name].combine_chunks() for name in self.times}
        for name, column in {"time ": times, **named}.items():
            ahead = pc.subtract(column.cast(pa.int64()), appended.cast(pa.int64()))
            for row in pc.indices_nonzero(pc.greater(ahead, self.future_us_max)).to_pylist():
                found.setdefault(row, self._detail(name, column[row].as_py(), appended[row].as_py()))
        return found

    def _detail(self, name: str, time: Any, appended: Any) -> str:
        limit_s = (self.future_us_max or 0) / 1_000_000
        ends = "," if name.endswith(", ") else ""
        return f"the {name}{_iso(time)}{ends} lies more than {limit_s:g} s beyond the append at {_iso(appended)}"


class Refusals:
    """What one task refuses: gathered, and written by `flush`, which must come before the task ends."""

    def __init__(self, validator: Validator) -> None:
        self.validator = validator
        self._letters: dict[str, list[dict[str, Any]]] = {}

    def add(self, letter: dict[str, Any]) -> None:
        """One letter, with the columns of LETTERS; those that are missing are null."""
        letters = self._letters.setdefault(letter["partition"], [])
        letters.append(letter)
        if len(letters) >= FILE_LETTERS_MAX:
            self._write(letter["partition"], self._letters.pop(letter["partition"]))

    def add_events(self, partition: str, batch: pa.RecordBatch, offsets: Sequence[int], why: Sequence[_Why]) -> None:
        """Events of the journal, with a reason and a detail each."""
        for event, line, offset, (reason, detail) in zip(*_lines(batch), offsets, why, strict=True):
            self.add(
                {"partition": partition, "offset": offset, "reason": reason, "detail": detail, "id": event.id}
                | {"entity": event.entity, "type": event.type, "time": event.time_us, "appended": event.appended_us}
                | {"event": line}
            )

    def flush(self) -> None:
        """Write what was refused since the last time."""
        for partition, letters in self._letters.items():
            self._write(partition, letters)
        self._letters = {}

    def _write(self, partition: str, letters: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(letters, LETTERS)
        offsets = [letter["offset"] for letter in letters]
        output = pa.BufferOutputStream()
        with pa.ipc.new_file(output, LETTERS) as writer:
            writer.write_table(table)
        name = f"{quote(partition, safe='')}.{min(offsets):020d}-{max(offsets):020d}.arrow"
        self.validator.folder.mkdir(exist_ok=True)  # in the view's folder: one that is away is not begun again
        write_atomically(self.validator.folder / name, output.getvalue().to_pybytes(), make_folder=False)


def _lines(batch: pa.RecordBatch) -> tuple[list[Event], list[str]]:
    """The events, and each as a line of JSON that can be stored, whatever was appended (`append_batch`).

    A payload that is no JSON object stands there as a text; half of a surrogate pair, as its escape.
    """
    payloads: list[str] = batch.column("payload").to_pylist()
    others = {row: text for row, text in enumerate(payloads) if not is_object(text)}
    objects = pa.array(["{}" if row in others else text for row, text in enumerate(payloads)], pa.string())
    at = batch.schema.get_field_index("payload")
    events = list(decode(batch.set_column(at, batch.schema.field(at), objects)))
    fields = [
        fields_of(event) | ({"payload": others[row]} if row in others else {}) for row, event in enumerate(events)
    ]
    return events, [json.dumps(each, ensure_ascii=False).encode(errors="backslashreplace").decode() for each in fields]


_Why = tuple[str, str]


def passed(
    refusals: Refusals,
    partition: str,
    offsets: pa.Array,
    batch: pa.RecordBatch,
    misfits: Sequence[int],
    fields: pa.Table,
) -> pa.Array | None:
    """Which events of a batch pass the validator, None for all; the others are added to the refusals.

    `fields` are those of their payloads, `misfits` the rows whose payloads do not fit them.
    """
    future = refusals.validator.future(batch.column("time"), fields, batch.column("appended"))
    refused = sorted({*misfits, *future})
    if not refused:
        return None
    rows = batch.take(pa.array(refused))
    unfit = set(misfits)
    why = [
        (MISMATCH, mismatch(payload, fields.schema)) if row in unfit else (FUTURE_DATED, future[row])
        for row, payload in zip(refused, rows.column("payload").to_pylist(), strict=True)
    ]
    refusals.add_events(partition, rows, offsets.take(pa.array(refused)).to_pylist(), why)
    mask = np.ones(batch.num_rows, np.bool_)
    mask[refused] = False
    return pa.array(mask)


class DeadLetters:
    """Puts one view's refused events into the application's table (steps 3 and 4). Threads may share it."""

    def __init__(self, layout: Layout, view: str, checkpoint: Checkpoint) -> None:
        self._layout, self._view, self._checkpoint = layout, view, checkpoint
        self._places = layout.view(view)
        self._lock = threading.Lock()
        self._trouble: str | None = None

    def begin(self) -> None:
        """Before the query starts: store what its committed batches refused, drop what others did."""
        committed = self._checkpoint.commits()[-1:]
        if committed:
            self.collect(committed[0])
        end = self._checkpoint.plan(committed[0]).position if committed else Position.start()
        with self._lock:
            for file in self._files(unfinished=True):
                if not file.lies_before(end):
                    file.path.unlink(missing_ok=True)

    def collect(self, batch: int) -> int:
        """Store what was refused up to this batch, which is committed; returns how many letters are new.

        Where the table cannot be written, the log is told, and the files wait for the next batch.
        """
        with self._lock:
            if not self._files():
                return 0
            from deltalake.exceptions import DeltaError

            try:
                stored = self._collect(batch)
            except (StatesideError, DeltaError, OSError) as error:
                if str(error) != self._trouble:
                    log.warning("view %s: its dead letters cannot be stored for now: %s", self._view, error)
                self._trouble = str(error)
                return 0
            self._trouble = None
            return stored

    def _collect(self, batch: int) -> int:
        end = self._checkpoint.plan(batch).position
        files = [file for file in self._files() if file.lies_before(end)]
        if not files:
            return 0
        table = self._table()
        stored = 0
        for file in files:  # one at a time: a flood of bad events fits no driver's memory
            stored += self._store(table, file.read())
            file.path.unlink(missing_ok=True)
        opened = table.opened()
        opened.tidy()
        count = opened.read(["view"], pc.field("view") == self._view).num_rows
        write_atomically(self._places.dead_letters, json.dumps({"count": count}).encode())
        return stored

    def _table(self) -> ArchiveTable:
        from stateside.archive import ArchiveTable, TableSpec

        spec = TableSpec(TABLE, _STORED, sealed=False)
        table = ArchiveTable(self._layout.table(TABLE), spec, self._places.mark(TABLE))
        table.create(take_over=True)
        table.check_schema()
        return table

    def _store(self, table: ArchiveTable, letters: pa.Table) -> int:
        """Each insertion has the next number: what the table has already is known by its key."""
        name = f"{TABLE}/{self._view}"
        last = table.opened().counter(name)
        views = pa.array([self._view] * letters.num_rows)
        rows = letters.add_column(0, _STORED.field("view"), views).cast(_STORED)
        return table.insert_absent(rows, _KEY, name, 0 if last is None else last + 1)

    def _files(self, *, unfinished: bool = False) -> list[_File]:
        """What tasks have written; with `unfinished` also what killed ones left half-written."""
        try:
            paths = sorted(self._places.refused.iterdir())
        except FileNotFoundError:
            return []
        return [_File.of(path) for path in paths if path.suffix == ".arrow" or unfinished]


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a task wrote: refused events of one partition."""

    path: Path
    partition: str
    last: int

    @classmethod
    def of(cls, path: Path) -> _File:
        if path.suffix != ".arrow":
            return cls(path, "", _NEVER)
        partition, _, offsets = path.name.removesuffix(".arrow").rpartition(".")
        return cls(path, unquote(partition), int(offsets.partition("-")[2]))

    def lies_before(self, end: Position) -> bool:
        return self.last < end[self.partition]

    def read(self) -> pa.Table:
        return pa.ipc.open_file(self.path.read_bytes()).read_all()


def stored_letters(layout: Layout, view: str | None = None) -> Iterator[dict[str, Any]]:
    """The dead letters of an application's folder, of one view or of all, in the order of their positions.

    RequestInvalid in a folder whose table is billing's, which has rules and a command of its own.
    """
    from deltalake import DeltaTable

    path = layout.table(TABLE)
    if not DeltaTable.is_deltatable(str(path)):
        return
    table = DeltaTable(path).to_pyarrow_table()
    if "view" not in table.column_names:
        raise RequestInvalid(
            "The dead letters of this folder are billing's",
            where=str(path),
            next_step="List them with `stateside billing dead-letters list`",
        )
    if view is not None:
        table = table.filter(pc.equal(table["view"], view))
    yield from table.sort_by([("partition", "ascending"), ("offset", "ascending"), ("view", "ascending")]).to_pylist()


def is_object(text: str) -> bool:
    """Whether the text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _iso(time: Any) -> str:
    return str(time.isoformat()).replace("+00:00", "Z")
