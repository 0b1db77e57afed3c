"""The server: follows every view of a folder and answers over HTTP, until it is told to stop.

The main process moves the replicas; uvicorn's worker processes read them. So a burst of requests does not hold up the
replicas, nor a large batch the requests.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors import Multiprocess

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
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.page_routes import page_routes
from stateside.serving.pages.session_routes import session_routes
from stateside.serving.place.announcer import Identity, reached_at
from stateside.serving.reading.views import Views
from stateside.serving.web.application import Application
from stateside.serving.web.connection import Connection
from stateside.serving.web.connections import CONNECTIONS_MAX, Connections
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.route import Route
from stateside.serving.web.savepoint_routes import savepoint_routes
from stateside.serving.web.sql_routes import sql_routes
from stateside.serving.web.status_routes import status_routes

WORKER_STOP_S = 5
BACKLOG = 2_048  # connections that wait for a worker
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
    pages: Sequence[str] = (),
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
    gives the gates of an application's tables in SQL (`sql.sealed`); `pages` names packages with pages.
    With `foreign` the folder serves a checkpoint that is not ours. The server announces itself in the folder
    `announce`, by default the one that it serves, under a name, by default its address and port. `listening` is called
    when requests are answered. With `log_json` logs are lines of JSON. `tailing` goes to
    each view's `Tail`.
    """
    guarded = _checked(folder, address, certificate, insecure=insecure)
    limits = limits if not guarded and is_loopback(address) else limits.or_default()
    listening_socket = _listen(address, port)
    own_name = name or f"{address.replace(':', '.')}-{port}".lstrip(".")
    identity = Identity(
        announce or folder, own_name, reached_at("http" if certificate is None else "https", address, port)
    )
    identity.check()
    if log_json:
        logs.log_json()
    named = tuple(routes), tuple(tables), tuple(pages)
    secure = certificate is not None
    _allow_files()
    with shared_metrics(), Follower(Layout(folder), foreign, **tailing), listening_socket:
        load = partial(load_application, folder, *named, os.getpid(), limits, guarded, identity, log_json, secure)
        supervisor = _Supervisor(_config(address, certificate, workers, load), [listening_socket], listening)
        try:
            supervisor.run()
        finally:
            identity.withdraw()
    if any(each.exitcode == STARTUP_FAILURE for each in supervisor.processes):
        raise SetupError("A worker process cannot start", next_step="Its messages stand above")


def _checked(folder: Path, address: str, certificate: Certificate | None, *, insecure: bool) -> bool:
    """Whether requests need tokens. What is not safe, or cannot be read, is refused now and not at every request."""
    verifier = Verifier(Layout(folder))
    guarded = verifier.is_needed()
    check_exposure(address, tokens=guarded, tls=certificate is not None, insecure=insecure)
    verifier.check_files()
    if certificate is not None:
        certificate.check()
    return guarded


def _config(address: str, certificate: Certificate | None, workers: int, load: Callable[[], Application]) -> Config:
    """What uvicorn's workers are to do."""
    return Config(
        load,
        factory=True,
        interface="asgi3",
        http=Connection,
        ws="none",
        loop="stateside.serving.web.loop:Loop",
        lifespan="on",
        workers=workers,
        host=address,
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=WORKER_STOP_S,
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
        ssl_context_factory=_tls_context if certificate else None,
    )


def _listen(address: str, port: int) -> socket.socket:
    """The socket that all workers take their connections from; SetupError if it cannot be had.

    It has its address, and listens only once a worker does so: who turns to a server that is starting is refused at
    once, and goes to another one, instead of waiting for seconds in a queue that nobody looks at yet.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
    except OSError as error:
        listening.close()
        raise SetupError(
            f"Cannot listen on {address}:{port}: {error.strerror}",
            next_step="Choose another --port, or 0 for any free one",
        ) from error
    listening.set_inheritable(True)
    return listening


def _tls_context(config: Config, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    context = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class _Supervisor(Multiprocess):
    """uvicorn's, which starts the workers anew that end; it tells once that one of them answers."""

    def __init__(self, config: Config, sockets: list[socket.socket], listening: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._listening: Callable[[], None] | None = listening

    def keep_subprocess_alive(self) -> None:
        """Called twice a second."""
        super().keep_subprocess_alive()
        if self._listening is not None and any(worker.is_ready() for worker in self.processes):
            self._listening()
            self._listening = None


def load_application(
    folder: Path,
    routes: Sequence[str],
    tables: Sequence[str],
    pages: Sequence[str],
    parent_pid: int,
    limits: Limits = NO_RATE,
    guarded: bool = False,
    identity: Identity | None = None,
    log_json: bool = False,
    secure: bool = False,
) -> Application:
    """Called in each worker process: the application that answers there."""
    die_with_parent(parent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application tells its errors itself
    if log_json:
        logs.log_json()
    layout = Layout(folder)
    guard = Guard.of(layout, limits, guarded=guarded)
    added = (route for name in routes for route in _load_routes(name, layout))
    assets = Assets(pages)
    loaded = [*event_routes(layout), *sql_routes(layout, tables), *status_routes(layout), *added]
    loaded += savepoint_routes(layout)
    loaded += [*session_routes(guard, assets.pages, secure=secure), *page_routes(assets)]
    connections = Connections(_connections_max())
    return Application(Views(layout), loaded, guard=guard, identity=identity, connections=connections)


def _allow_files() -> None:
    """Let this process, and so its workers, have as many files open as their connections need, if that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + _FILES_BESIDE
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def _connections_max() -> int:
    """How many connections a worker takes: as many as it can open files for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, soft - _FILES_BESIDE))


def _load_routes(name: str, layout: Layout) -> Sequence[Route]:
    module, _, attribute = name.partition(":")
    routes: Callable[[Layout], Sequence[Route]] = getattr(import_module(module), attribute)
    return routes(layout)
