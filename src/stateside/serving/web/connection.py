"""A client's connection: the fast path, the checks and limits that uvicorn lacks, and uvicorn's HTTP/1.1 protocol.

Received bytes go to the fast path first (`fast_path`), which answers most queries at once, without a task. All other
bytes are parsed here, and each request is written again for uvicorn from its parsed and checked parts: what was checked
is what uvicorn reads, one request at a time, the next one when the answer is complete.

Limits: the size of a request's head and of its trailers, the time for the head, the bytes unsent to a slow reader, and
the number of connections. A connection without a complete head after `HEAD_S_MAX`, however slowly the client sends, is
closed; so is a connection whose client reads nothing of the answer for `STALLED_S`. One look a second at all
connections costs less than a timer per request.

Every request has one answer, in the order of the requests. Malformed input, or a refused head (`head`), is answered
with a problem document once all earlier requests are answered, and ends the connection: later input is ignored. Input
is also ignored after a request that ends the connection:

    with `Connection: close`, or of HTTP/1.0;
    with `Upgrade` to another protocol, as the parser takes later bytes for that protocol;
    with `Expect: 100-continue`: after an early refusal, later bytes may be the body or a new request.

A body that arrives after the answer is read and dropped. If the body is malformed, the connection is closed silently.
"""

from __future__ import annotations

import asyncio
import http
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import httptools
import orjson
import uvloop
from starlette.types import Message, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stateside.core.errors import HeadTooLarge, RequestInvalid, StatesideError, TooManyRequests
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.limits import network
from stateside.serving.web import head
from stateside.serving.web.response import PROBLEM

CONNECTIONS_MAX: Final = 8_192  # of a worker, idle ones included; or its limit of open files
HEAD_BYTES_MAX: Final = 64 * 1024
HEAD_S_MAX: Final = 10.0  # for a request's head, and for the next request on a kept-alive connection
WAITING_BYTES_MAX: Final = 64 * 1024  # of requests after the one that is being answered, then nothing is read
UNSENT_BYTES_MAX: Final = 128 * 1024  # in the kernel, and as much again in this process
STALLED_S = 30.0
LOOK_S: Final = 1.0
GOODBYE_S: Final = 0.25  # a request sent just before the shutdown still gets its answer
HANDSHAKE_S_MAX: Final = 10.0
_NEVER_S: Final = 10**6
_STATE: Final = "connection"  # the name of a request's connection in the ASGI scope's state

FastAnswer = Callable[[bytes], bytes | None]  # the whole answer to a whole request; None leaves both to the full path


class Connections:
    """All connections of one worker, with its fast path for a client at an address, and the end of endless streams."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._max = connections_max
        self._open: set[Connection] = set()
        self.fast_path: Callable[[str], FastAnswer] = lambda address: lambda data: None
        self.stop: Callable[[], None] = lambda: None

    def open(self, connection: Connection) -> bool:
        """Add a connection; False beyond the limit."""
        if len(self._open) >= self._max:
            return False
        self._open.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)

    async def run(self) -> None:
        """Look at all connections every `LOOK_S`, forever."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for connection in list(self._open):
                connection.look(now_s)


@dataclass(slots=True)
class _Request:
    """A request on its way to uvicorn, or a problem instead: `parts` are the bytes to pass on next."""

    parts: list[bytes] = field(default_factory=list)
    is_chunked: bool = False
    is_last: bool = False  # of the connection
    is_whole: bool = False
    is_started: bool = False  # the answer
    is_answered: bool = False
    problem: StatesideError | None = None


