"""The changes route: server-sent events, or one page by long-poll; and streams composed by applications."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from stateside.serving.changes.pages import ChangesPage, RowsPage
from stateside.serving.changes.sse import EVENTS, EventId, event, listed, told
from stateside.serving.changes.subscription import Subscription
from stateside.serving.changes.watch import Watch, composed
from stateside.serving.rows.scope import EVERYTHING
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.web.request import Request, ViewRequest
from stateside.serving.web.response import JSON, Response, StreamResponse, as_json, stamped
from stateside.serving.web.route import FLOOR, KEY, Parameter, Route, whole

Composer = Callable[[], Awaitable[tuple[str, Mapping[str, Any]] | None]]
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


async def _changes(request: Request) -> Response:
    asked = await ViewRequest.of(request)
    question = Subscription.ask(asked.reader.shape, request.keys, _rollup(request), asked.scope, request.positions)
    watch = Watch(request.feeds.of(asked.reader), question, pulsed=request.number("pulse", 1) == 1)
    after = request.parameters.get("after")
    if "application/json" in request.headers.get("accept", ""):
        return _once(await watch.once(_last(after), asked.floor))
    begun = await watch.begin(_last(request.headers.get("last-event-id") or after), asked.floor)
    return _events(watch.parts(begun))


CHANGES_ROUTES = [
    Route("/v1/views/{view}/changes", _changes, _TEXT, "read", _PARAMETERS, answer=_ANSWER, kinds=(EVENTS, JSON))
]


async def composed_stream(request: Request, reader: ViewReader, key: Sequence[str], compose: Composer) -> Response:
    """The server-sent events that an application composes from a key's rows and other data.

    `compose` returns an event's kind and document, at the newest batch; or None if the subscriber has all of that.
    When it is called: see `watch.composed`. Its first errors are the response's. The route checks the principal's
    access to the key.
    """

    async def event_() -> bytes:
        made = await compose()
        return b"" if made is None else event(made[0], orjson.Fragment(as_json(made[1], request.positions)))

    question = Subscription.ask(reader.shape, key, None, EVERYTHING, request.positions)
    first = await event_()
    return _events(composed(request.feeds.of(reader), question, first, event_))


def _events(parts: AsyncGenerator[bytes]) -> Response:
    return Response({}, stream=StreamResponse(EVENTS, parts, _cut), headers=[_NO_BUFFERS])


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
