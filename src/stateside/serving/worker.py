"""A worker process of the server: what it is told, and the application that answers in it."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from pathlib import Path

from stateside.layout import Layout
from stateside.processes import die_with_parent
from stateside.serving.access.guard import Guard
from stateside.serving.access.limits import NO_RATE, Limits
from stateside.serving.extension import NOTHING, Extension
from stateside.serving.health import logs
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.page_routes import page_routes
from stateside.serving.pages.session_routes import session_routes
from stateside.serving.place.announcer import Identity
from stateside.serving.reading.views import Views
from stateside.serving.web.application import Application
from stateside.serving.web.connections import CONNECTIONS_MAX, Connections
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.savepoint_routes import savepoint_routes
from stateside.serving.web.sql_routes import sql_routes
from stateside.serving.web.status_routes import status_routes

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
    limits: Limits = NO_RATE
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
        return Application(Views(layout), routes, guard=guard, identity=self.identity, connections=connections)


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
