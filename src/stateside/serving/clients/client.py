"""The synchronous client; raises the servers' problem documents as Stateside errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from stateside.core.errors import StatesideError
from stateside.core.positions import Position
from stateside.journal.event import Event
from stateside.serving.clients import transport
from stateside.serving.clients.answers import Answer, Change, Location, Lookup, SqlAnswer
from stateside.serving.clients.calls import Asking
from stateside.serving.clients.change_stream import ClientWatch, WatchQuestion
from stateside.serving.clients.core import DEADLINE_S, Core
from stateside.serving.clients.requests import ClientFloor, Part, other_parameters, span, texts
from stateside.serving.clients.scans import PAGE_ROWS, ClientScan, ScanQuestion
from stateside.serving.clients.steps import (
    Deliver,
    NextLine,
    NoReply,
    OpenStream,
    Pause,
    Reply,
    Send,
    Step,
    Steps,
    Together,
)
from stateside.serving.stamp import Source

T = TypeVar("T")

TOGETHER_MAX = 32  # shards asked at the same time


class Client:
    """Sends each request to a server that has the keys. Thread-safe.

    `urls` are the first servers; the client discovers the others. Every call ends within `deadline_s`, repeatable
    requests are retried until then; if no server is reachable at all, within `unreached_s`. `certificate` is a file of
    certificates to trust, besides the usual ones. With `direct` only the given servers are asked, once each.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        deadline_s: float = DEADLINE_S,
        certificate: str | Path | None = None,
        direct: bool = False,
        unreached_s: float | None = None,
    ) -> None:
        core = Core(transport.addresses(urls), deadline_s=deadline_s, direct=direct, unreached_s=unreached_s)
        self._asking = Asking(core)
        self._http = httpx.Client(**transport.settings(token, certificate))

    def rows(
        self,
        view: str,
        *key: Part,
        source: Source | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Answer:
        """The rows of one key, or of a key prefix: live rows, sealed rows, or by default both."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        return self._run(self._asking.rows(view, key, floor, source))

    def lookup(
        self,
        view: str,
        keys: Sequence[Sequence[Part] | str],
        *,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Lookup:
        """The rows of many whole keys, of one batch; `found` is in the order of the keys."""
        return self._run(self._asking.lookup(view, keys, ClientFloor(min_position, max_age_ms, wait_ms, as_of)))

    def scan(
        self,
        view: str,
        *key: Part,
        where: Sequence[str] = (),
        order: str | None = None,
        columns: Sequence[str] | None = None,
        page_rows: int = PAGE_ROWS,
        rows_max: int | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Iterator[Answer]:
        """The rows page by page, all of one batch, restricted to a key prefix and to all predicates in `where`."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        question = ScanQuestion(view, texts(key), tuple(where), order, columns, page_rows, rows_max, floor)
        return self._iterate(ClientScan(self._asking.places, question).pages())

    def watch(
        self, view: str, *key: Part, rollup: Sequence[str] | None = None, after: str | None = None
    ) -> Iterator[Change]:
        """The present rows, then the changes of every batch; reconnects after a broken connection.

        `after` is the id of the last change of an earlier watch. Close the iterator to stop.
        """
        return self._iterate(ClientWatch(self._asking.places, WatchQuestion(view, texts(key), rollup, after)).changes())

    def sum(
        self,
        view: str,
        *key: Part,
        from_time: Part | None = None,
        to_time: Part | None = None,
        last: str | None = None,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Answer:
        """The buckets of one key in a time range, or over the last hours or days ("24h"), combined into one row."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        return self._run(self._asking.sum(view, key, span(from_time, to_time, last), floor))

    def rollup(
        self,
        view: str,
        columns: Sequence[str],
        *key: Part,
        min_position: Position | str | None = None,
        max_age_ms: int | None = None,
        wait_ms: int | None = None,
        as_of: int | None = None,
    ) -> Answer:
        """A rollup: the view's rows summed by these columns, for one coarser key or a prefix of the coarser key."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        return self._run(self._asking.rollup(view, columns, key, floor))

    def sql(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        rows_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> SqlAnswer:
        """The result of a statement, over one snapshot of each view in the statement.

        Goes to a server with all keys, or with the shard that has the token's rows. RequestInvalid without such a
        server.
        """
        return self._run(self._asking.sql(sql, parameters, rows_max, timeout_ms))

    def append(self, events: Sequence[Event | Mapping[str, Any]]) -> Position:
        """Append events, each stored once even if sent repeatedly; returns the receipt, for `min_position`.

        More than 1,000 events go in several consecutive requests. If a request fails, the error reports how many events
        are stored: all of the earlier requests, none of the later ones.
        """
        return self._run(self._asking.append(events))

    def views(self) -> list[dict[str, Any]]:
        """The served views, each with the state of its job."""
        return self._run(self._asking.views())

    def servers(self) -> list[dict[str, Any]]:
        """The servers, and the shards of each."""
        return self._run(self._asking.servers())

    def locate(self, view: str, *key: Part) -> Location:
        """The shard of a key, and the servers with the shard."""
        return self._run(self._asking.locate(view, key))

    def get(
        self, path: str, *, min_position: Position | str | None = None, wait_ms: int | None = None, **parameters: Part
    ) -> dict[str, Any]:
        """The JSON document at a path, such as a bill."""
        floor = ClientFloor(min_position, None, wait_ms)
        return self._run(self._asking.document(path, other_parameters(parameters), floor))

    def content(
        self, path: str, *, min_position: Position | str | None = None, wait_ms: int | None = None, **parameters: Part
    ) -> bytes:
        """The content at a path, such as a PDF."""
        floor = ClientFloor(min_position, None, wait_ms)
        return self._run(self._asking.content(path, other_parameters(parameters), floor))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        """Run steps to the end."""
        go_on: Callable[[], Step] = partial(steps.send, None)
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                go_on = partial(steps.send, self._do(step))
            except StatesideError as error:
                go_on = partial(steps.throw, error)

    def _iterate(self, steps: Steps[None]) -> Iterator[Any]:
        """Run steps and yield the delivered values. Closes the steps' stream at the end."""
        go_on: Callable[[], Step] = partial(steps.send, None)
        with closing(_Stream(self._http)) as stream, closing(steps):
            while True:
                try:
                    step = go_on()
                except StopIteration:
                    return
                if isinstance(step, Deliver):
                    yield step.value
                    go_on = partial(steps.send, None)
                    continue
                try:
                    told = stream.do(step) if isinstance(step, OpenStream | NextLine) else self._do(step)
                    go_on = partial(steps.send, told)
                except StatesideError as error:
                    go_on = partial(steps.throw, error)

    def _do(self, step: Step) -> Any:
        match step:
            case Send():
                return self._send(step)
            case Pause(seconds):
                time.sleep(seconds)
                return None
            case Together(courses):
                return self._together(courses)
        raise AssertionError(f"{step} is not for here")

    def _together(self, courses: Sequence[Steps[Any]]) -> list[Any]:
        if len(courses) == 1:
            return [self._run(courses[0])]
        with ThreadPoolExecutor(min(len(courses), TOGETHER_MAX)) as pool:
            return list(pool.map(self._run, courses))

    def _send(self, step: Send) -> Reply | NoReply:
        """One attempt. Ends after `timeout_s`, even while the server keeps sending small pieces."""
        until_s = time.monotonic() + step.timeout_s
        try:
            with self._http.stream(**transport.request(step.url, step.ask, step.timeout_s)) as response:
                content = bytearray()
                for part in response.iter_bytes():
                    content += part
                    if time.monotonic() > until_s:
                        return NoReply(f"the reply took longer than {step.timeout_s:.1f} s", sent=True)
                return transport.reply(response, bytes(content))
        except httpx.HTTPError as error:
            return transport.silence(error)


class _Stream:
    """The open stream of a series of steps; at most one."""

    def __init__(self, client: httpx.Client) -> None:
        self._http, self._opened = client, ExitStack()
        self._lines: Iterator[str] = iter(())

    def do(self, step: OpenStream | NextLine) -> Reply | NoReply | str | None:
        """Open a stream in place of the previous one, or read the next line; None at the end."""
        try:
            return self._open(step) if isinstance(step, OpenStream) else next(self._lines, None)
        except httpx.HTTPError as error:
            return transport.silence(error)

    def close(self) -> None:
        self._opened.close()

    def _open(self, step: OpenStream) -> Reply:
        self._opened.close()
        response = self._opened.enter_context(
            self._http.stream(**transport.request(step.url, step.ask, step.timeout_s))
        )
        self._lines = response.iter_lines()
        return transport.reply(response, b"" if response.is_success else response.read())
