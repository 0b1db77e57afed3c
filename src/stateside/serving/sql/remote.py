"""The worker's side of a SQL process: starts it with its first statement, asks it, and kills it if it must.

A statement ends by itself when its time is up or its client has gone. One that does not within GRACE_S is in the middle
of something that cannot be interrupted: then its process is killed, with all statements that it runs, which are of the
same token (`pool`). Those are told to be asked again.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from stateside import processes
from stateside.errors import ClientLeft, SetupError, SqlEnded, SqlTimeout, StatesideError
from stateside.layout import Layout
from stateside.serving.access.holder import Holder
from stateside.serving.sql import frames
from stateside.serving.sql.frames import Asked, Kind
from stateside.serving.sql.question import Question
from stateside.serving.sql.result import cut
from stateside.serving.stamp import Stamp

START_S_MAX = 60.0
GRACE_S = 2.0
_POLL_S = 0.02

Left = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Size:
    """How many statements a SQL process runs at a time, how much memory it has, and how much of that for kept rows."""

    statements_max: int
    bytes_max: int
    kept_bytes_max: int


class SqlProcess:
    """One SQL process. `tables` names what gives the gates of an application's tables."""

    def __init__(self, layout: Layout, tables: Sequence[str], size: Size) -> None:
        self._layout, self._tables, self._size = layout, tuple(tables), size
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def asked(self, question: Question, ended: Callable[[], None]) -> Remote:
        """A statement that is about to be asked. The caller closes it; then it calls `ended`."""
        reader, writer = await self._connected()
        return Remote(question, reader, writer, partial(self._kill, self._process), ended)

    async def listed(self, holder: Holder) -> list[dict[str, Any]]:
        """The relations that a holder reaches."""
        reader, writer = await self._connected()
        try:
            await frames.send(writer, Kind.ASKED, Asked(holder))
            kind, found = await asyncio.wait_for(frames.read(reader), START_S_MAX)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            raise _ended() from None
        finally:
            writer.close()
        if kind == Kind.ERROR:
            raise found
        listed: list[dict[str, Any]] = found
        return listed

    def kill(self) -> None:
        """End the process at once, if there is one; the next statement starts a new one."""
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
        module = [sys.executable, "-m", "stateside.serving.sql.process", self._folder.name, str(self._layout.root)]
        size = [self._size.statements_max, self._size.bytes_max, self._size.kept_bytes_max]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", processes.__file__, str(os.getpid()), *module, *map(str, size), *self._tables],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # it may write no files, nor the log
            start_new_session=True,
        )
        threading.Thread(target=_pass_on, args=(self._process,), name="sql-log", daemon=True).start()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._folder is not None
        socket, deadline = frames.socket_in(self._folder.name), time.monotonic() + START_S_MAX
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return await asyncio.open_unix_connection(socket)
            await asyncio.sleep(_POLL_S)
        raise SetupError("The process that runs statements does not start", next_step="See the server's log")


def _pass_on(process: subprocess.Popen[bytes]) -> None:
    """Write into this process's log what the SQL process says, until it ends."""
    assert process.stderr is not None
    for line in process.stderr:
        sys.stderr.write(line.decode(errors="replace"))
        sys.stderr.flush()


class Remote:
    """A statement that the SQL process runs: its stamps, and an iterator over the parts of its written result."""

    def __init__(
        self,
        question: Question,
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

    async def begin(self, asked: Asked, left: Left) -> None:
        """Ask, and wait until there are rows, or the client has gone."""
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
            await asyncio.wait((waiting,))  # until it has let go of the reader, which `aclose` reads to its end

    async def _asked(self, asked: Asked) -> Any:
        try:
            await frames.send(self._writer, Kind.ASKED, asked)
        except ConnectionError:
            raise _ended() from None
        _, begun = await self._frame()
        return begun

    def cut(self, why: str) -> bytes:
        """What is sent in place of the rest, if the result is broken off."""
        return cut(self._question.format, why)

    def __aiter__(self) -> Remote:
        return self

    async def __anext__(self) -> bytes:
        """The next part; if the process ends, the one that says that the result is cut."""
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
        """End it, if it runs still: whoever does not hear is killed after a while."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)  # whoever closes may be cancelled meanwhile

    async def _close(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()
        try:
            await asyncio.wait_for(self._reader.read(-1), GRACE_S)  # until the other side has closed too
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
            kind, value = await asyncio.wait_for(frames.read(self._reader), wait_s)
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
