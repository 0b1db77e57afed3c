"""The fast path: request bytes in, answer bytes out, for the most frequent queries.

    GET /v1/views/{view}/rows/{key...}    with a whole key
    POST /v1/views/{view}/lookup          with whole keys

without parameters, from a principal that may read all rows, of a view without an archive. The answer equals, byte for
byte, that of the full path through parser, application and routes (`tests/serving/web/test_fast_path.py`). All other
requests, and all errors, are left to the full path. So is every head that is not plain: with a header outside the lists
below, a repeated or folded header, a connection to be closed, a transfer coding, a precondition, a cookie; and with a
header that names the requesting page's site, as such a request may be refused (`access.browser_session`). Most clients
send plain heads, with the same lines at every request of a connection.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from typing import Final
from urllib.parse import unquote

from stateside.replica.replica_reader import MOMENT_S
from stateside.serving.access.guard import Guard
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.principal import Principal
from stateside.serving.fast_path.point_lookup import PointReader, StampText
from stateside.serving.health.logs import answered_with
from stateside.serving.health.metrics import Metrics
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.head import HOST
from stateside.serving.web.request import PATH_CHARS_MAX, reaches_all
from stateside.serving.web.response import etag

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


class FastPath:
    """Answers point lookups at once: one instance per worker process."""

    def __init__(self, views: ViewReaders, guard: Guard, metrics: Metrics) -> None:
        self._views, self._guard, self._metrics = views, guard, metrics
        self._dated, self._date = 0, b""
        self._kept: dict[str, PointReader] = {}
        self._points: dict[str, PointReader] = {}  # with a catalogue checked less than MOMENT_S ago

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
        """The point reader of a view; None if the view has an archive."""
        found = self._points.get(view)
        if found is None:
            reader = self._views.get(view)
            kept = self._kept.get(view)
            found = kept if kept is not None and kept.reader is reader else PointReader(reader)
            self._kept[view] = self._points[view] = found
            asyncio.get_running_loop().call_later(MOMENT_S, self._let_go, view)
        return found if found.reader.sealed is None else None

    def _let_go(self, view: str) -> None:
        """Make the next answer check the view's catalogue and take a new snapshot."""
        self._points.pop(view).release()
