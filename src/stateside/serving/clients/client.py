"""The two clients. `calls` has their methods, with signatures and docstrings; here the methods' steps are run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from functools import wraps
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import httpx

from stateside.core.errors import StatesideError
from stateside.serving.clients import transport
from stateside.serving.clients.answers import Answer, Change
from stateside.serving.clients.calls import Calls
from stateside.serving.clients.core import DEADLINE_S, Core
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

TOGETHER_MAX: Final = 32  # shards asked at the same time

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


def _documented(method: F, call: Callable[..., Any], returns: str) -> F:
    """The method with the name, docstring and parameters of its call."""
    wraps(call)(method)
    vars(method)["__signature__"] = signature(call).replace(return_annotation=returns)
    return method


def _result(call: Callable[..., Steps[Any]]) -> str:
    """The type that steps return, as written in the call's annotation `Steps[…]`."""
    return str(call.__annotations__["return"]).removeprefix("Steps[").removesuffix("]")


def _wait_for(call: Callable[Concatenate[Calls, P], Steps[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(call(self._calls, *args, **kwargs))

    return _documented(method, call, _result(call))


def _iterate(
    call: Callable[Concatenate[Calls, P], Steps[None]], item: type[T]
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(call(self._calls, *args, **kwargs))

    return _documented(method, call, f"Iterator[{item.__name__}]")


def _await(
    call: Callable[Concatenate[Calls, P], Steps[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(call(self._calls, *args, **kwargs))

    return _documented(method, call, _result(call))


def _iterate_async(
    call: Callable[Concatenate[Calls, P], Steps[None]], item: type[T]
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(call(self._calls, *args, **kwargs))

    return _documented(method, call, f"AsyncIterator[{item.__name__}]")


class _AnyClient(Generic[Http]):
    """The construction of both clients."""

    _kind: type[Http]

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
        self._calls = Calls(core)
        self._http: Http = self._kind(**transport.settings(token, certificate))


class Client(_AnyClient[httpx.Client]):
    """Sends each request to a server that has the keys. Thread-safe.

    `urls` are the first servers; the client discovers the others. Every call ends within `deadline_s`, repeatable
    requests are retried until then; if no server is reachable at all, within `unreached_s`. `certificate` is a file of
    certificates to trust, besides the usual ones. With `direct` only the given servers are asked, once each. Problem
    documents of the servers are raised as Stateside errors.
    """

    _kind = httpx.Client

    rows = _wait_for(Calls.rows)
    lookup = _wait_for(Calls.lookup)
    scan = _iterate(Calls.scan, Answer)
    watch = _iterate(Calls.watch, Change)
    sum = _wait_for(Calls.sum)
    rollup = _wait_for(Calls.rollup)
    sql = _wait_for(Calls.sql)
    append = _wait_for(Calls.append)
    views = _wait_for(Calls.views)
    servers = _wait_for(Calls.servers)
    locate = _wait_for(Calls.locate)
    get = _wait_for(Calls.get)
    content = _wait_for(Calls.content)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                returned: T = end.value
                return returned
            result = self._do(step)

    def _iterate(self, steps: Steps[None]) -> Iterator[Any]:
        """Yield the delivered values. Closes the stream of the steps at the end."""
        result: Any = None
        with closing(LineStream(self._http)) as stream, closing(steps):
            while True:
                try:
                    step = steps.send(result)
                except StopIteration:
                    return
                if isinstance(step, Deliver):
                    yield step.value
                    result = None
                else:
                    result = stream.do(step) if isinstance(step, OpenStream | NextLine) else self._do(step)

    def _do(self, step: Step) -> Any:
        match step:
            case Send():
                return self._send(step)
            case Pause(seconds):
                return time.sleep(seconds)
            case Together([course]):
                return [self._outcome(course)]
            case Together(courses):
                with ThreadPoolExecutor(min(len(courses), TOGETHER_MAX)) as pool:
                    return list(pool.map(self._outcome, courses))
        raise AssertionError(f"{step} is not for here")

    def _outcome(self, steps: Steps[T]) -> T | StatesideError:
        try:
            return self._run(steps)
        except StatesideError as error:
            return error

    def _send(self, step: Send) -> Reply | NoReply:
        """One attempt. Ends after `timeout_s`, even while the server keeps sending small pieces."""
        until_s = time.monotonic() + step.timeout_s
        try:
            with self._http.stream(**transport.request(step.url, step.ask, step.timeout_s)) as response:
                content = bytearray()
                for part in response.iter_bytes():
                    content += part
                    if time.monotonic() > until_s:
                        return transport.too_slow(step)
                return transport.reply(response, bytes(content))
        except httpx.HTTPError as error:
            return transport.silence(error)


class LineStream:
    """The open stream of a series of steps; at most one."""

    def __init__(self, client: httpx.Client) -> None:
        self._http, self._opened = client, ExitStack()
        self._lines: Iterator[str]

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
        asked = self._http.stream(**transport.request(step.url, step.ask, step.timeout_s))
        response = self._opened.enter_context(asked)
        self._lines = response.iter_lines()
        return transport.reply(response, b"" if response.is_success else response.read())


class AsyncClient(_AnyClient[httpx.AsyncClient]):
    """Sends each request to a server that has the keys. For one event loop. The settings are those of `Client`."""

    _kind = httpx.AsyncClient

    rows = _await(Calls.rows)
    lookup = _await(Calls.lookup)
    scan = _iterate_async(Calls.scan, Answer)
    watch = _iterate_async(Calls.watch, Change)
    sum = _await(Calls.sum)
    rollup = _await(Calls.rollup)
    sql = _await(Calls.sql)
    append = _await(Calls.append)
    views = _await(Calls.views)
    servers = _await(Calls.servers)
    locate = _await(Calls.locate)
    get = _await(Calls.get)
    content = _await(Calls.content)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                returned: T = end.value
                return returned
            result = await self._do(step)

    async def _iterate(self, steps: Steps[None]) -> AsyncIterator[Any]:
        """Yield the delivered values. Closes the stream of the steps at the end."""
        result: Any = None
        async with aclosing(AsyncLineStream(self._http)) as stream:
            with closing(steps):
                while True:
                    try:
                        step = steps.send(result)
                    except StopIteration:
                        return
                    if isinstance(step, Deliver):
                        yield step.value
                        result = None
                    else:
                        done = stream.do(step) if isinstance(step, OpenStream | NextLine) else self._do(step)
                        result = await done

    async def _do(self, step: Step) -> Any:
        match step:
            case Send():
                return await self._send(step)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Together(courses):
                return await asyncio.gather(*map(self._outcome, courses))
        raise AssertionError(f"{step} is not for here")

    async def _outcome(self, steps: Steps[T]) -> T | StatesideError:
        try:
            return await self._run(steps)
        except StatesideError as error:
            return error

    async def _send(self, step: Send) -> Reply | NoReply:
        """One attempt. Ends after `timeout_s`, even while the server keeps sending small pieces."""
        try:
            async with asyncio.timeout(step.timeout_s):
                response = await self._http.request(**transport.request(step.url, step.ask, step.timeout_s))
                return transport.reply(response, response.content)
        except httpx.HTTPError as error:
            return transport.silence(error)
        except TimeoutError:
            return transport.too_slow(step)


class AsyncLineStream:
    """The open stream of a series of steps; at most one."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._http, self._opened = client, AsyncExitStack()
        self._lines: AsyncIterator[str]

    async def do(self, step: OpenStream | NextLine) -> Reply | NoReply | str | None:
        """Open a stream in place of the previous one, or read the next line; None at the end."""
        try:
            return await (self._open(step) if isinstance(step, OpenStream) else anext(self._lines, None))
        except httpx.HTTPError as error:
            return transport.silence(error)

    async def aclose(self) -> None:
        await self._opened.aclose()

    async def _open(self, step: OpenStream) -> Reply:
        await self._opened.aclose()
        asked = self._http.stream(**transport.request(step.url, step.ask, step.timeout_s))
        response = await self._opened.enter_async_context(asked)
        self._lines = response.aiter_lines()
        return transport.reply(response, b"" if response.is_success else await response.aread())
