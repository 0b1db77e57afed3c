"""A client's connection: uvicorn's HTTP/1.1 protocol, with the fast path in front and limits that uvicorn lacks.

Received bytes go to the fast path first (`fast_path`), which answers most queries at once, without a task. The rest
takes the full path, through the application. Limits: the size of a request's head, the time for the head, the bytes
unsent to a slow reader, and the number of connections (`connections`).

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
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from stateside.core.errors import HeadTooLarge, RequestInvalid, StatesideError, TooManyRequests
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.limits import network
from stateside.serving.fast_path.answer import Peer
from stateside.serving.web import connections, head

HEAD_BYTES_MAX: Final = 64 * 1024
UNSENT_BYTES_MAX: Final = 128 * 1024  # in the kernel, and as much again in this process
GOODBYE_S: Final = 0.25  # a request sent just before the shutdown still gets its answer
_PROBLEM: Final = "application/problem+json"


class Connection(HttpToolsProtocol):
    """One connected client. Its application is the worker's `Application`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._application: Any = config.loaded_app
        self._answer: Callable[[Peer, bytes], bytes | None] = self._application.short_way.answer
        self._asker = Peer("")
        self._waiting_s: float | None = time.monotonic()  # start of the wait for a request's head
        self._head_bytes = 0
        self._is_whole = True  # the last request is complete
        self._in_body = False  # the last request's head is complete, its body is not
        self._is_over = False  # further input is ignored
        self._answering: RequestResponseCycle | None = None  # the request being answered, or answered last
        self._problem: StatesideError | None = None  # ends the connection once earlier requests are answered
        self._stuck: tuple[int, float] | None = None  # unsent bytes, and since when
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the client; beyond the limit of connections, refuse with a problem."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES_MAX)
        _leave_unsent(transport.get_extra_info("socket"))
        self._asker = Peer(network("{}:{}".format(*(self.client or ("", 0)))))
        if not self._application.connections.open(self):
            self._tell(TooManyRequests("There are too many connections here", next_step="Ask again later"))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._application.connections.closed(self)
        super().connection_lost(exc)
        self.pipeline.clear()
        self._break_off()

    def data_received(self, data: bytes) -> None:
        """Answer on the fast path if possible, else pass the data to the parser and so to the application."""
        if self._is_whole and not self._stopping and (self.cycle is None or self.cycle.response_complete):
            answer = self._answer(self._asker, data)
            if answer is not None:
                self.transport.write(answer)
                self._waiting_s = time.monotonic()
                return
        if self._is_over:
            return
        if not self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            what = f"The request's head has more than {HEAD_BYTES_MAX:,} bytes"
            self._refuse(HeadTooLarge(what, next_step="Send less in headers"))

    def on_message_begin(self) -> None:
        """The first bytes of a request have arrived."""
        if self.cycle is not None and not self.cycle.keep_alive:
            self._end()
            raise RequestInvalid("The request before was the last one")  # stops the parser
        super().on_message_begin()
        self._is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers after the body are ignored, because the access check did not see them."""
        if not self._in_body:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the head."""
        self._waiting_s, self._head_bytes = None, 0
        upgrade = self.parser.should_upgrade()
        try:
            self.url = head.check(self.parser.get_http_version(), self.url, self.headers, upgrade=upgrade)
        except RequestInvalid as error:
            self._problem = error
            raise
        super().on_headers_complete()
        self._in_body = True
        if upgrade or self.expect_100_continue or self._stopping:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_whole, self._in_body = True, False
        if self.cycle.response_complete:
            self._waiting_s = time.monotonic()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start waiting for the next request, or send the problem that ends the connection."""
        super().on_response_complete()
        if self._is_answered():
            self._waiting_s = time.monotonic()
            if self._problem is not None and not self.transport.is_closing():
                self._give_up(self._problem)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing: `look` finds idle connections, with answers of the fast path counted too."""

    def look(self, now_s: float) -> None:
        """Close the connection if its request does not arrive, or its answer is not read."""
        if self._waiting_s is not None and now_s - self._waiting_s > connections.HEAD_S_MAX:
            self.transport.close()
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._stuck = None
        elif self._stuck is None or unsent != self._stuck[0]:
            self._stuck = unsent, now_s
        elif now_s - self._stuck[1] > connections.STALLED_S:
            self.transport.abort()

    def shutdown(self) -> None:
        """The process is to stop: finish the answer under way, and answer a request that is just arriving."""
        self._application.stop()
        self._stopping = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(GOODBYE_S, self._close_if_idle)

    def send_400_response(self, msg: str) -> None:
        """The input is no HTTP/1.1, or its head is refused."""
        invalid = RequestInvalid("This is no HTTP/1.1 request", next_step="Ask with an HTTP client")
        self._refuse(self._problem or invalid)

    def _unsupported_upgrade_warning(self) -> None:
        """Answer the request as if without `Upgrade`; later input is not HTTP."""
        self._end()

    def _close_if_idle(self) -> None:
        if self._is_over or (self._is_whole and self._is_answered()):
            self.transport.close()

    def _is_answered(self) -> bool:
        """Whether no request waits for its answer."""
        return self._answering is None or self._answering.response_complete

    def _end(self) -> None:
        """Ignore further input."""
        self._is_over, self._is_whole = True, False

    def _break_off(self) -> None:
        """Cancel the answer under way: the client is gone."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _refuse(self, problem: StatesideError) -> None:
        """Answer the last input, if unanswered, with a problem, in its turn, and ignore further input."""
        if self._is_over:
            return
        self._end()
        if self._in_body and self.cycle is not self._answering:
            self.pipeline.popleft()
        elif self._in_body and self._answering is not None:
            if self._answering.response_started:
                self.transport.close()
                return
            self._break_off()
            self._answering = None
        if self._is_answered():
            self._give_up(problem)
        else:
            self._problem = problem

    def _give_up(self, problem: StatesideError) -> None:
        """Send a problem, then read until the client closes: closing at once could lose the problem on its way."""
        self._tell(problem)
        self._waiting_s = time.monotonic()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _tell(self, problem: StatesideError) -> None:
        code, body = problem.status, orjson.dumps(problem.problem())
        headers = [("content-type", _PROBLEM), *security_headers(_PROBLEM), ("content-length", str(len(body)))]
        lines = [f"HTTP/1.1 {code} {http.HTTPStatus(code).phrase}", *(f"{name}: {text}" for name, text in headers)]
        self.transport.write("\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1") + body)


def _leave_unsent(opened: Any) -> None:
    """Limit the unsent bytes in the kernel, whose age is unknown.

    Bytes in flight do not count, so distant clients get full speed.
    """
    with suppress(OSError, AttributeError):  # not TCP, or a kernel without the option
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
