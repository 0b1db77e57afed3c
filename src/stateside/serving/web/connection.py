"""A client's connection: uvicorn's, for HTTP/1.1, with a short way in front of it, and bounds that it does not have.

Whatever arrives is shown to the short way first (`short_way`), which answers most questions at once, without a task.
What it leaves goes the long way, through the application. Bounds: the size of a request's head, the time that it may
take, how much waits for a client that does not read, and how many connections there are (`connections`).

Every request has one answer, in the order of the requests. What is no request, or whose head is refused (`head`), is
answered with a problem when all before it are answered, and is the last: nothing that a client sends after it counts.
So it is after a request that the connection does not outlive, which is one

    with `Connection: close`, or of HTTP/1.0;
    that asks for another protocol (`Upgrade`), as the parser takes what follows for that one;
    with `Expect: 100-continue`: refused early, its body may come or not, and nobody can tell which it is.

A body that comes after the answer is read and dropped. If that body is malformed, the connection ends without a word.
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
UNSENT_BYTES_MAX: Final = 128 * 1024  # in the kernel, beside what this process keeps of an answer: as much at most
GOODBYE_S: Final = 0.25  # a client that has sent a request just now is not to find its connection closed
_PROBLEM: Final = "application/problem+json"


class Connection(HttpToolsProtocol):
    """One for each client that is connected. Its application is the worker's `Application`."""

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
        self._waiting_s: float | None = time.monotonic()  # since when a request's head is to come
        self._head_bytes = 0
        self._is_whole = True  # the last request has come to its end
        self._in_body = False  # of the last request, whose head is there
        self._is_over = False  # nothing that comes from now on counts
        self._answering: RequestResponseCycle | None = None  # the request whose answer is under way, or was last
        self._problem: StatesideError | None = None  # that ends the connection once all before it is answered
        self._stuck: tuple[int, float] | None = None  # so much waits for the client, since then
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or tell it that there is no room."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES_MAX)
        _leave_unsent(transport.get_extra_info("socket"))
        self._asker = Peer(network("{}:{}".format(*(self.client or ("", 0)))))
        if not self._application.connections.open(self):
            self._tell(TooManyRequests("There are too many connections here", next_step="Ask again later"))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whomever."""
        self._application.connections.closed(self)
        super().connection_lost(exc)
        self.pipeline.clear()
        self._break_off()

    def data_received(self, data: bytes) -> None:
        """Answer it the short way if that is possible, else give it to the parser and so to the application."""
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
        """The first bytes of a request are there."""
        if self.cycle is not None and not self.cycle.keep_alive:
            self._end()
            raise RequestInvalid("The request before was the last one")  # for the parser, which stops here
        super().on_message_begin()
        self._is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one that comes after the body is none, as whoever let the request in did not see it."""
        if not self._in_body:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Its head is there."""
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
        """All of it is there."""
        super().on_message_complete()
        self._is_whole, self._in_body = True, False
        if self.cycle.response_complete:
            self._waiting_s = time.monotonic()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """It is answered, and the next one may come."""
        super().on_response_complete()
        if self._is_answered():
            self._waiting_s = time.monotonic()
            if self._problem is not None and not self.transport.is_closing():
                self._give_up(self._problem)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing: whoever keeps still is found by `look`, which knows of answers on the short way too."""

    def look(self, now_s: float) -> None:
        """Close it if its request does not come, or its answer is not taken."""
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
        """The process is to stop: what is under way is finished, and a request that is just coming is answered too."""
        self._application.stop()
        self._stopping = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(GOODBYE_S, self._close_if_idle)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP/1.1, or its head is refused."""
        invalid = RequestInvalid("This is no HTTP/1.1 request", next_step="Ask with an HTTP client")
        self._refuse(self._problem or invalid)

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as if it had not asked for another protocol, and what follows it is not HTTP."""
        self._end()

    def _close_if_idle(self) -> None:
        if self._is_over or (self._is_whole and self._is_answered()):
            self.transport.close()

    def _is_answered(self) -> bool:
        """Whether nothing waits for its answer."""
        return self._answering is None or self._answering.response_complete

    def _end(self) -> None:
        """Nothing that comes from now on counts."""
        self._is_over, self._is_whole = True, False

    def _break_off(self) -> None:
        """Nobody takes the answer that is under way."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _refuse(self, problem: StatesideError) -> None:
        """Answer what came last with a problem, in its turn and unless it has an answer, and nothing any more."""
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
        """Answer with a problem, and then read until the client has it: to close at once may take it away again."""
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
    """Have the kernel take no more than so much that it cannot send yet: nobody knows how old what waits there is.

    What is under way already does not count, so that far-away clients are served as fast as ever.
    """
    with suppress(OSError, AttributeError):  # a kernel that cannot, or no TCP
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
