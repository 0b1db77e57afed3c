"""The server: follows every view of a folder and answers over HTTP, until it is told to stop.

The main process moves the replicas; Granian's worker processes read them. So a burst of requests does not hold up the
replicas, nor a large batch the requests.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
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
from granian.http import HTTP1Settings

from stateside.errors import SetupError
from stateside.layout import Layout
from stateside.processes import die_with_parent
from stateside.serving.access.exposure import Certificate, check_exposure, is_loopback
from stateside.serving.access.guard import Guard
from stateside.serving.access.limits import NO_RATE, Limits
from stateside.serving.access.verifier import Verifier
from stateside.serving.follower import Follower
from stateside.serving.foreign import Foreign
from stateside.serving.health import logs
from stateside.serving.health.metrics import shared_metrics
from stateside.serving.place.announcer import Identity, reached_at
from stateside.serving.reading.views import Views
from stateside.serving.web.application import Application
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.route import Route
from stateside.serving.web.sql_routes import sql_routes

LISTENING_POLL_S = 0.02
WORKER_STOP_S = 5
CONNECTIONS_MAX = 8_192  # of a worker, idle ones included; further ones wait until one is closed
HEADER_S_MAX = 10.0  # for a request's headers, and for the next request of a connection that is kept open
_FILES_BESIDE = 512  # that a worker has open beside its connections

log = logging.getLogger(__name__)


def serve(
    folder: Path,
    *,
    port: int,
    address: str = "127.0.0.1",
    workers: int = 1,
    certificate: Certificate | None = None,
    insecure: bool = False,
    limits: Limits = NO_RATE,
    routes: Sequence[str] = (),
    tables: Sequence[str] = (),
    foreign: Foreign | None = None,
    announce: Path | None = None,
    name: str | None = None,
    log_json: bool = False,
    listening: Callable[[], None] = lambda: None,
    **tailing: Any,
) -> None:
    """Serve the folder until SIGINT or SIGTERM.

    Where the folder has keys each request needs a token. An address that others can reach is refused without tokens or
    without TLS (a `certificate`), unless it is to be `insecure`. `limits` are for each holder and each address; a rate
    that they do not have is limited by default, except where only this machine asks, without tokens.
    `routes` names what makes further routes for a folder, as `module:function`, and `tables`, in the same way, what
    gives the gates of an application's tables in SQL (`sql.sealed`). With `foreign` the folder serves a checkpoint that
    is not ours. The server announces itself in the folder `announce`, by default the one that it
    serves, under a name, by default its address and port. `listening` is called, in a thread of its own, as soon as
    requests are answered. With `log_json` logs are lines of JSON. `tailing` goes to each view's `Tail`.
    """
    guarded = _checked(folder, address, certificate, insecure=insecure)
    limits = limits if not guarded and is_loopback(address) else limits.or_default()
    server = _granian(address, port, workers, certificate)
    _check_free(address, port)
    own_name = name or f"{address.replace(':', '.')}-{port}".lstrip(".")
    identity = Identity(
        announce or folder, own_name, reached_at("http" if certificate is None else "https", address, port)
    )
    identity.check()
    threading.Thread(target=_tell_once_listening, args=(address, port, listening), daemon=True).start()
    if log_json:
        logs.log_json()
    named = tuple(routes), tuple(tables)
    with shared_metrics(), Follower(Layout(folder), foreign, **tailing):
        loader = partial(load_application, folder, *named, os.getpid(), limits, guarded, identity, log_json)
        try:
            server.serve(target_loader=loader, wrap_loader=False)
        finally:
            identity.withdraw()


def _checked(folder: Path, address: str, certificate: Certificate | None, *, insecure: bool) -> bool:
    """Whether requests need tokens. What is not safe, or cannot be read, is refused now and not at every request."""
    verifier = Verifier(Layout(folder))
    guarded = verifier.is_needed()
    check_exposure(address, tokens=guarded, tls=certificate is not None, insecure=insecure)
    verifier.check_files()
    if certificate is not None:
        certificate.check()
    return guarded


def _granian(address: str, port: int, workers: int, certificate: Certificate | None) -> Any:
    """What listens, and starts the workers."""
    multiprocessing.set_start_method("spawn", force=True)  # a worker must not inherit threads or an open replica
    return Granian(
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
        backpressure=_connections_max(),
        http1_settings=HTTP1Settings(header_read_timeout=int(HEADER_S_MAX * 1_000)),
        ssl_cert=certificate.certificate if certificate else None,
        ssl_key=certificate.key if certificate else None,
    )


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
    folder: Path,
    routes: Sequence[str],
    tables: Sequence[str],
    parent_pid: int,
    limits: Limits = NO_RATE,
    guarded: bool = False,
    identity: Identity | None = None,
    log_json: bool = False,
) -> Any:
    """Called in each worker process: the application that answers there."""
    die_with_parent(parent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if log_json:
        logs.log_json()
    layout = Layout(folder)
    guard = Guard.of(layout, limits, guarded=guarded)
    added = (route for name in routes for route in _load_routes(name, layout))
    loaded = [*event_routes(layout), *sql_routes(layout, tables), *added]
    return Application(Views(layout), loaded, guard=guard, identity=identity)


def _connections_max() -> int:
    """How many connections a worker takes: as many as it can open files for. It inherits the limit that is set here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + _FILES_BESIDE
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, files - _FILES_BESIDE)


def _load_routes(name: str, layout: Layout) -> Sequence[Route]:
    module, _, attribute = name.partition(":")
    routes: Callable[[Layout], Sequence[Route]] = getattr(import_module(module), attribute)
    return routes(layout)
