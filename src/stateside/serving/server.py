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
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces

from stateside.errors import SetupError, StatesideError
from stateside.layout import Layout, ViewLayout
from stateside.processes import die_with_parent
from stateside.replica.tail import Tail
from stateside.serving.http import Application, Route
from stateside.serving.views import Views

DISCOVERY_S = 0.5
WORKER_STOP_S = 5

log = logging.getLogger(__name__)


def serve(folder: Path, *, port: int, address: str = "127.0.0.1", workers: int = 1, routes: Sequence[str] = ()) -> None:
    """Serve the folder until SIGINT or SIGTERM. `routes` names further routes, as `module:attribute`."""
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
    with Follower(Layout(folder)):
        server.serve(target_loader=partial(load_application, folder, tuple(routes), os.getpid()), wrap_loader=False)


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


def load_application(folder: Path, routes: Sequence[str], parent_pid: int) -> Any:
    """Called in each worker process: the application that answers there."""
    die_with_parent(parent_pid)
    return Application(Views(Layout(folder)), [route for name in routes for route in _load_routes(name)])


class Follower:
    """Follows every view of a folder, also those that appear later, a thread each."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stop = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._troubles: dict[str, str] = {}

    def __enter__(self) -> Follower:
        self._discovery = threading.Thread(target=self._discover, name="discovery", daemon=True)
        self._discovery.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._discovery.join()
        for thread in self._threads.values():
            thread.join()

    def _discover(self) -> None:
        while not self._stop.wait(DISCOVERY_S):
            for view in self._layout.views():
                if view.name not in self._threads:
                    self._follow(view)

    def _follow(self, view: ViewLayout) -> None:
        try:
            tail = Tail(view)
        except Exception as error:  # whatever it is, other views are followed, and this one is tried again
            if self._troubles.get(view.name) != str(error):
                self._troubles[view.name] = str(error)
                unexpected = None if isinstance(error, StatesideError) else error
                log.error("view %s: %s", view.name, error, exc_info=unexpected)
            return
        thread = threading.Thread(target=tail.run, args=(self._stop,), name=f"tail {view.name}", daemon=True)
        self._threads[view.name] = thread
        thread.start()


def _load_routes(name: str) -> Sequence[Route]:
    module, _, attribute = name.partition(":")
    routes: Sequence[Route] = getattr(import_module(module), attribute)
    return routes
