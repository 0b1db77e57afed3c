"""The operators' routes: status, health, findings and metrics, the servers with the places of keys, and savepoints.

Taking a savepoint is safe at any time; restoring one is for the command line only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import KeyInvalid, NotFreshEnough, RequestInvalid, ViewUnknown
from stateside.core.layout import Layout, ViewLayout
from stateside.inspection.rules import SEVERITIES
from stateside.serving.health.condition import conditions
from stateside.serving.health.inspections import FolderInspector
from stateside.serving.health.metrics import KIND, Metrics, finding_family, text
from stateside.serving.health.status import Status
from stateside.serving.registry.announcement import Announcement
from stateside.serving.registry.announcer import Servers
from stateside.serving.registry.location import location
from stateside.serving.rows.values import described
from stateside.serving.stamp import iso_time
from stateside.serving.web.request import Request, ViewRequest, reaches, reaches_all
from stateside.serving.web.response import File, Response
from stateside.serving.web.route import KEY, Route
from stateside.views.savepoint import Savepoint, savepoints, take

_TEXT = (
    "all that an operator wants to see at one look: the journal's end, and of each view its job, its replica with the"
    " stamp, the newest batches with what took their time, and the sizes of its partitions; of an application with a"
    " lease who leads it and who stands by"
)
_ANSWER = {
    "type": "object",
    "required": ["time", "journal", "views"],
    "properties": {
        "time": {"type": "string", "format": "date-time"},
        "journal": {
            "type": ["object", "null"],
            "required": ["end", "bytes"],
            "properties": {
                "end": {"type": ["integer", "null"], "description": "null, with the `trouble`, if nobody knows"},
                "segments": {"type": "integer"},
                "bytes": {"type": ["integer", "null"], "description": "on files; null for a journal on Kafka"},
                "trouble": {"type": ["string", "null"], "description": "of a journal on Kafka: why it cannot be asked"},
            },
        },
        "leadership": {"type": "object", "required": ["epoch", "lease_ms", "leader", "standbys"]},
        "views": {"type": "array", "items": {"type": "object", "required": ["view", "job", "replica", "batches"]}},
    },
}


def status_routes(layout: Layout) -> list[Route]:
    """The status route over a folder."""
    status = Status(layout)

    async def show(request: Request) -> Response:
        return Response(await status.now(request.views))

    return [Route("/v1/status", show, _TEXT, "operator", answer=_ANSWER)]


_ALIVE = "this process answers"
_READY = (
    "every view can be answered: 200, or else 503 with the reason. While a job is down its views are answered from "
    "their replicas: that is ready"
)
_METRICS = "metrics in Prometheus' text format, of all of the server's processes"


_FINDINGS = "what an operator should look at: evidence, meaning and next step of each finding, the most severe first"
_FINDINGS_ANSWER = {
    "type": "object",
    "required": ["time", "findings"],
    "properties": {
        "time": {"type": "string", "format": "date-time"},
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["code", "severity", "view", "evidence", "meaning", "next_step"],
                "properties": {
                    "severity": {"enum": list(SEVERITIES)},
                    "view": {"type": ["string", "null"], "description": "null: of the whole application"},
                },
            },
        },
    },
}


def health_routes(metrics: Metrics, folder: Path) -> list[Route]:
    """The health routes of a worker process, which counts in these metrics and serves this folder."""
    inspector = FolderInspector(folder)

    async def measured(request: Request) -> Response:
        found, applications = await conditions(request.views), await metrics.of_application(request)

        def content() -> bytes:
            findings = finding_family(inspector.findings(found))
            return text([*metrics.of_folder(request.views, found), findings, *applications, *metrics.of_server()])

        return Response({}, file=File(KIND, await asyncio.to_thread(content), "metrics.txt"))

    async def explained(request: Request) -> Response:
        found = await asyncio.to_thread(inspector.findings, await conditions(request.views))
        now = iso_time(time.time_ns() // 1_000)
        return Response({"time": now, "findings": [each.as_dict() for each in found]})

    return [
        Route("/healthz", _alive, _ALIVE, "anyone"),
        Route("/readyz", _ready, _READY, "anyone"),
        Route("/metrics", measured, _METRICS, "operator", kinds=(KIND,)),
        Route("/v1/findings", explained, _FINDINGS, "operator", answer=_FINDINGS_ANSWER),
    ]


async def _alive(request: Request) -> Response:
    return Response({"status": "ok"})


async def _ready(request: Request) -> Response:
    """Open to anyone: so without paths and causes, which the log and /metrics have."""
    found = await conditions(request.views)
    waiting = [each.view for each in found if each.batch is None]
    if waiting or not found:
        why = f"Not answered yet: {', '.join(waiting)}" if waiting else "There is no view here yet"
        raise NotFreshEnough(why, next_step="Ask again in a moment; the server's log says more")
    views = [{"view": each.view, "batch": each.batch, "age_ms": each.age_ms, "job": each.job} for each in found]
    return Response({"status": "ready", "views": views})


def place_routes(servers: Servers, name: str | None = None, clock: Clock | None = None) -> list[Route]:
    """The routes of the server called `name`, which finds the other servers in `servers`."""
    place = _Place(servers, name, clock or SystemClock())
    return [
        Route("/v1/servers", place.servers, _SERVERS, "read"),
        Route("/v1/views/{view}/location", place.location, _LOCATION, "read", (KEY,)),
        Route("/v1/views/{view}/location/{key...}", place.location, _LOCATION, "read", (KEY,)),
    ]


class _Place:
    """The handlers."""

    def __init__(self, servers: Servers, name: str | None, clock: Clock) -> None:
        self._servers, self._name, self._clock = servers, name, clock

    async def servers(self, request: Request) -> Response:
        """The servers of the same registry, and the name of this one."""
        now_us, found = self._clock.now_us(), await asyncio.to_thread(self._servers.now)
        return Response({"name": self._name, "servers": [_told(request, server, now_us) for server in found]})

    async def location(self, request: Request) -> Response:
        """The servers that hold the keys with this prefix."""
        asked = await ViewRequest.of(request)
        view, *in_path = request.parts
        shape, scope = asked.relation.shape, asked.relation.scope
        key = scope.narrowed(shape.parse_key([*in_path, *request.keys]))
        leading = shape.codec.leading_of(shape.codec.encode(key))
        if leading is None:
            raise KeyInvalid(
                "Where a key is, its first column tells, and it is not all there",
                next_step=f"The key's parts are: {described(shape.key_parts)}",
            )
        found = await asyncio.to_thread(self._servers.now)
        return Response(location(found, view, leading, self._clock.now_us()))


def _told(request: Request, server: Announcement, now_us: int) -> dict[str, Any]:
    """A server, with the views that the principal may read."""
    views, holder = request.views, request.holder
    held = {name: each for name, each in server.views.items() if reaches_all(holder) or reaches(holder, views, name)}
    return replace(server, views=held).as_dict() | {"silent_ms": server.silent_ms(now_us)}


_SERVERS = "the servers that announce themselves where this one does: url, and of each view share, batch, age, replica"
_LOCATION = "the share that a key is in, and the servers that hold it, the newest batch first"
log = logging.getLogger(__name__)
_SAVEPOINTS = {
    "type": "object",
    "required": ["view", "savepoints"],
    "properties": {
        "view": {"type": "string"},
        "savepoints": {
            "type": "array",
            "items": {"type": "object", "required": ["name", "batch", "position", "taken"]},
        },
    },
}
_LIST = "the savepoints of a view, oldest first"
_TAKE = "take a savepoint of the view's newest finished batch, while the job goes on; then they are told as by GET"


def savepoint_routes(layout: Layout, clock: Clock | None = None) -> list[Route]:
    """The savepoint routes over a folder."""
    clock_ = clock or SystemClock()

    async def show(request: Request) -> Response:
        return await _shown(_view(layout, request))

    async def make(request: Request) -> Response:
        view = _view(layout, request)
        await asyncio.to_thread(take, view, clock_.now_us())
        return await _shown(view)

    address = "/v1/views/{view}/savepoints"
    return [
        Route(address, show, _LIST, "operator", answer=_SAVEPOINTS),
        Route(address, make, _TAKE, "operator", method="POST", answer=_SAVEPOINTS),
    ]


async def _shown(view: ViewLayout) -> Response:
    found = await asyncio.to_thread(savepoints, view, lambda damaged: log.warning("%s", damaged))
    return Response({"view": view.name, "savepoints": [_as_dict(one) for one in found]})


def _as_dict(one: Savepoint) -> dict[str, Any]:
    told = {name: value for name, value in one.as_dict().items() if name not in ("watermark_us", "taken_us")}
    return told | {"watermark": iso_time(one.watermark_us), "taken": iso_time(one.taken_us)}


def _view(layout: Layout, request: Request) -> ViewLayout:
    (name,) = request.parts
    if layout.pointed() is not None:
        raise RequestInvalid("This is another job's checkpoint", next_step="Savepoints are of our own jobs")
    for view in layout.views():
        if view.name == name:
            return view
    raise ViewUnknown(f"There is no view {name[:80]!r} here")
