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
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces

from stateside.checkpoint.catalogue import Catalogue
from stateside.errors import SetupError, StatesideError
from stateside.layout import Layout, ViewLayout
from stateside.processes import die_with_parent
from stateside.replica.tail import Tail
from stateside.serving.foreign import Foreign
from stateside.serving.http import Application, Route
from stateside.serving.tokens import TokenFile, check_address
from stateside.serving.told import Told
from stateside.serving.views import Views

DISCOVERY_S = 0.5
LISTENING_POLL_S = 0.02
FOREIGN_S = 2.0  # how often a foreign checkpoint is looked at for other views, once it has some
WORKER_STOP_S = 5

log = logging.getLogger(__name__)


def serve(
    folder: Path,
    *,
    port: int,
    address: str = "127.0.0.1",
    workers: int = 1,
    routes: Sequence[str] = (),
    foreign: Foreign | None = None,
    listening: Callable[[], None] = lambda: None,
    **tailing: Any,
) -> None:
    """Serve the folder until SIGINT or SIGTERM.

    Where the folder has tokens each request needs one; without, an address that others can reach is refused.
    `routes` names what makes further routes for a folder, as `module:function`. With `foreign` the folder serves a
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
        loader = partial(load_application, folder, tuple(routes), os.getpid(), tokens.exists())
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


def load_application(folder: Path, routes: Sequence[str], parent_pid: int, guarded: bool = False) -> Any:
    """Called in each worker process: the application that answers there."""
    die_with_parent(parent_pid)
    layout = Layout(folder)
    tokens = TokenFile(layout.tokens, guarded=guarded)
    return Application(Views(layout), [route for name in routes for route in _load_routes(name, layout)], tokens)


@dataclass(frozen=True, slots=True)
class Followed:
    """A view that is followed: of which query, by which file of a catalogue, and the thread, with what stops it."""

    query: str | None
    catalogue_file: tuple[int, int]
    thread: threading.Thread
    stop: threading.Event


class Follower:
    """Follows every view of a folder, also those that appear later, a thread each.

    A view whose catalogue becomes that of another query is followed anew, one that has none any more is let go.
    """

    def __init__(self, layout: Layout, foreign: Foreign | None = None, **tailing: Any) -> None:
        self._layout, self._foreign, self._tailing = layout, foreign, tailing
        self._stop = threading.Event()
        self._followed: dict[str, Followed] = {}
        self._troubles: dict[str, str] = {}
        self._note = ""  # what the foreign checkpoint is waited for
        self._looked_s = -FOREIGN_S

    def __enter__(self) -> Follower:
        self._discovery = threading.Thread(target=self._discover, name="discovery", daemon=True)
        self._discovery.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._discovery.join()
        for followed in self._followed.values():
            followed.stop.set()
        for followed in self._followed.values():
            followed.thread.join()

    def _discover(self) -> None:
        while not self._stop.wait(DISCOVERY_S):
            try:
                self._look()
            except Exception as error:  # whatever it is, it is tried again
                self._tell("the folder", error)

    def _look(self) -> None:
        if self._foreign is not None and (self._note or time.monotonic() - self._looked_s >= FOREIGN_S):
            self._tell_note(self._foreign.step())
            self._looked_s = time.monotonic()
        views = {view.name: view for view in self._layout.views()}
        for name in [name for name in self._followed if name not in views]:
            self._let_go(name)
        for view in views.values():
            self._follow(view)

    def _follow(self, view: ViewLayout) -> None:
        try:
            found, followed = view.catalogue.stat(), self._followed.get(view.name)
            catalogue_file = found.st_ino, found.st_mtime_ns
            if followed is not None and followed.catalogue_file == catalogue_file:
                return
            query = Catalogue.load(view.catalogue).query
            if followed is not None and followed.query == query:
                self._followed[view.name] = replace(followed, catalogue_file=catalogue_file)
                return
            self._let_go(view.name)
            tail, stop = Tail(view, **self._tailing), threading.Event()
        except Exception as error:  # whatever it is, other views are followed, and this one is tried again
            self._tell(f"view {view.name}", error)
            return
        thread = threading.Thread(target=tail.run, args=(stop,), name=f"tail {view.name}", daemon=True)
        self._followed[view.name] = Followed(query, catalogue_file, thread, stop)
        thread.start()

    def _let_go(self, name: str) -> None:
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.stop.set()
            followed.thread.join()

    def _tell(self, of: str, error: Exception) -> None:
        """Tell the log, once."""
        if self._troubles.get(of) != str(error):
            self._troubles[of] = str(error)
            unexpected = None if isinstance(error, StatesideError) else error
            log.error("%s: %s", of, error, exc_info=unexpected)

    def _tell_note(self, told: Told) -> None:
        """Tell the log, once, what the foreign checkpoint waits for, or that it does not any more."""
        if self._note != (told.note or ""):
            self._note = told.note or ""
            log.warning("%s", self._note or f"Views served: {', '.join(view.name for view in self._layout.views())}")


def _load_routes(name: str, layout: Layout) -> Sequence[Route]:
    module, _, attribute = name.partition(":")
    routes: Callable[[Layout], Sequence[Route]] = getattr(import_module(module), attribute)
    return routes(layout)
