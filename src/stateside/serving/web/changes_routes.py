"""The changes route: server-sent events, or one page by long-poll."""

from __future__ import annotations

from typing import Any

from stateside.serving.changes.feed import Feeds
from stateside.serving.changes.pages import ChangesPage, RowsPage
from stateside.serving.changes.sse import KIND, EventId, listed, told
from stateside.serving.changes.subscription import Subscription
from stateside.serving.changes.watch import Watch
from stateside.serving.web.request import Request, ViewRequest
from stateside.serving.web.response import JSON, Response, StreamResponse, stamped
from stateside.serving.web.route import FLOOR, KEY, SOURCES, Parameter, Route, whole

_NO_BUFFERS = ("x-accel-buffering", "no")  # proxies must pass events on at once
_TEXT = (
    "the rows of one key, of all keys that begin with these parts, or of the whole view, and from then on what every "
    "batch changes: as server-sent events or, with `Accept: application/json`, once, waited for (wait_ms)"
)
_PARAMETERS = (
    KEY,
    Parameter(
        "rollup", "instead of the rows those of the rollup by these columns, joined by commas; empty for the total"
    ),
    Parameter(
        "source",
        "live rows, which is the default: a sealed row is removed; both: it stays; archive: each row once it is sealed",
        SOURCES,
    ),
    whole("pulse", "1: also tell every second, by an event `pulse`, how old it all is by now, and how the job is"),
    Parameter("after", "the id of the last event that you have, as the header Last-Event-ID: go on behind it"),
    *FLOOR,
)
_ANSWER = {
    "type": "object",
    "required": ["stamp", "id"],
    "properties": {
        "stamp": {"type": "object"},
        "id": {"type": "string"},
        "rows": {"type": "array", "items": {"type": "object"}},
        "after": {"type": "integer"},
        "changed": {"type": "array", "items": {"type": "object"}},
        "removed": {"type": "array", "items": {"type": "object"}},
    },
}


def changes_routes(feeds: Feeds) -> list[Route]:
    async def changes(request: Request) -> Response:
        asked = await ViewRequest.of(request, _rollup(request))
        question = Subscription.ask(asked.relation, request.keys, request.positions, request.parameters.get("source"))
        watch = Watch(feeds.of(asked.relation.reader), question, pulsed=request.number("pulse", 1) == 1)
        after = request.parameters.get("after")
        if "application/json" in request.headers.get("accept", ""):
            return _once(await watch.once(_last(after), asked.floor))
        begun = await watch.begin(_last(request.headers.get("last-event-id") or after), asked.floor)
        return Response({}, stream=StreamResponse(KIND, watch.parts(begun), _cut), headers=[_NO_BUFFERS])

    pattern = "/v1/views/{view}/changes"
    return [
        Route(
            pattern, changes, _TEXT, "read", parameters=_PARAMETERS, answer=_ANSWER, kinds=("text/event-stream", JSON)
        )
    ]


def _cut(why: str) -> bytes:
    reason, _, detail = why.partition(": ")
    return told("cut", reason, detail)


def _last(text: str | None) -> EventId | None:
    return None if text is None else EventId.parse(text)


def _rollup(request: Request) -> list[str] | None:
    columns = request.parameters.get("rollup")
    return None if columns is None else [name for name in columns.split(",") if name]


def _once(page: RowsPage | ChangesPage) -> Response:
    document: dict[str, Any] = {"id": str(EventId.of(page.batch))}
    if isinstance(page, RowsPage):
        document |= {"rows": listed(page.rows), "cursor": None}
    else:
        document |= {"after": page.after, "changed": listed(page.changed), "removed": listed(page.removed)}
    return stamped(page.stamp, document)
