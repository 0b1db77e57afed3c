"""The short way: bytes of a request in, bytes of the answer out, for the questions that come most often.

    GET /v1/views/{view}/rows/{key...}    with a whole key
    POST /v1/views/{view}/lookup          with whole keys

without parameters, asked by who reaches all rows of a view without an archive. The answer is to the byte the one of the
long way, through the server's parser, the application and its routes (`tests/serving/web/test_short_way.py`); or there
is none, and the long way gives it. That is so for whatever is not so plain (`head`), and for every error.
"""

from __future__ import annotations

import asyncio
import re
import time
from email.utils import formatdate
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
from stateside.serving.web.head import END, Head
from stateside.serving.web.request import PATH_CHARS_MAX, reaches_all
from stateside.serving.web.response import etag

ROW: Final = "/v1/views/{view}/rows/{key...}"
LOOKUP: Final = "/v1/views/{view}/lookup"
_GET: Final = re.compile(rb"GET (/v1/views/([\w.-]+)/rows/([!-\"$->@-~]+)) HTTP/1\.1\r\n", re.ASCII)
_POST: Final = re.compile(rb"POST /v1/views/([\w.-]+)/lookup HTTP/1\.1\r\n", re.ASCII)
_SECURITY: Final = "".join(f"{name}: {value}\r\n" for name, value in security_headers("application/json"))


class Peer:
    """Whoever is at the other end of a connection: from which address, and with which head, last time."""

    __slots__ = ("_head", "_lines", "address")

    def __init__(self, address: str) -> None:
        self.address = address
        self._lines = b""
        self._head: Head | None = None

    def head(self, lines: bytes) -> Head | None:
        """What these lines say: most often what they said last time."""
        if lines != self._lines:
            self._lines, self._head = lines, Head.parse(lines)
        return self._head


class FastPath:
    """Answers what can be answered at once: one for each worker process."""

    def __init__(self, views: ViewReaders, guard: Guard, metrics: Metrics) -> None:
        self._views, self._guard, self._metrics = views, guard, metrics
        self._dated, self._date = 0, b""
        self._kept: dict[str, PointReader] = {}
        self._points: dict[str, PointReader] = {}  # those whose catalogue was looked at a moment ago

    def answer(self, asker: Peer, data: bytes) -> bytes | None:
        """The answer to a request that these bytes are, all of it and nothing else; None if it is for the long way."""
        try:
            if data.startswith(b"GET "):
                return self._row(asker, data)
            return self._rows(asker, data) if data.startswith(b"POST ") else None
        except Exception:  # whatever it is, the long way meets it as well, and tells it as it should be told
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
        """Who asks, if there is room, and all rows are for them; the request is counted then, and only then."""
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
        """What finds a view's rows; None if it has an archive too."""
        found = self._points.get(view)
        if found is None:
            reader = self._views.get(view)
            kept = self._kept.get(view)
            found = kept if kept is not None and kept.reader is reader else PointReader(reader)
            self._kept[view] = self._points[view] = found
            asyncio.get_running_loop().call_later(MOMENT_S, self._let_go, view)
        return found if found.reader.sealed is None else None

    def _let_go(self, view: str) -> None:
        """Have a view's catalogue looked at again before its next answer, and its snapshot taken anew."""
        self._points.pop(view).moment.release()
