"""The routes of savepoints, for the control room: taking one is safe at any time, restoring is for the command."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stateside.checkpoint.savepoint import Savepoint, savepoints, take
from stateside.clock import Clock, SystemClock
from stateside.errors import RequestInvalid, ViewUnknown
from stateside.layout import Layout, ViewLayout
from stateside.serving.stamp import iso_time
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Route

log = logging.getLogger(__name__)

_ANSWER = {
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
    """The routes over a folder."""
    time = clock or SystemClock()

    async def show(request: Request) -> Response:
        return await _shown(_view(layout, request))

    async def make(request: Request) -> Response:
        view = _view(layout, request)
        await asyncio.to_thread(take, view, time.now_us())
        return await _shown(view)

    address = "/v1/views/{view}/savepoints"
    return [
        Route(address, show, _LIST, "operator", answer=_ANSWER),
        Route(address, make, _TAKE, "operator", method="POST", answer=_ANSWER),
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