class Connection(asyncio.Protocol):
    """One connected client; `app_state` is the state that the application's lifespan yields, with `connections`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._http = HttpToolsProtocol(config, server_state, {**app_state, _STATE: self}, _loop)
        self._of_server: set[Any] = server_state.connections
        self._connections: Connections = app_state["connections"]
        self._parser = httptools.HttpRequestParser(self)
        self._reading: Literal["", "head", "body"] = ""  # the part of a request that is incomplete
        self._url, self._headers = b"", list[tuple[bytes, bytes]]()
        self._head_bytes = 0  # received since the last complete head or part of a body: trailers count too
        self._requests: deque[_Request] = deque()  # the first is being answered
        self._waiting_bytes = 0  # of all parts of the requests
        self._is_paused = False  # nothing is read: too much waits, here or in uvicorn
        self._is_ready = True  # for the fast path: nothing else is under way, and the client reads
        self._is_active = False  # the fast path has answered since the last look: cheaper than the time
        self._is_over = False  # further input is ignored
        self._is_stopping = False
        self._waiting_s: float | None = time.monotonic()  # start of the wait for a request's head
        self._stuck: tuple[int, float] | None = None  # unsent bytes, and since when

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the client; beyond the limit of connections, refuse with a problem."""
        self._transport, self._write = transport, transport.write
        self._http.connection_made(transport)
        self._http.flow = FlowControl(cast(asyncio.Transport, self))  # for pause_reading and resume_reading
        self._of_server.discard(self._http)
        self._of_server.add(self)
        transport.set_write_buffer_limits(UNSENT_BYTES_MAX)
        _leave_unsent(transport.get_extra_info("socket"))
        self._fast_answer = self._connections.fast_path(network("{}:{}".format(*(self._http.client or ("", 0)))))
        if not self._connections.open(self):
            self._tell(TooManyRequests("There are too many connections here", next_step="Ask again later"))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        self._of_server.discard(self)
        self._is_over = True
        self._clear()
        self._http.connection_lost(None)

    def pause_writing(self) -> None:
        self._http.pause_writing()
        self._is_ready = False

    def resume_writing(self) -> None:
        self._http.resume_writing()
        self._pass_on()

    def _adjust_reading(self) -> None:
        """Read unless too much waits, here or in uvicorn: only this method stops and starts the transport."""
        is_paused = self._waiting_bytes > WAITING_BYTES_MAX or self._http.flow.read_paused
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    pause_reading = resume_reading = _adjust_reading  # called by uvicorn when it has changed `read_paused`

    def data_received(self, data: bytes) -> None:
        """Answer on the fast path if possible, else parse the data and pass requests on."""
        if self._is_ready:
            answer = self._fast_answer(data)
            if answer is not None:
                self._write(answer)
                self._is_active = True
                return
        if self._is_over:
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_over = True
        except httptools.HttpParserError as error:
            invalid = RequestInvalid("This is no HTTP/1.1 request", next_step="Ask with an HTTP client")
            self._refuse(error.__context__ if isinstance(error.__context__, StatesideError) else invalid)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_too_large())
        self._pass_on()

    def on_message_begin(self) -> None:
        if self._requests and self._requests[-1].is_last:
            raise RequestInvalid("The request before was the last one")  # stops the parser
        self._reading, self._is_ready = "head", False
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers after the body are ignored, because the access check did not see them."""
        if self._reading == "head":
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Check the head, and write it again."""
        self._head_bytes = 0
        version, upgrade = self._parser.get_http_version(), self._parser.should_upgrade()
        target = head.check(version, self._url, self._headers, upgrade=upgrade)
        found: dict[bytes, bytes] = {}
        for name, value in self._headers:  # repeated ones are joined, as HTTP defines
            joint = b"; " if name == b"cookie" else b", "
            found[name] = found[name] + joint + value if name in found else value
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), target, version.encode())]
        lines += [b"%b: %b" % header for header in found.items()]
        written = b"\r\n".join([*lines, b"", b""])
        if len(written) > HEAD_BYTES_MAX:  # in one read, which may be larger
            raise _too_large()
        waits = found.get(b"expect", b"").lower() == b"100-continue"
        is_last = waits or upgrade or version == "1.0" or not self._parser.should_keep_alive()
        self._requests.append(_Request(is_chunked=b"transfer-encoding" in found, is_last=is_last))
        self._add(written)
        self._reading = "body"

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._add(b"%x\r\n%b\r\n" % (len(body), body) if self._requests[-1].is_chunked else body)

    def on_message_complete(self) -> None:
        newest = self._requests[-1]
        newest.is_whole, self._reading, self._head_bytes = True, "", 0
        if newest.is_chunked:
            self._add(b"0\r\n\r\n")

    def _add(self, part: bytes) -> None:
        self._requests[-1].parts.append(part)
        self._waiting_bytes += len(part)

    def answer_sent(self, *, more: bool) -> None:
        """A part of the first request's answer was sent."""
        if self._requests:
            self._requests[0].is_started = True
            if not more:
                self._requests[0].is_answered, self._waiting_s = True, time.monotonic()
                self._pass_on()

    def look(self, now_s: float) -> None:
        """Close the connection if its request does not arrive, or its answer is not read."""
        if self._waiting_s is not None and self._is_active:
            self._waiting_s = now_s
        elif self._waiting_s is not None and now_s - self._waiting_s > HEAD_S_MAX:
            self._transport.close()
        self._is_active = False
        unsent = self._transport.get_write_buffer_size()
        if not unsent:
            self._stuck = None
        elif self._stuck is None or unsent != self._stuck[0]:
            self._stuck = unsent, now_s
        elif now_s - self._stuck[1] > STALLED_S:
            self._transport.abort()

    def shutdown(self) -> None:
        """The process is to stop: finish the answer under way, and answer a request that is just arriving."""
        self._connections.stop()
        self._is_stopping, self._is_ready = True, False
        if self._requests and not self._requests[0].is_answered:
            self._http.shutdown()
        else:
            asyncio.get_running_loop().call_later(GOODBYE_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._requests and (self._is_over or not self._reading):
            self._transport.close()

    def _pass_on(self) -> None:
        """Pass the first request on, as far as it has arrived; when it is answered, the next."""
        while self._requests:
            first = self._requests[0]
            if first.problem is not None:
                self._clear()
                self._give_up(first.problem)
                break
            if first.parts:
                data = b"".join(first.parts)
                first.parts.clear()
                self._waiting_bytes -= len(data)
                self._http.data_received(data)
                if not first.is_answered:
                    self._waiting_s = None
                    if first.is_last or self._is_stopping:
                        self._http.shutdown()  # closes the connection after this answer
            if not (first.is_whole and first.is_answered):
                break
            self._requests.popleft()
            self._is_over, self._waiting_s = self._is_over or first.is_last, time.monotonic()
        is_busy = self._requests or self._reading or self._http.flow.write_paused
        self._is_ready = not (is_busy or self._is_over or self._is_stopping)
        self._adjust_reading()

    def _clear(self) -> None:
        self._requests.clear()
        self._waiting_bytes = 0

    def _refuse(self, problem: StatesideError) -> None:
        """Answer the last input, if unanswered, with a problem, in its turn, and ignore further input."""
        if self._is_over:
            return
        self._is_over = True
        if not self._reading and self._requests and self._requests[-1].is_last:
            return
        broken = self._requests.pop() if self._reading == "body" else None
        self._waiting_bytes -= 0 if broken is None else sum(map(len, broken.parts))
        if broken is not None and not self._requests:  # uvicorn has its head
            if broken.is_started:
                self._transport.close()
                return
            self._http.connection_lost(problem)
        self._requests.append(_Request(problem=problem))

    def _give_up(self, problem: StatesideError) -> None:
        """Send a problem, then read until the client closes: closing at once could lose the problem on its way."""
        self._tell(problem)
        self._waiting_s = time.monotonic()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _tell(self, problem: StatesideError) -> None:
        code, body = problem.status, orjson.dumps(problem.problem())
        headers = [("content-type", PROBLEM), *security_headers(PROBLEM), ("content-length", str(len(body)))]
        lines = [f"HTTP/1.1 {code} {http.HTTPStatus(code).phrase}", *(f"{name}: {text}" for name, text in headers)]
        self._write("\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1") + body)


