"""The route of the status, for the control room."""

from __future__ import annotations

from stateside.layout import Layout
from stateside.serving.health.status import Status
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Route

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
    """The route over a folder."""
    status = Status(layout)

    async def show(request: Request) -> Response:
        return Response(await status.now(request.views))

    return [Route("/v1/status", show, _TEXT, "operator", answer=_ANSWER)]
