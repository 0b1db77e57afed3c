"""The client for `async` code; see `client`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
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


class AsyncClient:
    """Sends each request to a server that has the keys. For one event loop.

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
        self._http = httpx.AsyncClient(**transport.settings(token, certificate))

    async def rows(
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
        return await self._run(self._asking.rows(view, key, floor, source))

    async def lookup(
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
        return await self._run(self._asking.lookup(view, keys, ClientFloor(min_position, max_age_ms, wait_ms, as_of)))

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
    ) -> AsyncIterator[Answer]:
        """The rows page by page, all of one batch, restricted to a key prefix and to all predicates in `where`."""
        floor = ClientFloor(min_position, max_age_ms, wait_ms, as_of)
        question = ScanQuestion(view, texts(key), tuple(where), order, columns, page_rows, rows_max, floor)
        return self._iterate(ClientScan(self._asking.places, question).pages())

    def watch(
        self, view: str, *key: Part, rollup: Sequence[str] | None = None, after: str | None = None
    ) -> AsyncIterator[Change]:
        """The present rows, then the changes of every batch; reconnects after a broken connection.

        `after` is the id of the last change of an earlier watch. Close the iterator to stop.
        """
        return self._iterate(ClientWatch(self._asking.places, WatchQuestion(view, texts(key), rollup, after)).changes())

    async def sum(
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
        return await self._run(self._asking.sum(view, key, span(from_time, to_time, last), floor))

    async def rollup(
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
        return await self._run(self._asking.rollup(view, columns, key, floor))

    async def sql(
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
        return await self._run(self._asking.sql(sql, parameters, rows_max, timeout_ms))

    async def append(self, events: Sequence[Event | Mapping[str, Any]]) -> Position:
        """Append events, each stored once even if sent repeatedly; returns the receipt, for `min_position`.

        More than 1,000 events go in several consecutive requests. If a request fails, the error reports how many events
        are stored: all of the earlier requests, none of the later ones.
        """
        return await self._run(self._asking.append(events))

    async def views(self) -> list[dict[str, Any]]:
        """The served views, each with the state of its job."""
        return await self._run(self._asking.views())

    async def servers(self) -> list[dict[str, Any]]:
        """The servers, and the shards of each."""
        return await self._run(self._asking.servers())

    async def locate(self, view: str, *key: Part) -> Location:
        """The shard of a key, and the servers with the shard."""
        return await self._run(self._asking.locate(view, key))

    async def get(
        self, path: str, *, min_position: Position | str | None = None, wait_ms: int | None = None, **parameters: Part
    ) -> dict[str, Any]:
        """The JSON document at a path, such as a bill."""
        floor = ClientFloor(min_position, None, wait_ms)
        return await self._run(self._asking.document(path, other_parameters(parameters), floor))

    async def content(
        self, path: str, *, min_position: Position | str | None = None, wait_ms: int | None = None, **parameters: Part
    ) -> bytes:
        """The content at a path, such as a PDF."""
        floor = ClientFloor(min_position, None, wait_ms)
        return await self._run(self._asking.content(path, other_parameters(parameters), floor))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        """Run steps to the end."""
        go_on: Callable[[], Step] = partial(steps.send, None)
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                go_on = partial(steps.send, await self._do(step))
            except StatesideError as error:
                go_on = partial(steps.throw, error)

    async def _iterate(self, steps: Steps[None]) -> AsyncIterator[Any]:
        """Run steps and yield the delivered values. Closes the steps' stream at the end."""
        go_on: Callable[[], Step] = partial(steps.send, None)
        stream = _Stream(self._http)
        try:
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
                    told = await (stream.do(step) if isinstance(step, OpenStream | NextLine) else self._do(step))
                    go_on = partial(steps.send, told)
                except StatesideError as error:
                    go_on = partial(steps.throw, error)
        finally:
            steps.close()
            await stream.close()

    async def _do(self, step: Step) -> Any:
        match step:
            case Send():
                return await self._send(step)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Together(courses):
                return await self._together(courses)
        raise AssertionError(f"{step} is not for here")

    async def _together(self, courses: Sequence[Steps[Any]]) -> list[Any]:
        """The results of all; the first error is raised once all have ended, so that none keeps running unnoticed."""
        results = await asyncio.gather(*map(self._run, courses), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    async def _send(self, step: Send) -> Reply | NoReply:
        """One attempt. Ends after `timeout_s`, even while the server keeps sending small pieces."""
        try:
            async with asyncio.timeout(step.timeout_s):
                response = await self._http.request(**transport.request(step.url, step.ask, step.timeout_s))
                return transport.reply(response, response.content)
        except httpx.HTTPError as error:
            return transport.silence(error)
        except TimeoutError:
            return NoReply(f"the reply took longer than {step.timeout_s:.1f} s", sent=True)


class _Stream:
    """The open stream of a series of steps; at most one."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._http, self._opened, self._lines = client, AsyncExitStack(), _no_lines()

    async def do(self, step: OpenStream | NextLine) -> Reply | NoReply | str | None:
        """Open a stream in place of the previous one, or read the next line; None at the end."""
        try:
            return await (self._open(step) if isinstance(step, OpenStream) else anext(self._lines, None))
        except httpx.HTTPError as error:
            return transport.silence(error)

    async def close(self) -> None:
        await self._opened.aclose()

    async def _open(self, step: OpenStream) -> Reply:
        await self._opened.aclose()
        asked = self._http.stream(**transport.request(step.url, step.ask, step.timeout_s))
        response = await self._opened.enter_async_context(asked)
        self._lines = response.aiter_lines()
        return transport.reply(response, b"" if response.is_success else await response.aread())


async def _no_lines() -> AsyncIterator[str]:
    nothing: tuple[str, ...] = ()
    for line in nothing:
        yield line