def _too_large() -> HeadTooLarge:
    what = f"The request's head, or its trailers, have more than {HEAD_BYTES_MAX:,} bytes"
    return HeadTooLarge(what, next_step="Send less in headers")


def reported(scope: Scope, send: Send) -> Send:
    """`send`, which also reports the beginning and the end of the answer to the request's connection."""
    connection: Connection | None = scope.get("state", {}).get(_STATE)
    if connection is None:
        return send

    async def report(message: Message) -> None:
        await send(message)
        connection.answer_sent(more=message["type"] == "http.response.start" or message.get("more_body", False))

    return report


class Loop(uvloop.Loop):
    """uvloop's loop with 10 s for a TLS handshake, not 60 s: before the handshake a connection is not counted."""

    async def create_server(self, *given: Any, **options: Any) -> Any:
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = HANDSHAKE_S_MAX
        return await super().create_server(*given, **options)


UVICORN: Final[dict[str, Any]] = {
    "interface": "asgi3",
    "http": Connection,
    "ws": "none",
    "loop": f"{__name__}:{Loop.__name__}",
    "lifespan": "on",
    "proxy_headers": False,
    "server_header": False,
    "access_log": False,
    "log_config": None,
    "timeout_keep_alive": _NEVER_S,  # `look` closes idle connections, with answers of the fast path counted too
}


def _leave_unsent(opened: Any) -> None:
    """Limit the unsent bytes in the kernel, whose age is unknown.

    Bytes in flight do not count, so distant clients get full speed.
    """
    with suppress(OSError, AttributeError):  # not TCP, or a kernel without the option
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
