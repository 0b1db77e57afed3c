"""The fast path: request bytes in, answer bytes out, for the most frequent queries. Without it, no answer changes.

    GET /v1/views/{view}/rows/{key...}    with a whole key
    POST /v1/views/{view}/lookup          with whole keys

without parameters, from a principal that may read all rows, of a view without an archive, at the newest batch. The fast
path does as little as possible, in the connection itself, and never waits. The answer equals, byte for byte, that of
the full path through parser, application and routes (`tests/serving/web/test_fast_path.py`). All other requests, and
all errors, are left to the full path. So is every head that is not plain: with a header outside the lists below, a
repeated or folded header, a connection to be closed, a transfer coding, a precondition, a cookie; and with a header
that names the requesting page's site, as such a request may be refused (`access.browser_session`). Most clients send
plain heads, with the same lines at every request of a connection.

A cache keeps rendered rows of the newest batch between answers, by the name of the key as in a URL: its parts joined
with slashes. One table serves instead of two, since among many rows each further memory access dominates the time. When
the replica moves on, the keys that new batches stored leave the cache, by the replica's history (`replica.changes`);
all other rows are unchanged. If the history does not reach back, or exceeds `TOUCHED_BYTES_MAX`, the whole cache is
dropped.

Memory: about `KEPT_BYTES_MAX` for each view and worker process; beyond the limit the older half is dropped.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import partial
from itertools import chain, islice
from operator import methodcaller
from typing import Any, Final
from urllib.parse import unquote

import orjson

from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.changes import touched
from stateside.replica.keys import NO_KEY
from stateside.replica.replica_reader import MOMENT_S, ReusedSnapshot
from stateside.replica.snapshot import Snapshot
from stateside.serving.access.guard import Guard
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.principal import Principal
from stateside.serving.health.logs import answered_with
from stateside.serving.health.metrics import Metrics
from stateside.serving.rows.relation import check_held
from stateside.serving.rows.row_query import KEYS_AT_ONCE_MAX, KEYS_MAX
from stateside.serving.rows.values import WHOLE
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.stamp import Stamp
from stateside.serving.web.head import HOST
from stateside.serving.web.request import PATH_CHARS_MAX, reaches_all
from stateside.serving.web.response import etag
from stateside.spark_state.types import Primitive

ROW: Final = "/v1/views/{view}/rows/{key...}"
LOOKUP: Final = "/v1/views/{view}/lookup"
_GET: Final = re.compile(rb"GET (/v1/views/([\w.-]+)/rows/([!-\"$->@-~]+)) HTTP/1\.1\r\n", re.ASCII)
_POST: Final = re.compile(rb"POST /v1/views/([\w.-]+)/lookup HTTP/1\.1\r\n", re.ASCII)
_SECURITY: Final = "".join(f"{name}: {value}\r\n" for name, value in security_headers("application/json"))
_LINE: Final = re.compile(rb"([A-Za-z-]+):[ \t]*([!-~](?:[ -~]*[!-~])?|)[ \t]*")
_WITHOUT_EFFECT: Final = frozenset(
    {
        b"user-agent",
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"cache-control",
        b"content-type",
        b"pragma",
        b"referer",
        b"tracestate",
    }
)
_TAKEN: Final = frozenset({b"authorization", b"connection", b"content-length", b"host", b"traceparent"})
_DIGITS_MAX: Final = 9
LINES_BYTES_MAX: Final = 8 * 1024  # of the header lines that an idle connection keeps
END: Final = b"\r\n\r\n"
KEPT_BYTES_MAX: Final = 64 << 20
NAME_CHARS_MAX: Final = 256  # longer names, and longer rows, are not cached
ROW_BYTES_MAX: Final = 4_096
TOUCHED_BYTES_MAX: Final = 512 << 10  # of history: read in 1 ms, during which nothing else is answered
_OVERHEAD_BYTES: Final = 400  # per row beside its own bytes: three objects and their entries in two tables
_AGE: Final = b'"age_ms":0,'
_ROWS_END: Final = b'],"cursor":null}'
_NO_ROW: Final = b"null"
_SLASHES: Final = methodcaller("count", "/")


@dataclass(frozen=True, slots=True)
class Head:
    """The parts of a head that an answer depends on, beside the address."""

    host: str
    authorization: str | None
    traceparent: str | None
    body_bytes: int

    @classmethod
    def parse(cls, lines: bytes) -> Head | None:
        """Parses header lines (without the request line, with the final blank line); None if the head is not plain."""
        found: dict[bytes, str] = {}
        for line in lines.removesuffix(END).split(b"\r\n"):
            match = _LINE.fullmatch(line)
            name = b"" if match is None else match[1].lower()
            if match is None or name in found or not (name in _WITHOUT_EFFECT or name in _TAKEN):
                return None
            found[name] = match[2].decode("ascii")
        length = found.get(b"content-length", "0")
        host = found.get(b"host")
        plain = length.isdigit() and len(length) <= _DIGITS_MAX
        if host is None or not plain or found.get(b"connection", "keep-alive").lower() != "keep-alive":
            return None
        if not HOST.fullmatch(host.encode("ascii")):
            return None
        return cls(host, found.get(b"authorization"), found.get(b"traceparent"), int(length))


class Peer:
    """The other end of a connection: its address, and the request head it sent last."""

    __slots__ = ("_head", "_lines", "address")

    def __init__(self, address: str) -> None:
        self.address = address
        self._lines = b""
        self._head: Head | None = None

    def head(self, lines: bytes) -> Head | None:
        """Parses header lines; repeated lines, the usual case, are not parsed again; None also if too long to keep."""
        if lines != self._lines:
            if len(lines) > LINES_BYTES_MAX:
                return None
            self._lines, self._head = lines, Head.parse(lines)
        return self._head


class RowCache:
    """The cached rows of one view, by name."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._place: object = None
        self._batch: AppliedBatch | None = None
        self._names: dict[bytes, str] = {}  # by cached key: the first name that a client used for the key
        self.rows: dict[str, bytes] = {}

    def move(self, snapshot: Snapshot, batch: AppliedBatch) -> None:
        """Move the cache to a snapshot at this batch: drop changed rows."""
        if self._place is not snapshot.place:
            self._let_go(None)
        elif self._batch is not None and batch != self._batch:
            self._let_go(touched(snapshot, self._batch, TOUCHED_BYTES_MAX))
        self._place, self._batch = snapshot.place, batch

    def keep(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Cache rows, given as (name, key, row)."""
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


class StampText:
    """A batch's stamp as header and body text around the age: the same for all answers of the batch."""

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
        """Whether this is the snapshot's stamp; a rebuilt replica has another `place`."""
        return self.batch is batch and self.heard is heard and self.place is snapshot.place


Found = tuple[StampText, int, bytes]  # stamp, age in ms, JSON body


class PointReader:
    """Finds the rows of whole keys of one view. Returns None, or raises, where the full path has to answer."""

    def __init__(self, reader: ViewReader) -> None:
        self.reader, self._shape = reader, reader.shape
        self._parts = len(self._shape.key_texts.parts)  # in a whole key
        self._whole = [type_ for _, type_ in self._shape.key_parts] in [[Primitive(name)] for name in WHOLE]
        self._moment = ReusedSnapshot(reader.replica)
        self._newest = False  # whether this turn of the event loop has checked that the snapshot is the newest
        self._release: asyncio.TimerHandle | None = None
        self._kept = RowCache()
        self._snapshot: Snapshot | None = None  # of `_told` and `_since_us`
        self._told: StampText | None = None
        self._since_us = 0

    def find(self, name: str) -> Found | None:
        """The answer for one key, named as in a URL: its parts joined with slashes."""
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
        """The names of JSON keys as in a URL; None if a name would mean another key."""
        types = set(map(type, given))
        if types == {list} and set(map(type, chain.from_iterable(given))) == {str}:
            names = list(map("/".join, given))
        elif types == {str} or (types == {int} and self._whole):
            names = given if types == {str} else list(map(str, given))  # type: ignore[assignment]
        else:
            return None
        return names if set(map(_SLASHES, names)) == {self._parts - 1} else None

    def _read(self, names: Sequence[str], keys: Sequence[bytes], told: StampText) -> dict[str, bytes]:
        """The rendered rows of these keys from the replica, by name; absent keys are left out."""
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
        return told, age_ms, b"%b%d%b%b%b" % (told.up_to_age, age_ms, told.behind_age, rows, _ROWS_END)

    def turn_over(self) -> None:
        """Make the next answer check that the snapshot is the newest."""
        self._newest = False

    def release(self) -> None:
        """Release the snapshot: the next answer takes another one."""
        if self._release is not None:
            self._release.cancel()
        self._newest, self._release = False, None
        self._moment.release()

    def _look(self) -> StampText | None:
        """Move to the newest batch, and return its stamp."""
        if not self._newest:
            snapshot = self._moment.snapshot()
            if snapshot is not self._snapshot:
                self._move(snapshot)
            self._newest = True
            if self._release is None:
                self._release = asyncio.get_running_loop().call_later(MOMENT_S, self.release)
        return self._told

    def _move(self, snapshot: Snapshot) -> None:
        self._snapshot = None  # after a failure the next answer starts here again
        batch, fresh_us = snapshot.batch(), snapshot.fresh_us()
        if self._told is None or not self._told.is_of(snapshot, batch, fresh_us is not None):
            stamp = self.reader.stamp_of(snapshot)
            self._told = None if stamp is None or batch is None else StampText(snapshot, batch, stamp)
        if batch is not None:
            self._kept.move(snapshot, batch)
            self._since_us = batch.committed_us if fresh_us is None else fresh_us
        self._snapshot = snapshot


class FastPath:
    """Answers point lookups at once: one instance per worker process."""

    def __init__(self, views: ViewReaders, guard: Guard, metrics: Metrics) -> None:
        self._views, self._guard, self._metrics = views, guard, metrics
        self._dated, self._date = 0, b""
        self._kept: dict[str, PointReader] = {}
        self._points: dict[str, PointReader] = {}  # of the views asked for in this turn of the event loop

    def connect(self, address: str) -> Callable[[bytes], bytes | None]:
        """The function that answers a client at this address."""
        return partial(self.answer, Peer(address))

    def answer(self, asker: Peer, data: bytes) -> bytes | None:
        """The answer if the bytes are exactly one request for the fast path; else None."""
        try:
            if data.startswith(b"GET "):
                return self._row(asker, data)
            return self._rows(asker, data) if data.startswith(b"POST ") else None
        except Exception:  # the full path meets the same error, and reports it properly
            return None

    def _row(self, asker: Peer, data: bytes) -> bytes | None:
        began_s = time.perf_counter()
        asked = _GET.match(data)
        if asked is None or not data.endswith(END, asked.end() - 2):
            return None
        head = asker.head(data[asked.end() :])
        if head is None or head.body_bytes:
            return None
        path, key = asked[1].decode("ascii"), asked[3].decode("ascii")
        if "%" in key:
            path, key = unquote(path), unquote(key)
        points = self._of(asked[2].decode("ascii"))
        found = None if points is None or len(path) > PATH_CHARS_MAX else points.find(key)
        holder = None if found is None else self._let_in(asker, head)
        if found is None or holder is None:
            return None
        told, age_ms, body = found
        tagged = f"etag: {etag(told.stamp, path, '', holder)}\r\n"
        answer = self._answer(told, age_ms, tagged, head, body)
        self._metrics.answered(ROW, "GET", 200, time.perf_counter() - began_s)
        return answer

    def _rows(self, asker: Peer, data: bytes) -> bytes | None:
        began_s = time.perf_counter()
        asked = _POST.match(data)
        if asked is None:
            return None
        lines, end, body = data[asked.end() :].partition(END)
        head = asker.head(lines + end)
        if head is None or head.body_bytes != len(body):
            return None
        points = self._of(asked[1].decode("ascii"))
        found = None if points is None else points.find_all(body)
        if found is None or self._let_in(asker, head) is None:
            return None
        told, age_ms, body = found
        answer = self._answer(told, age_ms, "", head, body)
        self._metrics.answered(LOOKUP, "POST", 200, time.perf_counter() - began_s)
        return answer

    def _let_in(self, asker: Peer, head: Head) -> Principal | None:
        """The principal, if it may read all rows and its limits admit the request; only then is the request counted."""
        holder = self._guard.holder(head.authorization, head.host)
        if not reaches_all(holder) or "read" not in holder.roles:
            return None
        self._guard.pass_by(holder, asker.address)
        return holder

    def _answer(self, told: StampText, age_ms: int, tagged: str, head: Head, body: bytes) -> bytes:
        trace = answered_with(head.traceparent)[1]
        rest = f"{age_ms}\r\n{tagged}traceparent: {trace}\r\n{_SECURITY}content-length: {len(body)}\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\n%b%b%b%b" % (self._now(), told.headers, rest.encode("ascii"), body)

    def _now(self) -> bytes:
        """The header Date, made once a second."""
        now_s = int(time.time())
        if now_s != self._dated:
            self._dated, self._date = now_s, f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
        return self._date

    def _of(self, view: str) -> PointReader | None:
        """The point reader of a view; None if the view has an archive.

        One check of the view's generation, catalogue and batch serves one turn of the event loop: all requests of a
        turn arrived before its first answer. A longer-lived check would answer from an older generation than the full
        path did before.
        """
        found = self._points.get(view)
        if found is None:
            found, reader = self._kept.get(view), self._views.get(view)
            if found is None or found.reader is not reader:
                if found is not None:
                    found.release()
                found = PointReader(reader)
            if not self._points:
                asyncio.get_running_loop().call_soon(self._turn_over)
            self._kept[view] = self._points[view] = found
        return found if found.reader.sealed is None else None

    def _turn_over(self) -> None:
        for points in self._points.values():
            points.turn_over()
        self._points.clear()
