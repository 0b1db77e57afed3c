"""The short way to rows: whole keys, at the newest batch, in a view without an archive, all rows of which are for who
asks. Most questions are of this kind, so they are answered with as little as can be, and never wait.

What it says is to the byte what `lookup` says of the same keys (`tests/serving/web/test_short_way.py`). Whatever is not
so simple, errors included, it leaves to the long way.

Rows kept as answers show them, from one answer to the next, and always of the newest batch.

They are kept by the name that a key is asked for by, its parts with slashes between them: a table and not two, since
among many rows each further look at memory is what takes the time. When the replica moves on, the keys that its new
batches stored are let go, by what its history has of them (`changes`); the others' rows are as they were. Where the
history does not reach back, or says too much, all of them are let go.

Memory: `KEPT_BYTES_MAX` for each view and worker process, about; beyond that the older half goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import methodcaller
from typing import Any, Final

import orjson

from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.changes import touched
from stateside.replica.keys import NO_KEY
from stateside.replica.replica_reader import ReusedSnapshot
from stateside.replica.snapshot import Snapshot
from stateside.serving.rows.lookup import KEYS_AT_ONCE_MAX, KEYS_MAX
from stateside.serving.rows.scope import check_held
from stateside.serving.rows.values import WHOLE
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.stamp import Stamp
from stateside.spark_state.types import Primitive

KEPT_BYTES_MAX: Final = 64 << 20
NAME_CHARS_MAX: Final = 256  # longer names, and longer rows, are not kept
ROW_BYTES_MAX: Final = 4_096
TOUCHED_BYTES_MAX: Final = 512 << 10  # of history: read in a millisecond, while nothing else is answered
_OVERHEAD_BYTES: Final = 400  # of a row in memory, beside its own bytes: three objects and their places in two tables


class RowCache:
    """The rows of one view, by name."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._place: object = None
        self._batch: AppliedBatch | None = None
        self._names: dict[bytes, str] = {}  # of the keys that are kept: the first that each was asked for by
        self.rows: dict[str, bytes] = {}

    def move(self, snapshot: Snapshot, batch: AppliedBatch) -> None:
        """Be of this snapshot from now on, which stands at this batch."""
        if self._place is not snapshot.place:
            self._let_go(None)
        elif self._batch is not None and batch != self._batch:
            self._let_go(touched(snapshot, self._batch, TOUCHED_BYTES_MAX))
        self._place, self._batch = snapshot.place, batch

    def keep(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Keep these names' rows, whose keys are in the middle."""
        for name, key, row in rows:
            if len(name) <= NAME_CHARS_MAX and len(row) <= ROW_BYTES_MAX and self._names.setdefault(key, name) == name:
                self._bytes += 0 if name in self.rows else len(row) + _OVERHEAD_BYTES
                self.rows[name] = row
        if self._bytes > self._bytes_max:
            for key, name in list(islice(self._names.items(), len(self._names) // 2)):
                self._drop(key, name)

    def _let_go(self, keys: Iterator[bytes] | None) -> None:
        if keys is None:
            self.rows.clear()
            self._names.clear()
            self._bytes = 0
            return
        for key in keys:
            name = self._names.get(key)
            if name is not None:
                self._drop(key, name)

    def _drop(self, key: bytes, name: str) -> None:
        del self._names[key]
        self._bytes -= len(self.rows.pop(name)) + _OVERHEAD_BYTES


_AGE: Final = b'"age_ms":0,'
_END: Final = b'],"cursor":null}'
_NO_ROW: Final = b"null"
_SLASHES: Final = methodcaller("count", "/")


class StampText:
    """The stamp of a batch, with its headers and its text around the age: the same for all answers of the batch."""

    __slots__ = ("batch", "behind_age", "headers", "heard", "place", "stamp", "up_to_age")

    def __init__(self, snapshot: Snapshot, batch: AppliedBatch, stamp: Stamp) -> None:
        self.place, self.batch, self.heard = snapshot.place, batch, stamp.age_basis == "heartbeat"
        self.stamp = replace(stamp, age_ms=0)
        *others, (age, _) = [("content-type", "application/json"), *self.stamp.headers()]
        lines = "".join(f"{name}: {value}\r\n" for name, value in others)
        self.headers = f"{lines}{age}: ".encode("latin-1")
        before, _, behind = orjson.dumps({"stamp": self.stamp.as_dict()}).partition(_AGE)
        self.up_to_age, self.behind_age = before + _AGE[:-2], _AGE[-1:] + behind[:-1] + b',"rows":['

    def is_of(self, snapshot: Snapshot, batch: AppliedBatch | None, heard: bool) -> bool:
        """Whether it is what this snapshot's stamp would be; of a replica that was rebuilt that has another name."""
        return self.batch is batch and self.heard is heard and self.place is snapshot.place


Found = tuple[StampText, int, bytes]  # what it is an answer of, its age in ms, and its JSON


class PointReader:
    """Finds the rows of whole keys of one view. None, or an error, is for whatever the long way has to answer."""

    def __init__(self, reader: ViewReader) -> None:
        self.reader, self._shape = reader, reader.shape
        self._parts = len(self._shape.key_texts.parts)  # of a whole key
        self._whole = [type_ for _, type_ in self._shape.key_parts] in [[Primitive(name)] for name in WHOLE]
        self.moment = ReusedSnapshot(reader.replica)
        self._kept = RowCache()
        self._snapshot: Snapshot | None = None  # of which is what follows
        self._told: StampText | None = None
        self._since_us = 0

    def find(self, name: str) -> Found | None:
        """The answer for one key, named as in an address: its parts with slashes between them."""
        told = self._look()
        if told is None:
            return None
        row = self._kept.rows.get(name)
        if row is None:
            texts = name.split("/")
            if len(texts) != self._parts:
                return None
            key = self._shape.codec.encode(self._shape.key_texts.parse(texts)) or NO_KEY
            row = self._read([name], [key], told).get(name, b"")
        return self._answer(told, row)

    def find_all(self, body: bytes) -> Found | None:
        """The answer for the keys in a lookup's body, in their order."""
        document = orjson.loads(body)
        given = document.get("keys") if isinstance(document, dict) and len(document) == 1 else None
        if not isinstance(given, list) or not 0 < len(given) <= KEYS_MAX:
            return None
        names, told = self._names(given), self._look()
        if names is None or told is None:
            return None
        rows = list(map(self._kept.rows.get, names))
        if None in rows:
            missing = {name: key for name, key, row in zip(names, given, rows, strict=True) if row is None}
            if len(missing) > KEYS_AT_ONCE_MAX:
                return None
            keys = self._shape.codec.encode_all(self._shape.json_keys.parse_all(list(missing.values())))
            read = self._read(list(missing), keys, told)
            rows = [read.get(name, _NO_ROW) if row is None else row for name, row in zip(names, rows, strict=True)]
        return self._answer(told, b",".join(rows))  # type: ignore[arg-type]  # there is no None any more

    def _names(self, given: Sequence[Any]) -> Sequence[str] | None:
        """What keys in JSON would be called in an address; None if that would not mean the same."""
        types = set(map(type, given))
        if types == {list} and set(map(type, chain.from_iterable(given))) == {str}:
            names = list(map("/".join, given))
        elif types == {str} or (types == {int} and self._whole):
            names = given if types == {str} else list(map(str, given))  # type: ignore[assignment]
        else:
            return None
        return names if set(map(_SLASHES, names)) == {self._parts - 1} else None

    def _read(self, names: Sequence[str], keys: Sequence[bytes], told: StampText) -> dict[str, bytes]:
        """The rows of these keys as they are shown, by name, out of the replica; of those that there are."""
        assert self._snapshot is not None
        for key in keys if told.stamp.share is not None else ():
            check_held(told.stamp, self._shape.codec, key)
        shape, stored = self._shape, self._snapshot.get_all(keys)
        there = [each for each in zip(names, keys, stored, strict=True) if each[2] is not None]
        if not there:
            return {}
        named, found, rows = zip(*there, strict=True)
        values = shape.values_of_all([shape.codec.decode(key) for key in found], rows)
        shown = list(map(orjson.dumps, shape.columns.shown.all(values)))
        self._kept.keep(zip(named, found, shown, strict=True))
        return dict(zip(named, shown, strict=True))

    def _answer(self, told: StampText, rows: bytes) -> Found:
        age_ms = max(0, (self.reader.clock.now_us() - self._since_us) // 1_000)
        return told, age_ms, b"%b%d%b%b%b" % (told.up_to_age, age_ms, told.behind_age, rows, _END)

    def _look(self) -> StampText | None:
        """Be at the newest batch; what answers are answers of."""
        snapshot = self.moment.snapshot()
        if snapshot is not self._snapshot:
            self._move(snapshot)
        return self._told

    def _move(self, snapshot: Snapshot) -> None:
        self._snapshot = None  # should it fail, the next answer begins here again
        batch, fresh_us = snapshot.batch(), snapshot.fresh_us()
        if self._told is None or not self._told.is_of(snapshot, batch, fresh_us is not None):
            stamp = self.reader.stamp_of(snapshot)
            self._told = None if stamp is None or batch is None else StampText(snapshot, batch, stamp)
        if batch is not None:
            self._kept.move(snapshot, batch)
            self._since_us = batch.committed_us if fresh_us is None else fresh_us
        self._snapshot = snapshot
