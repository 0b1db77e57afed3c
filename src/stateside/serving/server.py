"""The server: follows every view of a folder and answers over HTTP, until it is told to stop.

The main process moves the replicas; Granian's worker processes read them. So a burst of requests does not hold up the
replicas, nor a large batch the requests.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces

from stateside.errors import SetupError
from stateside.layout import Layout
from stateside.processes import die_with_parent
from stateside.serving.access.tokens import TokenFile, check_address
from stateside.serving.follower import Follower
from stateside.serving.foreign import Foreign
from stateside.serving.reading.views import Views
from stateside.serving.web.application import Application
from stateside.serving.web.sql_routes import sql_routes

LISTENING_POLL_S = 0.02
WORKER_STOP_S = 5

log = logging.getLogger(__name__)


def serve(
    folder: Path,
    *,
    port: int,
    address: str = "127.0.0.1",
    workers: int = 1,
    routes: Sequence[str] = (),
    tables: Sequence[str] = (),
    foreign: Foreign | None = None,
    listening: Callable[[], None] = lambda: None,
    **tailing: Any,
) -> None:
    """Serve the folder until SIGINT or SIGTERM.

    Where the folder has tokens each request needs one; without, an address that others can reach is refused.
    `routes` names what makes further routes for a folder, as `module:function`, and `tables` what gives the gates of an
    application's tables in SQL (`sql.sealed`), in the same way. With `foreign` the folder serves a
    checkpoint that is not ours. `listening` is called, in a thread of its own, as soon as requests are answered.
    `tailing` goes to each view's `Tail`.
    """
    tokens = TokenFile(Layout(folder).tokens)
    check_address(address, tokens)
    tokens.tokens()  # refused now, if they cannot be read, and not at every request
    multiprocessing.set_start_method("spawn", force=True)  # a worker must not inherit threads or an open replica
    server = Granian(
        target="stateside",
        address=address,
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        workers=workers,
        websockets=False,
        log_enabled=False,
        respawn_failed_workers=True,
        workers_kill_timeout=WORKER_STOP_S,
    )
    _check_free(address, port)
    threading.Thread(target=_tell_once_listening, args=(address, port, listening), daemon=True).start()
    with Follower(Layout(folder), foreign, **tailing):
        loader = partial(load_application, folder, tuple(routes), os.getpid(), tokens.exists(), tuple(tables))
        server.serve(target_loader=loader, wrap_loader=False)


def _check_free(address: str, port: int) -> None:
    """SetupError if the port is taken: Granian would share it with another server, and answer every second request."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise SetupError(
                f"Cannot listen on {address}:{port}: {error.strerror}",
                next_step="Choose another --port, or 0 for any free one",
            ) from error


def _tell_once_listening(address: str, port: int, listening: Callable[[], None]) -> None:
    while True:
        with suppress(OSError), socket.create_connection((address, port), 1):
            break
        time.sleep(LISTENING_POLL_S)
    listening()


def load_application(
    folder: Path, routes: Sequence[str], parent_pid: int, guarded: bool = False, tables: Sequence[str] = ()
) -> Any:
    """Called in each worker process: the application that answers there."""
    die_with_parent(parent_pid)
    layout = Layout(folder)
    tokens = TokenFile(layout.tokens, guarded=guarded)
    gated = [table for name in tables for table in _named(name)()]
    made = [route for name in routes for route in _named(name)(layout)]
    return Application(Views(layout), [*sql_routes(layout, gated), *made], tokens)


def _named(name: str) -> Callable[..., Sequence[Any]]:
    """The function that a name like `module:function` means."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Sequence[Any]] = getattr(import_module(module), attribute)
    return function
