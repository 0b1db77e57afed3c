"""A SQL process: runs statements of one token at a time (`pool`), for the worker that started it.

    python -m stateside.serving.sql.process PRIVATE FOLDER STATEMENTS_MAX BYTES_MAX KEPT_BYTES_MAX TABLES…

DuckDB's own limits have gaps: a text or list made by one row is neither counted nor interrupted. So DuckDB runs in a
separate process, whose memory the operating system limits, and which the worker kills when a statement does not end.
Whatever a statement does, the worker answers other requests, and the next statement gets a new process.

The process is the third wall, after `statement` and `execution`: an empty private working directory, no written
files but the few bytes of LMDB's reader table, no core dump, no gain of privileges. Its log goes to the worker
through a pipe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from stateside.core import processes
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.sql import wire
from stateside.serving.sql.cache import RelationCache
from stateside.serving.sql.execution import listed
from stateside.serving.sql.statement_runner import SqlRunner
from stateside.serving.sql.wire import Kind, StatementMessage

FILE_BYTES_MAX = 1 << 20  # of any file it writes: LMDB's reader table is much smaller
_EXIT_NO_MEMORY = 12

log = logging.getLogger(__name__)


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


def main(private: str, folder: str, statements_max: str, bytes_max: str, kept_bytes_max: str, *tables: str) -> None:
    """Serve until the worker dies, which ends this process too (see `core.processes`)."""
    logging.basicConfig(level=logging.WARNING)
    answering = Answering(Layout(Path(folder)), tables, int(statements_max), RelationCache(int(kept_bytes_max)))
    _confine(Path(private), int(bytes_max))
    asyncio.run(_serve(wire.socket_in(private), answering))


if __name__ == "__main__":
    main(*sys.argv[1:])
