"""A SQL process: runs statements of one token at a time (`pool`), for the worker that started it.

    python -m stateside.serving.sql.process PRIVATE FOLDER STATEMENTS_MAX BYTES_MAX KEPT_BYTES_MAX TABLES…

DuckDB's own limits have gaps: a text or list made by one row is neither counted nor interrupted. So DuckDB runs in a
separate process, whose memory the operating system limits, and which the worker kills when a statement does not end.
Whatever a statement does, the worker answers other requests, and the next statement gets a new process.

The process is the third wall, after `statement` and `execution`: an empty private working directory, no written
files but the few bytes of LMDB's reader table, no core dump, no gain of privileges. Its log goes to the worker
through a pipe.

In the process, `SqlRunner` limits the number of concurrent statements and their time. A statement's steps (`execution`)
run in threads beside the event loop. When its time is up, or its client has gone, the statement is interrupted every
0.1 s until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from stateside.core import processes
from stateside.core.errors import ClientLeft, SqlTimeout, SqlTooLarge, StatesideError, TooManyRequests
from stateside.core.layout import Layout
from stateside.serving.access.principal import Principal
from stateside.serving.rows.archive import ArchiveTables, GatedTable
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.sql import wire
from stateside.serving.sql.cache import RelationCache
from stateside.serving.sql.execution import Execution, SqlFolder, listed
from stateside.serving.sql.relations import Relations
from stateside.serving.sql.result import Written, cut, written
from stateside.serving.sql.sql_query import SqlQuery
from stateside.serving.sql.wire import Kind, StatementMessage
from stateside.serving.stamp import Stamp

STATEMENTS_MAX = 4
FILE_BYTES_MAX = 1 << 20  # of any file it writes: LMDB's reader table is much smaller
_EXIT_NO_MEMORY = 12
_AGAIN_S = 0.1

log = logging.getLogger(__name__)

T = TypeVar("T")
Left = Callable[[], Awaitable[None]]


class SqlRunner:
    """Runs statements over a folder, `at_once` at a time. `gated`: see `rows.archive`."""

    def __init__(
        self,
        layout: Layout,
        gated: Sequence[GatedTable] = (),
        *,
        kept: RelationCache | None = None,
        at_once: int = STATEMENTS_MAX,
    ) -> None:
        archive = ArchiveTables(layout, gated)
        self.folder = SqlFolder(Relations(layout, archive), archive, kept or RelationCache())
        self._at_once, self._running = at_once, 0
        self._threads = ThreadPoolExecutor(at_once, "sql")

    async def run(self, question: SqlQuery, views: ViewReaders, holder: Principal, floor: Floor, left: Left) -> Running:
        """Start a statement. The caller must close the `Running`.

        TooManyRequests if `at_once` statements run already; SqlInvalid, SqlTooLarge, SqlTimeout, AccessDenied, or the
        errors of reading views, as far as they occur before the first rows.
        """
        if self._running >= self._at_once:
            raise TooManyRequests(
                f"{self._at_once} statements run here already",
                next_step="Ask again in a moment, or run fewer at a time",
            )
        self._running += 1
        running = Running(Execution(self.folder, holder, question.text, question.parameters), question, self)
        try:
            await running.begin(views, floor, left)
        except BaseException:
            await running.aclose()
            raise
        return running

    def in_thread(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Run a step of a statement in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def ended(self) -> None:
        """Return the slot of a statement that has ended."""
        self._running -= 1


class Running:
    """A running statement: its stamps, and an iterator over the parts of the written result."""

    def __init__(self, execution: Execution, question: SqlQuery, runner: SqlRunner) -> None:
        self._execution, self._question, self._runner = execution, question, runner
        self._written: Written | None = None
        self._waiting: list[bytes] = []  # parts not yet sent
        self._rows, self._bytes, self._done, self._closed = 0, 0, False, False
        self._step: asyncio.Future[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stamps(self) -> list[Stamp]:
        """The stamps of the views read."""
        return self._execution.stamps

    @property
    def kind(self) -> str:
        """The result's content type."""
        assert self._written is not None
        return self._written.kind

    async def begin(self, views: ViewReaders, floor: Floor, left: Left) -> None:
        """Run up to the first rows; for JSON to the end, so that every error gets its HTTP status."""
        loop, timeout_ms = asyncio.get_running_loop(), self._question.timeout_ms
        time_up = SqlTimeout(
            f"The statement took longer than {timeout_ms:,} ms",
            next_step="Let it read or do less, or give it more time with timeout_ms",
        )
        self._timer = loop.call_later(timeout_ms / 1_000, self._end, time_up)
        self._watcher = loop.create_task(self._watch(left))
        names = await self._do(self._execution.check)
        readers = {name: await views.ready(name, floor) for name in names}
        schema = await self._do(self._execution.execute, readers, floor)
        assert isinstance(schema, pa.Schema)
        self._written = written(self._question.format, schema, self._execution.types, self.stamps)
        self._waiting.append(self._written.begin())
        await self._advance()
        while self._question.format == "json" and not self._done:
            await self._advance()
        if self._done:
            await self._release()

    def cut(self, why: str) -> bytes:
        """The bytes sent in place of the rest of a broken-off result."""
        return cut(self._question.format, why)

    def __aiter__(self) -> Running:
        return self

    async def __anext__(self) -> bytes:
        """The next part; if the statement fails now, the part that marks the result as cut."""
        try:
            while not self._waiting and not self._done:
                await self._advance()
        except Exception as error:
            level = logging.INFO if isinstance(error, ClientLeft) else logging.WARNING
            log.log(level, "A result was cut after %s rows: %s", f"{self._rows:,}", error)
            self._done = True
            return self.cut(f"{error.code}: {error}" if isinstance(error, StatesideError) else "internal")
        if not self._waiting:
            await self.aclose()
            raise StopAsyncIteration
        parts, self._waiting = b"".join(self._waiting), []
        return parts

    async def aclose(self) -> None:
        """End the statement if it still runs, and release its resources."""
        self._done = True
        await self._release()

    async def _release(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._step is not None and not self._step.done():
            self._end(ClientLeft("Who asked went away, and the statement was ended"))
            with suppress(Exception):
                await self._step
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        try:
            await asyncio.shield(self._runner.in_thread(self._execution.close))
        finally:
            self._runner.ended()

    async def _advance(self) -> None:
        self._waiting.append(await self._do(self._part))

    def _part(self) -> bytes:
        """The next part of the result; runs in a thread."""
        assert self._written is not None
        rows = self._execution.next()
        if rows is None:
            self._done = True
            return self._written.end()
        self._rows += rows.num_rows
        if self._rows > self._question.rows_max:
            raise _too_many(f"{self._question.rows_max:,} rows")
        part = self._written.batch(rows)
        self._bytes += len(part)
        if self._bytes > self._question.bytes_max:
            raise _too_many(f"{self._question.bytes_max >> 20:,} MiB")
        return part

    async def _do(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a step in a thread. The step goes on there even if the caller is cancelled."""
        step = self._runner.in_thread(work, *arguments)
        self._step = step  # type: ignore[assignment]
        return await asyncio.shield(step)

    def _end(self, why: StatesideError) -> None:
        self._execution.ending.end(why)
        self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._end, why)

    async def _watch(self, left: Left) -> None:
        await left()
        self._end(ClientLeft("Who asked went away, and the statement was ended"))


def _too_many(limit: str) -> SqlTooLarge:
    return SqlTooLarge(
        f"The result has more than {limit}",
        next_step="Add a LIMIT or a WHERE; or ask with a larger rows_max; the formats csv and arrow have larger limits",
    )


class Answering:
    """Answers the messages of a worker."""

    def __init__(self, layout: Layout, tables: Sequence[str], statements_max: int, kept: RelationCache) -> None:
        gated = [table for name in tables for table in _named(name)()]
        self._views, self._runner = ViewReaders(layout), SqlRunner(layout, gated, kept=kept, at_once=statements_max)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection, which carries one message."""
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the worker has left
        except StatesideError as error:
            await _tell(writer, error)
        except MemoryError:
            os._exit(_EXIT_NO_MEMORY)  # not enough memory left even for an error message
        except Exception:
            log.exception("A statement failed")
            await _tell(writer, StatesideError("This request failed; the server's log has the cause"))
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, asked = await wire.read(reader)
        assert isinstance(asked, StatementMessage)
        if asked.question is None:
            work = self._runner.in_thread(listed, self._runner.folder, self._views, asked.holder)
            await wire.send(writer, Kind.LISTED, await work)
            return
        running = await self._runner.run(asked.question, self._views, asked.holder, asked.floor, partial(_left, reader))
        try:
            await wire.send(writer, Kind.BEGUN, (running.stamps, running.kind))
            async for part in running:
                await wire.send(writer, Kind.PART, part)
            await wire.send(writer, Kind.END)
        finally:
            await running.aclose()


async def _left(reader: asyncio.StreamReader) -> None:
    while await reader.read(1):
        pass


async def _tell(writer: asyncio.StreamWriter, error: StatesideError) -> None:
    with suppress(ConnectionError):
        await wire.send(writer, Kind.ERROR, error)


def _named(name: str) -> Callable[[], Sequence[Any]]:
    """The function named as `module:function`."""
    module, _, attribute = name.partition(":")
    function: Callable[[], Sequence[Any]] = getattr(import_module(module), attribute)
    return function


async def _serve(path: str, answering: Answering) -> None:
    server = await asyncio.start_unix_server(answering.answer, path)
    async with server:
        await server.serve_forever()


def _confine(private: Path, bytes_max: int) -> None:
    empty = private / "empty"
    empty.mkdir(mode=0o500)
    os.chdir(empty)
    processes.gain_no_privileges()
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, bytes_max),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
    ):
        resource.setrlimit(limit, (most, most))


def main(private: str, folder: str, replicas: str, *sizes_and_tables: str) -> None:
    """Serve until the worker dies, which ends this process too (see `core.processes`)."""
    statements_max, bytes_max, kept_bytes_max, *tables = sizes_and_tables
    logging.basicConfig(level=logging.WARNING)
    layout = Layout(Path(folder), replicas=Path(replicas) if replicas else None)
    answering = Answering(layout, tables, int(statements_max), RelationCache(int(kept_bytes_max)))
    _confine(Path(private), int(bytes_max))
    asyncio.run(_serve(wire.socket_in(private), answering))


if __name__ == "__main__":
    main(*sys.argv[1:])
