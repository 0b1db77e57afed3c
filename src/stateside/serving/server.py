"""The server: follows every view of a folder and answers over HTTP, until SIGINT or SIGTERM.

The main process moves the replicas (`Follower`); uvicorn's worker processes read the replicas (`Worker`). So a burst of
requests does not delay the replicas, and a large batch does not delay the requests.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors import Multiprocess

from stateside.core.errors import SetupError
from stateside.core.layout import Layout
from stateside.core.processes import SAFE_PATH, die_with_parent
from stateside.serving.access.guard import Guard
from stateside.serving.access.hosts import Certificate, check_exposure, is_loopback, names_at
from stateside.serving.access.limits import NO_RATE, RateLimits
from stateside.serving.access.verifier import Verifier
from stateside.serving.extension import NOTHING, Extension
from stateside.serving.follower import Follower
from stateside.serving.foreign import Foreign
from stateside.serving.health import logs
from stateside.serving.health.tallies import shared_metrics
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.routes import page_routes, session_routes
from stateside.serving.registry.announcer import Identity, reached_at
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.connection import CONNECTIONS_MAX, UVICORN, Connections
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.operator_routes import savepoint_routes, status_routes
from stateside.serving.web.view_routes import sql_routes

_FILES_BESIDE = 512  # files that a worker has open besides its connections


@dataclass(frozen=True, slots=True)
class Worker:
    """The configuration of a worker process, pickled to each of them.

    A worker ends with the process `parent_pid`. `guarded`: each request needs a token; `secure`: the server uses TLS.
    `names` are the server's host names, besides its addresses (`access.hosts`).
    """

    layout: Layout
    parent_pid: int
    extension: Extension = NOTHING
    limits: RateLimits = NO_RATE
    guarded: bool = False
    secure: bool = False
    names: frozenset[str] = frozenset()
    identity: Identity | None = None
    log_json: bool = False

    def load(self) -> Application:
        """Make the application. uvicorn calls `load` once in each worker process."""
        die_with_parent(self.parent_pid)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application logs its errors itself
        if self.log_json:
            logs.log_json()
        return self.application()

    def application(self) -> Application:
        """The application, with all its routes."""
        layout, assets = self.layout, Assets(self.extension.pages)
        names = None if self.secure else self.names
        guard = Guard.of(layout, self.limits, guarded=self.guarded, names=names)
        routes = [
            *event_routes(layout),
            *sql_routes(layout, self.extension.tables),
            *status_routes(layout),
            *self.extension.load_routes(layout),
            *savepoint_routes(layout),
            *session_routes(guard, assets.pages, secure=self.secure),
            *page_routes(assets),
        ]
        connections = Connections(_connections_max())
        return Application(
            ViewReaders(layout),
            routes,
            guard=guard,
            identity=self.identity,
            connections=connections,
            measures=self.extension.load_metrics(layout),
        )


def allow_files() -> None:
    """Raise the limit of open files, which workers inherit, to CONNECTIONS_MAX + 512, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + _FILES_BESIDE
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def _connections_max() -> int:
    """The number of connections that a worker accepts: as many as the limit of open files leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, soft - _FILES_BESIDE))


WORKER_STOP_S = 5
WORKER_ANSWER_S = 60  # uvicorn replaces workers that answer later. Its own 5 s gave up restarts on a busy machine
BACKLOG = 2_048  # connections that wait for a worker to accept them
_FAULTS = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)  # end a process that reads a damaged mapped file
log = logging.getLogger(__name__)


def serve(
    folder: Path,
    *,
    port: int,
    replicas: Path | None = None,
    address: str = "127.0.0.1",
    workers: int = 1,
    certificate: Certificate | None = None,
    insecure: bool = False,
    limits: RateLimits = NO_RATE,
    extension: Extension = NOTHING,
    foreign: Foreign | None = None,
    announce: Path | None = None,
    name: str | None = None,
    log_json: bool = False,
    listening: Callable[[], None] = lambda: None,
    **tailing: Any,
) -> None:
    """Serve the folder until SIGINT or SIGTERM.

    Where the folder has keys, each request needs a token. An address that other machines can reach is refused without
    tokens or without TLS (a `certificate`), unless `insecure`. `limits` apply to each principal and each address; a
    missing rate gets the default, except on loopback without tokens. Replicas lie in the folder, or in `replicas`.
    `extension` has the application's routes, tables
    and pages. With `foreign` the folder serves a foreign checkpoint. The server announces itself in the folder
    `announce` (default: the served folder) under `name` (default: address and port). `listening` is called once, when
    the first worker is ready. With `log_json` logs are lines of JSON. `tailing` goes to each view's `Tail`.
    """
    layout = Layout(folder, replicas=replicas)
    guarded = _checked(layout, address, certificate, insecure=insecure)
    limits = limits if not guarded and is_loopback(address) else limits.or_default()
    listening_socket = _listen(address, port)
    own_name = name or f"{address.replace(':', '.')}-{port}".lstrip(".")
    identity = Identity(
        announce or folder, own_name, reached_at("http" if certificate is None else "https", address, port)
    )
    identity.check()
    if log_json:
        logs.log_json()
    worker = Worker(
        layout,
        os.getpid(),
        extension,
        limits,
        guarded=guarded,
        secure=certificate is not None,
        names=frozenset() if guarded else names_at(address),
        identity=identity,
        log_json=log_json,
    )
    allow_files()
    os.environ.update(SAFE_PATH)  # for the workers and their child processes
    with shared_metrics(), Follower(layout, foreign, **tailing) as follower, listening_socket:
        config = _config(address, certificate, workers, worker)
        supervisor = _Supervisor(config, [listening_socket], listening, follower.suspect_replicas)
        try:
            supervisor.run()
        finally:
            identity.withdraw()
    if any(each.exitcode == STARTUP_FAILURE for each in supervisor.processes):
        raise SetupError("A worker process cannot start", next_step="Its messages stand above")


def _checked(layout: Layout, address: str, certificate: Certificate | None, *, insecure: bool) -> bool:
    """Whether requests need tokens. Refuses unsafe settings and unreadable files at the start, not at every request."""
    _check_writable(layout)
    verifier = Verifier(layout)
    guarded = verifier.is_needed()
    check_exposure(address, tokens=guarded, tls=certificate is not None, insecure=insecure)
    verifier.check_files()
    if certificate is not None:
        certificate.check()
    return guarded


def _check_writable(layout: Layout) -> None:
    views = [view.root for view in layout.views()] if layout.replicas is None else [layout.replicas]
    for place in (layout.root, *views):
        if not os.access(place, os.W_OK):
            raise SetupError(
                "This folder cannot be written to, and the replicas that are served lie in it",
                where=str(place),
                next_step="Let this process's user write there; or keep replicas elsewhere: --replicas FOLDER",
            )


def _config(address: str, certificate: Certificate | None, workers: int, worker: Worker) -> Config:
    return Config(
        worker.load,
        factory=True,
        workers=workers,
        host=address,
        backlog=BACKLOG,
        timeout_graceful_shutdown=WORKER_STOP_S,
        timeout_worker_healthcheck=WORKER_ANSWER_S,
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
        ssl_context_factory=_tls_context if certificate else None,
        **UVICORN,
    )


def _listen(address: str, port: int) -> socket.socket:
    """The bound socket of all workers; SetupError if the address cannot be bound.

    The socket listens only once a worker does. So a starting server refuses a client at once, and the client turns to
    another server instead of waiting for seconds in a queue without a reader.
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
    """uvicorn's supervisor, which restarts workers that end; calls `listening` once, when a worker is ready.

    `suspect` is called when a signal of `_FAULTS` ended a worker, as when a mapped file was truncated.
    """

    def __init__(
        self, config: Config, sockets: list[socket.socket], listening: Callable[[], None], suspect: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._listening: Callable[[], None] | None = listening
        self._suspect = suspect

    def keep_subprocess_alive(self) -> None:
        """Check the workers; uvicorn calls this method twice a second."""
        for worker in self.processes:
            if worker.exitcode is not None and -worker.exitcode in _FAULTS:
                ended_by = signal.Signals(-worker.exitcode).name
                log.error(
                    "worker %s was ended by %s. It is started again, and the replicas are read", worker.pid, ended_by
                )
                self._suspect()
        super().keep_subprocess_alive()
        if self._listening is not None and any(worker.is_ready() for worker in self.processes):
            self._listening()
            self._listening = None
