"""Views as readers see them: rows by key out of a replica, in one snapshot, with the stamp of that snapshot."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.unsafe_row import Value
from stateside.checkpoint.variable_catalogue import completed, value_decoder
from stateside.clock import Clock, SystemClock
from stateside.errors import KeyInvalid, NotFreshEnough, ViewUnknown
from stateside.layout import Layout, ViewLayout
from stateside.positions import Position
from stateside.replica.keys import KeyCodec
from stateside.replica.store import ReplicaReader, Snapshot
from stateside.serving.stamp import Stamp, iso_time, parse_time
from stateside.storage import Storage

WAIT_MS_DEFAULT = 5_000
WAIT_MS_MAX = 30_000
ROWS_MAX = 10_000
_POLL_S = 0.01
_FIRST_DAY = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Floor:
    """What the reader asks for at least: events up to a position, an age at most, and how long it would wait for it."""

    min_position: Position | None = None
    max_age_ms: int | None = None
    wait_ms: int = WAIT_MS_DEFAULT

    def missing(self, stamp: Stamp) -> str | None:
        """What the stamp lacks, if anything."""
        if self.min_position and not stamp.position.covers(self.min_position):
            return f"it stands at position {stamp.position}, {self.min_position} was asked for"
        if self.max_age_ms is not None and stamp.age_ms > self.max_age_ms:
            return f"it is {stamp.age_ms} ms old, {self.max_age_ms} ms were asked for at most"
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, objects by column name, and the stamp of the snapshot that they come from."""

    stamp: Stamp
    rows: list[dict[str, Any]]


class ViewReader:
    """Reads one view's replica."""

    def __init__(self, layout: ViewLayout, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        storage = Storage.at(layout.checkpoint)
        self.catalogue = completed(Catalogue.load(layout.catalogue), storage)
        self._codec = KeyCodec([column.type for column in self.catalogue.key])
        self._decoder = value_decoder(self.catalogue, storage)
        self._replica = ReplicaReader(layout.replica)  # last: nothing after it may fail and leave it open

    def close(self) -> None:
        """Let the replica go."""
        self._replica.close()

    async def rows(self, key: Sequence[Value], floor: Floor | None = None) -> Answer:
        """The rows whose key begins with these values; waits for the floor, then NotFreshEnough. Never less."""
        floor = floor or Floor()
        deadline = time.monotonic() + floor.wait_ms / 1_000
        prefix = self._codec.encode(key)
        while True:
            found = self._read(prefix, floor)
            if isinstance(found, Answer):
                return found
            if time.monotonic() >= deadline:
                raise NotFreshEnough(
                    f"The view {self.catalogue.view!r} is not fresh enough: {found}",
                    next_step="Ask again, wait longer (wait_ms), or ask for less; see whether the pipeline runs",
                )
            await asyncio.sleep(_POLL_S)

    def parse_key(self, parts: Sequence[str]) -> list[Value]:
        """The key's values from their texts; KeyInvalid if there are too many, or one is not of its column's type."""
        columns = self.catalogue.key
        if len(parts) > len(columns):
            raise KeyInvalid(
                f"The key has {len(parts)} parts, the key of {self.catalogue.view!r} has {len(columns)}",
                next_step=f"Its parts are: {', '.join(f'{column.name} ({column.type})' for column in columns)}",
            )
        return [_parse(column.name, column.type, part) for column, part in zip(columns, parts, strict=False)]

    def _read(self, prefix: bytes, floor: Floor) -> Answer | str:
        """The answer, or what it lacks; rows are only read for an answer that lacks nothing."""
        with self._replica.snapshot() as snapshot:
            stamp = self._stamp(snapshot)
            missing = "it has no batch yet" if stamp is None else floor.missing(stamp)
            if stamp is not None and missing is None:
                return Answer(stamp, self._rows(snapshot, prefix))
            trouble = snapshot.trouble()
            return f"{missing}. Its replica does not move: {trouble}" if trouble else f"{missing}"

    def _rows(self, snapshot: Snapshot, prefix: bytes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for key, row in snapshot.range(prefix):
            if len(rows) == ROWS_MAX:
                raise KeyInvalid(f"More than {ROWS_MAX} rows begin with this key", next_step="Give more of its parts")
            rows.append(self._row(key, row))
        return rows

    def _row(self, key: bytes, row: bytes) -> dict[str, Any]:
        keys, values = self._codec.decode(key), self._decoder.decode(row)
        rendered = {c.name: _render(c.type, value) for c, value in zip(self.catalogue.key, keys, strict=True)}
        return rendered | {c.name: _render(c.type, values[c.index]) for c in self.catalogue.columns}

    def _stamp(self, snapshot: Snapshot) -> Stamp | None:
        batch, fresh_us = snapshot.batch(), snapshot.fresh_us()
        if batch is None:
            return None
        since_us = batch.committed_us if fresh_us is None else fresh_us
        return Stamp(
            view=self.catalogue.view,
            batch=batch.batch,
            position=batch.position,
            watermark_us=batch.watermark_us,
            committed_us=batch.committed_us,
            age_ms=max(0, (self._clock.now_us() - since_us) // 1_000),
            age_basis="commit" if fresh_us is None else "heartbeat",
            replica=snapshot.replica(),
        )


class Views:
    """All views of an application's folder; a view appears as soon as it has a catalogue and a replica."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._readers: dict[str, ViewReader] = {}

    def names(self) -> list[str]:
        """The views that have been run in this folder."""
        return [view.name for view in self._layout.views()]

    def get(self, name: str) -> ViewReader:
        """The reader of a view; ViewUnknown if there is none of that name, NotFreshEnough before its first batch."""
        if name not in self._readers:
            self._readers[name] = self._open(name)
        return self._readers[name]

    def _open(self, name: str) -> ViewReader:
        if name not in self.names():
            raise ViewUnknown(
                f"There is no view {name[:80]!r} here",
                next_step=f"Views served: {', '.join(self.names()) or 'none yet'}",
            )
        try:
            return ViewReader(self._layout.view(name))
        except FileNotFoundError:
            raise NotFreshEnough(f"The view {name!r} has no batch yet", next_step="Ask again in a moment") from None


_PARSERS: dict[str, Callable[[str], Value]] = {
    "string": str,
    "boolean": lambda text: {"true": True, "false": False}[text],
    "float": float,
    "double": float,
    "date": lambda text: (date.fromisoformat(text) - _FIRST_DAY).days,
    "timestamp": parse_time,
    "timestamp_ntz": parse_time,
    "binary": lambda text: base64.urlsafe_b64decode(text),
}


def _parse(name: str, type_: str, text: str) -> Value:
    try:
        return _PARSERS.get(type_, int)(text)
    except (ValueError, KeyError):
        raise KeyInvalid(f"{text[:80]!r} is no {type_}, which the key's part {name!r} is") from None


def _render(type_: str, value: Value) -> Any:
    """A value as JSON has it: times as ISO 8601, bytes as base64, the rest as it is."""
    if value is None:
        return None
    if type_ in {"timestamp", "timestamp_ntz"}:
        assert isinstance(value, int)
        return iso_time(value) if type_ == "timestamp" else iso_time(value).removesuffix("Z")
    if type_ == "date":
        assert isinstance(value, int)
        return (_FIRST_DAY + timedelta(days=value)).isoformat()
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).decode()
    return value
