"""Routes for who looks after a server: is it alive, is it ready, what does it measure."""

from __future__ import annotations

import asyncio

from stateside.errors import NotFreshEnough
from stateside.serving.health.condition import conditions
from stateside.serving.health.metrics import KIND, Metrics
from stateside.serving.web.request import Request
from stateside.serving.web.response import File, Response
from stateside.serving.web.route import Route

_ALIVE = "this process answers"
_READY = (
    "every view can be answered: 200, or else 503 with the reason. While a job is down its views are answered from "
    "their replicas: that is ready"
)
_METRICS = "metrics in Prometheus' text format, of all of the server's processes"


def health_routes(metrics: Metrics) -> list[Route]:
    """Those of a worker process, which counts in these metrics."""

    async def measured(request: Request) -> Response:
        merge = await asyncio.to_thread(request.views.merge_condition)
        content = metrics.text(await conditions(request.views), merge)
        return Response({}, file=File(KIND, content, "metrics.txt"))

    return [
        Route("/healthz", _alive, _ALIVE, "anyone"),
        Route("/readyz", _ready, _READY, "anyone"),
        Route("/metrics", measured, _METRICS, "operator", kinds=(KIND,)),
    ]


async def _alive(request: Request) -> Response:
    return Response({"status": "ok"})


async def _ready(request: Request) -> Response:
    """Anyone may ask: so there is nothing here of paths and causes, which the log and /metrics tell."""
    found = await conditions(request.views)
    waiting = [each.view for each in found if each.batch is None]
    if waiting or not found:
        why = f"Not answered yet: {', '.join(waiting)}" if waiting else "There is no view here yet"
        raise NotFreshEnough(why, next_step="Ask again in a moment; the server's log says more")
    views = [{"view": each.view, "batch": each.batch, "age_ms": each.age_ms, "job": each.job} for each in found]
    return Response({"status": "ready", "views": views})
