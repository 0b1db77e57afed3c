"""Dead letters: events that do not reach a view, stored with the reason.

| reason | |
|---|---|
| `malformed` | a message on Kafka that is no event, or not exactly one JSON object |
| `mismatch` | a payload that does not fit the declared fields (`journal.payload`) |
| `future-dated` | a time more than `future_s_max` beyond the append time; it would move the watermark there |

The verdict depends only on the event, its append time and the declaration, so a repeated batch refuses the same events.
Each dead letter is stored once:

1. The task that reads an event refuses it, before the view's function and so before any watermark sees its time. The
   task writes the refused events to files in `views/VIEW/refused/`, and fails if it cannot.
2. Spark commits the batch.
3. The driver inserts the letters of all files up to the batch's end into the table `dead_letters`, unless the table
   already has their key (view, partition, offset).
4. The driver deletes the files. A crash between two steps leaves files for the next pass; a start deletes files beyond
   the last commit, because their batch is run again.
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
from stateside.core.layout import DEAD_LETTERS, Layout
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
FILE_LETTERS_MAX: Final = 10_000  # about 10 MB; a task with more letters writes further files

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
        pa.field("event", pa.string()),  # as a line of JSON (`journal.json_lines`), or the value of a Kafka message
    ]
)
TABLE: Final = "dead_letters"
_STORED: Final = pa.schema([pa.field("view", pa.string(), nullable=False), *LETTERS])
_KEY: Final = ("view", "partition", "offset")
_NEVER: Final = 2**63 - 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Validator:
    """Refuses events in the tasks that read them, and writes refused events to `folder`."""

    folder: Path
    future_us_max: int | None  # None: no limit
    times: tuple[str, ...] = ()  # fields that feed a watermark (`watermarks`): the same limit applies

    def future(self, times: pa.Array, fields: pa.Table, appended: pa.Array) -> dict[int, str]:
        """The rows whose time, or a field in `times`, lies too far beyond the append time: row number to detail."""
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
    """The events that one task refuses: gathered, then written by `flush`, which must run before the task ends."""

    def __init__(self, validator: Validator) -> None:
        self.validator = validator
        self._letters: dict[str, list[dict[str, Any]]] = {}

    def add(self, letter: dict[str, Any]) -> None:
        """Add one letter with columns of LETTERS; missing columns are null."""
        letters = self._letters.setdefault(letter["partition"], [])
        letters.append(letter)
        if len(letters) >= FILE_LETTERS_MAX:
            self._write(letter["partition"], self._letters.pop(letter["partition"]))

    def add_events(self, partition: str, batch: pa.RecordBatch, offsets: Sequence[int], why: Sequence[_Why]) -> None:
        """Add events of the journal, with a reason and a detail each."""
        for event, line, offset, (reason, detail) in zip(*_lines(batch), offsets, why, strict=True):
            self.add(
                {"partition": partition, "offset": offset, "reason": reason, "detail": detail, "id": event.id}
                | {"entity": event.entity, "type": event.type, "time": event.time_us, "appended": event.appended_us}
                | {"event": line}
            )

    def flush(self) -> None:
        """Write the letters added since the last flush."""
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
        self.validator.folder.mkdir(exist_ok=True)  # no parents: a view folder that is away stays away
        write_atomically(self.validator.folder / name, output.getvalue().to_pybytes(), make_folder=False)


def _lines(batch: pa.RecordBatch) -> tuple[list[Event], list[str]]:
    """The events, and each as a line of JSON that can be stored, whatever was appended (`append_batch`).

    A payload that is no JSON object is kept as a text; half of a surrogate pair as its escape.
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
    """A mask of the events that pass the validator, None for all; the other events are added to the refusals.

    `fields` are the parsed fields of the payloads, `misfits` the rows whose payloads do not fit `fields`.
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
    """Inserts one view's refused events into the application's table (steps 3 and 4). Thread-safe."""

    def __init__(self, layout: Layout, view: str, checkpoint: Checkpoint) -> None:
        self._layout, self._view, self._checkpoint = layout, view, checkpoint
        self._places = layout.view(view)
        self._lock = threading.Lock()
        self._trouble: str | None = None

    def begin(self) -> None:
        """Before the query starts: store the letters of committed batches, delete the files of uncommitted ones."""
        committed = self._checkpoint.commits()[-1:]
        if committed:
            self.collect(committed[0])
        end = self._checkpoint.plan(committed[0]).position if committed else Position.start()
        with self._lock:
            for file in self._files(unfinished=True):
                if not file.lies_before(end):
                    file.path.unlink(missing_ok=True)

    def collect(self, batch: int) -> int:
        """Store the letters up to this committed batch; returns how many are new.

        While the table cannot be written, a warning is logged and the files wait for the next batch.
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
        for file in files:  # one at a time: a flood of bad events would not fit the driver's memory
            stored += self._store(table, file.read())
            file.path.unlink(missing_ok=True)
        opened = table.opened()
        opened.tidy()
        count = opened.read(["view"], pc.field("view") == self._view).num_rows
        DEAD_LETTERS.write(self._places.dead_letters, count)
        return stored

    def _table(self) -> ArchiveTable:
        from stateside.archive import ArchiveTable, TableSpec

        spec = TableSpec(TABLE, _STORED, sealed=False)
        table = ArchiveTable(self._layout.table(TABLE), spec, self._places.mark(TABLE))
        table.create(take_over=True)
        table.check_schema()
        return table

    def _store(self, table: ArchiveTable, letters: pa.Table) -> int:
        """Insert under the next counter value: the table recognises stored letters by their key."""
        name = f"{TABLE}/{self._view}"
        last = table.opened().counter(name)
        views = pa.array([self._view] * letters.num_rows)
        rows = letters.add_column(0, _STORED.field("view"), views).cast(_STORED)
        return table.insert_absent(rows, _KEY, name, 0 if last is None else last + 1)

    def _files(self, *, unfinished: bool = False) -> list[_File]:
        """The files of tasks; with `unfinished` also the half-written files of killed tasks."""
        try:
            paths = sorted(self._places.refused.iterdir())
        except FileNotFoundError:
            return []
        return [_File.of(path) for path in paths if path.suffix == ".arrow" or unfinished]


@dataclass(frozen=True, slots=True)
class _File:
    """A file written by a task: refused events of one partition."""

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
    """The dead letters of an application's folder, of one view or of all, in order of position.

    RequestInvalid in a folder whose table is billing's: billing has its own rules and command.
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
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _iso(time: Any) -> str:
    return str(time.isoformat()).replace("+00:00", "Z")
