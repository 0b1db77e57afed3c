"""The SQL process pool of a worker: assigns statements to processes, and starts, asks and kills the processes.

    reserved   one process, for operators only
    shared     SHARED_PROCESSES, for all tokens

A process runs the statements of one token at a time, and a token runs its statements in one process (an operator also
in the reserved one). So killing a statement, with its process, ends no other token's statement, and no token takes more
than the slots of one process. Processes start on demand; a shared process idle for IDLE_S_MAX is ended.

A statement without a slot waits in a queue, for WAIT_S_MAX at most. While a token without a process waits for one,
tokens with a process start no further statements there: the process is free once its running statements have ended.

A statement ends by itself when its time is up or its client has gone. A statement still running GRACE_S later is inside
a step that cannot be interrupted: the worker kills the process with all its statements, which belong to the same token.
Their clients get SqlEnded, with the advice to ask again.

Each worker has its own processes, and counts for itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from stateside.core import processes
from stateside.core.errors import ClientLeft, SetupError, SqlEnded, SqlTimeout, StatesideError, TooManyRequests
from stateside.core.layout import Layout
from stateside.serving.access.principal import Principal
from stateside.serving.rows.floor import Floor
from stateside.serving.sql import wire
from stateside.serving.sql.result import cut
from stateside.serving.sql.sql_query import SqlQuery
from stateside.serving.sql.wire import Kind, StatementMessage
from stateside.serving.stamp import Stamp

START_S_MAX = 60.0
GRACE_S = 2.0
_POLL_S = 0.02
Left = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Size:
    """The limits of a SQL process: concurrent statements, memory, and the part of the memory for cached rows."""

    statements_max: int
    bytes_max: int
    kept_bytes_max: int


class SqlProcess:
    """One SQL process. `tables` names the functions that return an application's gated tables."""

    def __init__(self, layout: Layout, tables: Sequence[str], size: Size) -> None:
        self._layout, self._tables, self._size = layout, tuple(tables), size
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def asked(self, question: SqlQuery, ended: Callable[[], None]) -> Remote:
        """A connection for one statement. The caller closes the `Remote`, which then calls `ended`."""
        reader, writer = await self._connected()
        return Remote(question, reader, writer, partial(self._kill, self._process), ended)

    async def listed(self, holder: Principal) -> list[dict[str, Any]]:
        """The relations that a principal may read."""
        reader, writer = await self._connected()
        try:
            await wire.send(writer, Kind.ASKED, StatementMessage(holder))
            kind, found = await asyncio.wait_for(wire.read(reader), START_S_MAX)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            raise _ended() from None
        finally:
            writer.close()
        if kind == Kind.ERROR:
            raise found
        listed: list[dict[str, Any]] = found
        return listed

    def kill(self) -> None:
        """End the process, if any, at once; the next statement starts a new one."""
        self._kill(self._process)

    def _kill(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is None or process.poll() is not None:
            return
        if process is self._process:
            self._process = None
        process.kill()
        asyncio.get_running_loop().run_in_executor(None, process.wait)  # the kernel takes a while to free its memory

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._start()
            return await self._connect()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stateside-sql-", ignore_cleanup_errors=True)
        module = [sys.executable, "-m", "stateside.serving.sql.process", self._folder.name]
        places = [str(self._layout.root), str(self._layout.replicas or "")]
        size = [self._size.statements_max, self._size.bytes_max, self._size.kept_bytes_max]
        self._process = processes.spawn(
            [*module, *places, *map(str, size), *self._tables],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # the process may write no files, so no log either
        )
        threading.Thread(target=_pass_on, args=(self._process,), name="sql-log", daemon=True).start()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._folder is not None
        socket, deadline = wire.socket_in(self._folder.name), time.monotonic() + START_S_MAX
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return await asyncio.open_unix_connection(socket)
            await asyncio.sleep(_POLL_S)
        raise SetupError("The process that runs statements does not start", next_step="See the server's log")


def _pass_on(process: subprocess.Popen[bytes]) -> None:
    """Copy the SQL process's stderr into this process's log until the process ends."""
    assert process.stderr is not None
    for line in process.stderr:
        sys.stderr.write(line.decode(errors="replace"))
        sys.stderr.flush()


class Remote:
    """A statement running in a SQL process: its stamps, and an iterator over the parts of the written result."""

    def __init__(
        self,
        question: SqlQuery,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kill: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._question, self._reader, self._writer = question, reader, writer
        self._kill, self._ended = kill, ended
        self._closing: asyncio.Task[None] | None = None
        self._deadline_s = time.monotonic() + question.timeout_ms / 1_000
        self._over = False
        self.stamps: list[Stamp] = []
        self.kind = ""

    async def begin(self, asked: StatementMessage, left: Left) -> None:
        """Send the statement, and wait for its first rows or until the client has gone."""
        waiting = asyncio.ensure_future(self._asked(asked))
        leaving = asyncio.ensure_future(left())
        try:
            await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientLeft("Who asked went away, and the statement was ended")
            self.stamps, self.kind = waiting.result()
        finally:
            leaving.cancel()
            waiting.cancel()
            await asyncio.wait((waiting,))  # until the task has left the reader, which `aclose` reads to its end

    async def _asked(self, asked: StatementMessage) -> Any:
        try:
            await wire.send(self._writer, Kind.ASKED, asked)
        except ConnectionError:
            raise _ended() from None
        _, begun = await self._frame()
        return begun

    def cut(self, why: str) -> bytes:
        """The bytes sent in place of the rest of a broken-off result."""
        return cut(self._question.format, why)

    def __aiter__(self) -> Remote:
        return self

    async def __anext__(self) -> bytes:
        """The next part; if the process ends, the part that marks the result as cut."""
        if self._over:
            raise StopAsyncIteration
        try:
            kind, part = await self._frame()
        except StatesideError as error:
            self._over = True
            return self.cut(f"{error.code}: {error}")
        if kind == Kind.END:
            self._over = True
            raise StopAsyncIteration
        assert isinstance(part, bytes)
        return part

    async def aclose(self) -> None:
        """End the statement if it still runs; kill the process after GRACE_S."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)  # the caller may be cancelled meanwhile

    async def _close(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()
        try:
            await asyncio.wait_for(self._reader.read(-1), GRACE_S)
        except TimeoutError:
            self._kill()
        except ConnectionError:
            pass
        finally:
            self._writer.close()
            self._ended()

    async def _frame(self) -> tuple[Kind, Any]:
        wait_s = max(0.0, self._deadline_s - time.monotonic()) + GRACE_S
        try:
            kind, value = await asyncio.wait_for(wire.read(self._reader), wait_s)
        except TimeoutError:
            self._kill()
            raise SqlTimeout(
                f"The statement took longer than {self._question.timeout_ms:,} ms, and had to be killed",
                next_step="Let it make smaller texts or lists at a time",
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _ended() from None
        if kind == Kind.ERROR:
            raise value
        return kind, value


def _ended() -> SqlEnded:
    return SqlEnded(
        "The process that runs statements has ended: one of them took too much memory or time, perhaps this one",
        next_step="Ask again; if it happens again, let the statement do less",
    )


RESERVED: Final = Size(statements_max=4, bytes_max=4 << 30, kept_bytes_max=1 << 30)
SHARED: Final = Size(statements_max=2, bytes_max=2 << 30, kept_bytes_max=512 << 20)
SHARED_PROCESSES: Final = 3
WAIT_S_MAX: Final = 5.0  # long enough for a process to start
WAITING_MAX: Final = 16  # queued statements of one token
IDLE_S_MAX: Final = 300.0  # before a shared process is ended


@dataclass(slots=True, eq=False)
class ProcessSlots:
    """A process's slots: the token that has or last had them, and the number of its running statements."""

    slots: int
    reserved: bool = False
    token: Hashable = None
    running: int = 0
    uses: int = 0


@dataclass(slots=True, eq=False)
class Waiter:
    """A statement in the queue, and the place granted to it."""

    token: Hashable
    operator: bool
    place: ProcessSlots | None = None
    given: asyncio.Event = field(default_factory=asyncio.Event)


class SqlSlots:
    """The scheduler of places and queue: decides which statement runs where, without I/O."""

    def __init__(self, places: Sequence[ProcessSlots]) -> None:
        self.places = tuple(places)
        self._queue: list[Waiter] = []

    def enter(self, waiter: Waiter) -> bool:
        """Join the queue, and get a place if one is free; False if WAITING_MAX statements of this token wait."""
        if sum(each.token == waiter.token for each in self._queue) >= WAITING_MAX:
            return False
        self._queue.append(waiter)
        self._give()
        return True

    def give_up(self, waiter: Waiter) -> None:
        """Leave the queue without a place."""
        self._queue.remove(waiter)
        self._give()

    def leave(self, place: ProcessSlots) -> None:
        """Return the slot of a statement that has ended."""
        place.running -= 1
        self._give()

    def _give(self) -> None:
        for waiter in tuple(self._queue):
            place = self._free(waiter)
            if place is not None:
                self._grant(waiter, place)
        lacking = [each for each in self._queue if not self._own(each)]
        for waiter in tuple(self._queue):
            with_room = [place for place in self._own(waiter) if place.running < place.slots]
            place = next((each for each in with_room if not any(_may_use(other, each) for other in lacking)), None)
            if place is not None:
                self._grant(waiter, place)

    def _grant(self, waiter: Waiter, place: ProcessSlots) -> None:
        self._queue.remove(waiter)
        place.token, place.running, place.uses = waiter.token, place.running + 1, place.uses + 1
        waiter.place = place
        waiter.given.set()

    def _own(self, waiter: Waiter) -> list[ProcessSlots]:
        """The places running statements of this token."""
        return [each for each in self.places if each.running and each.token == waiter.token]

    def _free(self, waiter: Waiter) -> ProcessSlots | None:
        """An idle place: the reserved one first, then the one whose cache was filled by this token.

        A token with a place gets no second one; an operator gets the reserved one as well.
        """
        owns = bool(self._own(waiter))
        free = (each for each in self.places if not each.running and _may_use(waiter, each))
        found = min(free, key=lambda place: (not place.reserved, place.token != waiter.token), default=None)
        return None if found is None or (owns and not found.reserved) else found


def _may_use(waiter: Waiter, place: ProcessSlots) -> bool:
    return waiter.operator or not place.reserved


class SqlPool:
    """Runs the statements of one worker. `tables` names the functions that return an application's gated tables."""

    def __init__(self, layout: Layout, tables: Sequence[str] = (), *, idle_s: float = IDLE_S_MAX) -> None:
        self._idle_s = idle_s
        sizes = [RESERVED, *[SHARED] * SHARED_PROCESSES]
        places = [ProcessSlots(size.statements_max, reserved=size is RESERVED) for size in sizes]
        self._slots = SqlSlots(places)
        self._processes = {place: SqlProcess(layout, tables, size) for place, size in zip(places, sizes, strict=True)}

    async def run(self, question: SqlQuery, holder: Principal, floor: Floor, left: Left) -> Remote:
        """Start a statement. The caller closes the `Remote`.

        TooManyRequests without a slot; errors as for `SqlRunner.run`, and SqlEnded.
        """
        place = await self._entered(holder, question.timeout_ms / 1_000)
        try:
            remote = await self._processes[place].asked(question, partial(self._leave, place))
        except BaseException:
            self._leave(place)
            raise
        try:
            await remote.begin(StatementMessage(holder, question, floor), left)
        except BaseException:
            await remote.aclose()
            raise
        return remote

    async def listed(self, holder: Principal) -> list[dict[str, Any]]:
        """The relations that a principal may read; TooManyRequests as for `run`."""
        place = await self._entered(holder, WAIT_S_MAX)
        try:
            return await self._processes[place].listed(holder)
        finally:
            self._leave(place)

    async def _entered(self, holder: Principal, wait_s: float) -> ProcessSlots:
        token = holder.name, holder.views, frozenset(holder.where.items())
        waiter = Waiter(token, "operator" in holder.roles)
        if not self._slots.enter(waiter):
            raise _too_many()
        try:
            async with asyncio.timeout(min(wait_s, WAIT_S_MAX)):
                await waiter.given.wait()
        except BaseException as error:
            if waiter.place is None:
                self._slots.give_up(waiter)
            elif isinstance(error, TimeoutError):
                return waiter.place  # granted at the last moment
            else:
                self._leave(waiter.place)
            raise (_too_many() if isinstance(error, TimeoutError) else error) from None
        assert waiter.place is not None
        return waiter.place

    def _leave(self, place: ProcessSlots) -> None:
        self._slots.leave(place)
        if not place.reserved and not place.running:
            asyncio.get_running_loop().call_later(self._idle_s, self._rest, place, place.uses)

    def _rest(self, place: ProcessSlots, uses: int) -> None:
        """End a process that has not been used since."""
        if place.uses == uses:
            self._processes[place].kill()


def _too_many() -> TooManyRequests:
    return TooManyRequests(
        f"As many statements run here as may, and none of them ended within {WAIT_S_MAX:g} s",
        next_step="Ask again in a moment, or run fewer at a time",
    )
