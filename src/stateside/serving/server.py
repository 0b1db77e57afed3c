"""The server: follows every view of a folder and answers over HTTP, until it is told to stop.

The main process moves the replicas; uvicorn's worker processes read them. So a burst of requests does not hold up the
replicas, nor a large batch the requests.

A worker process of the server: what it is told, and the application that answers in it.
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
from stateside.serving.health.metrics import shared_metrics
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.routes import page_routes, session_routes
from stateside.serving.registry.announcer import Identity, reached_at
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.connection import Connection
from stateside.serving.web.connections import CONNECTIONS_MAX, Connections
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.operator_routes import savepoint_routes, status_routes
from stateside.serving.web.sql_routes import sql_routes

_FILES_BESIDE = 512  # that a worker has open beside its connections


@dataclass(frozen=True, slots=True)
class Worker:
    """What all workers of a server are told. It goes to their processes as it is.

    They end with the process `parent_pid`. `guarded`: each request needs a token; `secure`: over TLS. `names` are
    those of the server, beside its addresses (`access.hosts`).
    """

    folder: Path
    parent_pid: int
    extension: Extension = NOTHING
    limits: RateLimits = NO_RATE
    guarded: bool = False
    secure: bool = False
    names: frozenset[str] = frozenset()
    identity: Identity | None = None
    log_json: bool = False

    def load(self) -> Application:
        """Called once in each process: the application that answers there."""
        die_with_parent(self.parent_pid)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application tells its errors itself
        if self.log_json:
            logs.log_json()
        return self.application()

    def application(self) -> Application:
        """The application, with all routes that there are."""
        layout, assets = Layout(self.folder), Assets(self.extension.pages)
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
        return Application(ViewReaders(layout), routes, guard=guard, identity=self.identity, connections=connections)


def allow_files() -> None:
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


WORKER_STOP_S = 5
BACKLOG = 2_048  # connections that wait for a worker
_FAULTS = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)  # by which a process ends that meets a damaged file
log = logging.getLogger(__name__)


def serve(
    folder: Path,
    *,
    port: int,
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

    Where the folder has keys each request needs a token. An address that others can reach is refused without tokens or
    without TLS (a `certificate`), unless it is to be `insecure`. `limits` are for each holder and each address; a rate
    that they do not have is limited by default, except where only this machine asks, without tokens.
    `extension` is what the application brings besides its views. With `foreign` the folder serves a checkpoint that is
    not ours. The server announces itself in the folder `announce`, by default the one that it serves, under a name, by
    default its address and port. `listening` is called when requests are answered. With `log_json` logs are lines of
    JSON. `tailing` goes to each view's `Tail`.
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
    worker = Worker(
        folder,
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
    os.environ.update(SAFE_PATH)  # for the workers, and all that they start
    with shared_metrics(), Follower(Layout(folder), foreign, **tailing) as follower, listening_socket:
        config = _config(address, certificate, workers, worker)
        supervisor = _Supervisor(config, [listening_socket], listening, follower.suspect_replicas)
        try:
            supervisor.run()
        finally:
            identity.withdraw()
    if any(each.exitcode == STARTUP_FAILURE for each in supervisor.processes):
        raise SetupError("A worker process cannot start", next_step="Its messages stand above")


def _checked(folder: Path, address: str, certificate: Certificate | None, *, insecure: bool) -> bool:
    """Whether requests need tokens. What is not safe, or cannot be read, is refused now and not at every request."""
    _check_writable(Layout(folder))
    verifier = Verifier(Layout(folder))
    guarded = verifier.is_needed()
    check_exposure(address, tokens=guarded, tls=certificate is not None, insecure=insecure)
    verifier.check_files()
    if certificate is not None:
        certificate.check()
    return guarded


def _check_writable(layout: Layout) -> None:
    for place in (layout.root, *(view.root for view in layout.views())):
        if not os.access(place, os.W_OK):
            raise SetupError(
                "This folder cannot be written to, and the replicas that are served lie in it",
                where=str(place),
                next_step="Let this process's user write there; or serve a view's checkpoint from another folder: "
                "`stateside serve CHECKPOINT --dir OTHER`",
            )


def _config(address: str, certificate: Certificate | None, workers: int, worker: Worker) -> Config:
    """What uvicorn's workers are to do."""
    return Config(
        worker.load,
        factory=True,
        interface="asgi3",
        http=Connection,
        ws="none",
        loop="stateside.serving.web.connections:Loop",
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
    """uvicorn's, which starts workers again that end; it tells once that one of them answers.

    `suspect` is called when a worker was ended by a signal, as when a file that it had mapped was cut.
    """

    def __init__(
        self, config: Config, sockets: list[socket.socket], listening: Callable[[], None], suspect: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._listening: Callable[[], None] | None = listening
        self._suspect = suspect

    def keep_subprocess_alive(self) -> None:
        """Called twice a second."""
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
