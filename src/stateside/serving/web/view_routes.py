"""The routes of views: the list of views, a view's description, its rows by key, scan, lookup, sum and rollup, its
changes, as server-sent events or as one page by long-poll, and SQL over views: the relations, a statement's result.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.replica.store import Snapshot
from stateside.serving.changes.sse import EVENTS, EventId, event, listed, told
from stateside.serving.changes.subscription import ChangesPage, RowsPage, Subscription
from stateside.serving.changes.watch import Watch, composed
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.row_query import (
    KEYS_MAX,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    ORDERED_LIMIT_MAX,
    key_source,
    lookup,
    page,
    parse_columns,
    parse_keys,
)
from stateside.serving.rows.shape import Rollup
from stateside.serving.rows.sums import BucketRange
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.rows.view_readers import ViewReaders, without_cause
from stateside.serving.sql.pool import SqlPool
from stateside.serving.sql.result import KINDS
from stateside.serving.sql.sql_query import SCHEMA, SqlQuery
from stateside.serving.stamp import Stamp
from stateside.serving.web.request import Request, ViewRequest, reaches, reaches_all
from stateside.serving.web.response import JSON, Response, StreamResponse, as_json, stamped
from stateside.serving.web.route import FLOOR, KEY, SOURCES, Body, Parameter, Route, Schema, whole
from stateside.views.aggregates import not_in_rollups
from stateside.views.catalogue import Catalogue
from stateside.views.functions import TYPE

Composer = Callable[[], Awaitable[tuple[str, Mapping[str, Any]] | None]]
_RELATIONS = "what a statement can name: views, their rollups and tables of the archive, with their columns"
_SQL = (
    "the result of one SELECT, as JSON, CSV or an Arrow stream, over one snapshot of each view that it names; the"
    " stamps stand in the body, or in the header Stateside-Stamps"
)
_SQL_ANSWER = {
    "type": "object",
    "required": ["stamps", "columns", "rows"],
    "properties": {
        "stamps": {"type": "array", "items": {"type": "object"}},
        "columns": {"type": "array", "items": {"type": "object", "required": ["name", "type"]}},
        "rows": {"type": "array", "items": {"type": "array"}},
    },
}
_RELATIONS_ANSWER = {
    "type": "object",
    "required": ["relations"],
    "properties": {"relations": {"type": "array", "items": {"type": "object", "required": ["name", "view", "kind"]}}},
}


async def _views(request: Request) -> Response:
    views, holder = request.views, request.holder
    states = [{**each, **_lacking(views, each["view"])} for each in views.states()]
    if reaches_all(holder):
        further = {"note": views.note(), "leadership": views.leadership()}
        return Response({"views": states, **{name: told for name, told in further.items() if told}})
    return Response({"views": [without_cause(each) for each in states if reaches(holder, views, each["view"])]})


def _lacking(views: ViewReaders, name: str) -> dict[str, list[str]]:
    """The columns missing from the view's rollups; empty if there are none, or the view cannot be read."""
    with suppress(StatesideError):
        if lacking := not_in_rollups(views.get(name).shape.catalogue):
            return {"not_in_rollups": lacking}
    return {}


async def _rows(request: Request) -> Response:
    asked = await ViewRequest.of(request)
    question, relation = asked.question(request), asked.relation
    cursor = request.parameters.get("cursor")
    if cursor is None and question.point:
        found = await lookup(
            relation, [question.key], asked.floor, as_of=asked.as_of, show=question.show, source=question.source
        )
        return stamped(found.stamp, {"rows": [row for row in found.rows if row is not None], "cursor": None})
    answer = await page(relation, question, asked.floor, as_of=asked.as_of, cursor=cursor)
    return stamped(answer.stamp, {"rows": answer.rows, "cursor": answer.cursor})


async def _lookup(request: Request) -> Response:
    asked = await ViewRequest.of(request)
    relation = asked.relation
    answer = await lookup(
        relation,
        parse_keys(relation.shape, request.document()),
        asked.floor,
        as_of=asked.as_of,
        show=parse_columns(relation.shape, request.parameters.get("columns")),
        source=key_source(relation, request.parameters.get("source")),
    )
    return stamped(answer.stamp, {"rows": answer.rows, "cursor": None})


async def _sum(request: Request) -> Response:
    asked, span = await ViewRequest.of(request), BucketRange.parse(request.parameters)
    key = asked.relation.table.parse_key([*request.parts[1:], *request.keys])
    given = request.parameters.get("source")
    source = None if given is None else asked.relation.source(given, "live")
    answer = await asked.relation.sum(key, span, asked.floor, asked.as_of, source)
    return stamped(answer.stamp, {"rows": answer.rows, "range": answer.range, "buckets": answer.buckets})


async def _rollup(request: Request) -> Response:
    columns, *parts = request.parts[1:] or [""]
    asked = await ViewRequest.of(request, columns.split(",") if columns else [])
    relation, tallies = asked.relation, request.number("tallies", 1) == 1
    source, rollup = relation.source(request.parameters.get("source"), "live"), relation.table
    assert isinstance(rollup, Rollup)
    answer = await relation.rollup([*parts, *request.keys], asked.floor, asked.as_of, source, tallies=tallies)
    made_of = rollup.made_of() if tallies else {}
    lacking = not_in_rollups(rollup.catalogue) + ([] if source == "live" else rollup.sums.apart_finished)
    without = {"not_in_rollups": lacking} if lacking else {}
    return stamped(answer.stamp, {"rows": answer.rows, "cursor": None, **without, **made_of})


_AS_OF = whole("as_of", "as of this batch, out of the replica's history")
_GENERATION = whole("generation", "of this generation of the view, the present one or one that is kept; with as_of", 1)
_PAST = (_AS_OF, _GENERATION)
_COLUMNS = Parameter("columns", "only these columns, joined by commas")
_SCAN = (
    Parameter(
        "where",
        "only rows that meet this: a column, one of = != < <= > >=, a value; or a column and ` is null`, "
        "` is not null`; once for each condition",
        repeated=True,
    ),
    Parameter("order", "by this column, with - in front from the greatest on; by key without it"),
    whole("limit", f"so many rows a page: {LIMIT_DEFAULT} by default in a scan, {LIMIT_MAX:,} at most", 1),
    Parameter("cursor", "the page that begins here: as the page before has it"),
)
_SOURCE = Parameter(
    "source",
    "live rows, those in the archive, or both: both is the default for keys in a view with an archive, live for scans",
    SOURCES,
)
_SUM_SOURCE = Parameter(
    "source",
    "live buckets, sealed ones, or both, which is the default for a range that begins before the live ones",
    SOURCES,
)
_ROLLUP_SOURCE = Parameter(
    "source", "of live rows, which is the default, of those in the archive, or of both: the stamp says which", SOURCES
)
_SPAN = (
    Parameter("from", "from this time on, which lies on the buckets' borders"),
    Parameter("to", "up to this time; the newest bucket's end if it is not given"),
    Parameter("last", "over the last so long, up to `to`: 90s, 15m, 24h, 7d"),
)
_TALLIES = whole("tallies", "1: the whole numbers that values are made of, to add up those of several shares")
_ROW_PARAMETERS = (KEY, *_SCAN, _COLUMNS, _SOURCE, *_PAST, *FLOOR)
_KEYS: Schema = {
    "type": "object",
    "required": ["keys"],
    "additionalProperties": False,
    "properties": {
        "keys": {
            "type": "array",
            "minItems": 1,
            "maxItems": KEYS_MAX,
            "items": {"type": ["array", "string", "number", "boolean", "null", "object"]},
        }
    },
}
_JOB_STATES = (
    "the views that are served, each with its job's state: running, idle, holding (why), stopped, failed (why), down, "
    "removed (no longer declared), or unknown; of a job that is not ours also those that are refused (why), and a note "
    "if it waits; of a job with a lease, to a holder who may read all, its leadership: the epoch, the leader and the "
    "standbys. A scoped token is not told why. `not_in_rollups` names the columns that a view's rollups lack"
)
_ROWS = "the rows of one key, or of all keys that begin with these parts; filtered, ordered and paged if asked for"
_ALL_ROWS = (
    f"all rows, page by page, filtered; in the order of their keys, or the first {ORDERED_LIMIT_MAX:,} at most in that "
    "of a column"
)
_LOOKUP = f"the rows of up to {KEYS_MAX:,} whole keys in their order, null where there is none"
_SUM = "the buckets of one key, its parts before the window, combined into a row"
_ROLLUP = (
    "the rows added up by some of the key's columns, joined by commas: for one coarser key, or for all that begin with "
    "these parts, or for all; /rollup alone is the total of all rows. The view declares which there are. Columns that "
    "cannot be added up, such as minima, are named in `not_in_rollups`"
)
_SUM_PARAMETERS = (KEY, *_SPAN, _SUM_SOURCE, *_PAST, *FLOOR)
_ROLLUP_PARAMETERS = (KEY, _ROLLUP_SOURCE, _TALLIES, *_PAST, *FLOOR)
VIEW_ROUTES = [
    Route("/v1/views", _views, _JOB_STATES, "read"),
    Route("/v1/views/{view}/rows", _rows, _ALL_ROWS, "read", _ROW_PARAMETERS),
    Route("/v1/views/{view}/rows/{key...}", _rows, _ROWS, "read", _ROW_PARAMETERS),
    Route(
        "/v1/views/{view}/lookup", _lookup, _LOOKUP, "read", (_COLUMNS, _SOURCE, *_PAST, *FLOOR), "POST", Body(_KEYS)
    ),
    Route("/v1/views/{view}/sum", _sum, _SUM, "read", _SUM_PARAMETERS),
    Route("/v1/views/{view}/sum/{key...}", _sum, _SUM, "read", _SUM_PARAMETERS),
    Route("/v1/views/{view}/rollup", _rollup, _ROLLUP, "read", _ROLLUP_PARAMETERS),
    Route("/v1/views/{view}/rollup/{by_and_key...}", _rollup, _ROLLUP, "read", _ROLLUP_PARAMETERS),
]
_TEXT = "what a view is: its key and columns with their types, its rollups, its job's state, and how many rows it has"
_COLUMN_LIST = {"type": "array", "items": {"type": "object", "required": ["name", "type"]}}
_ANSWER = {
    "type": "object",
    "required": ["stamp", "view", "key", "columns", "rollups"],
    "properties": {
        "stamp": {"type": "object"},
        "view": {"type": "string"},
        "application": {"type": "string"},
        "key": _COLUMN_LIST,
        "columns": _COLUMN_LIST,
        "rollups": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "not_in_rollups": {
            "type": "array",
            "items": {"type": "string"},
            "description": "columns that rollups lack, as a minimum cannot be taken away again",
        },
        "rows": {"type": ["integer", "null"], "description": "null for who does not reach all of them"},
        "job": {"type": "object"},
    },
}


async def _describe(request: Request) -> Response:
    asked = await ViewRequest.of(request)

    def look(snapshot: Snapshot, stamp: Stamp) -> tuple[Stamp, int]:
        return stamp, snapshot.count()

    stamp, rows = await asked.relation.reader.read(asked.floor, look)
    job, is_all = request.views.state(request.parts[0]), reaches_all(request.holder)
    shown = {"rows": rows, "job": job} if is_all else {"rows": None, "job": without_cause(job)}
    return stamped(stamp, {**described(asked.relation.shape.catalogue), **shown})


def described(catalogue: Catalogue) -> dict[str, Any]:
    """The catalogue's part of a view's description."""
    columns = [{"name": column.name, "type": column.type, "made_of": column.expression} for column in catalogue.columns]
    columns += [{"name": one.name, "type": TYPE, "made_of": f"computed of {one.of}"} for one in catalogue.computed]
    return {
        "view": catalogue.view,
        "application": catalogue.application,
        "key": [{"name": column.name, "type": column.type} for column in catalogue.key],
        "columns": columns,
        "rollups": [list(by) for by in catalogue.rollups],
        "not_in_rollups": not_in_rollups(catalogue),
    }


VIEW_ROUTES.append(Route("/v1/views/{view}", _describe, _TEXT, "read", FLOOR, answer=_ANSWER))
_NO_BUFFERS = ("x-accel-buffering", "no")  # proxies must pass events on at once
_CHANGES_TEXT = (
    "the rows of one key, of all keys that begin with these parts, or of the whole view, and from then on what every "
    "batch changes: as server-sent events or, with `Accept: application/json`, once, waited for (wait_ms)"
)
_CHANGES_PARAMETERS = (
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
_CHANGES_ANSWER = {
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
    asked = await ViewRequest.of(request, _followed_rollup(request))
    question = Subscription.ask(asked.relation, request.keys, request.positions, request.parameters.get("source"))
    watch = Watch(request.feeds.of(asked.relation.reader), question, pulsed=request.number("pulse", 1) == 1)
    after = request.parameters.get("after")
    if "application/json" in request.headers.get("accept", ""):
        return _once(await watch.once(_last(after), asked.floor))
    begun = await watch.begin(_last(request.headers.get("last-event-id") or after), asked.floor)
    return _events(watch.parts(begun))


VIEW_ROUTES.append(
    Route(
        "/v1/views/{view}/changes",
        _changes,
        _CHANGES_TEXT,
        "read",
        _CHANGES_PARAMETERS,
        answer=_CHANGES_ANSWER,
        kinds=(EVENTS, JSON),
    )
)


async def composed_stream(request: Request, reader: ViewReader, key: Sequence[str], compose: Composer) -> Response:
    """The server-sent events that an application composes from a key's rows and other data.

    `compose` returns an event's kind and document, at the newest batch; or None if the subscriber has all of that.
    When it is called: see `watch.composed`. Its first errors are the response's. The route checks the principal's
    access to the key.
    """

    async def event_() -> bytes:
        made = await compose()
        return b"" if made is None else event(made[0], orjson.Fragment(as_json(made[1], request.positions)))

    question = Subscription.ask(Relation(reader), key, request.positions)
    first = await event_()
    return _events(composed(request.feeds.of(reader), question, first, event_))


def _events(parts: AsyncGenerator[bytes]) -> Response:
    return Response({}, stream=StreamResponse(EVENTS, parts, _cut), headers=[_NO_BUFFERS])


def _cut(why: str) -> bytes:
    reason, _, detail = why.partition(": ")
    return told("cut", reason, detail)


def _last(text: str | None) -> EventId | None:
    return None if text is None else EventId.parse(text)


def _followed_rollup(request: Request) -> list[str] | None:
    columns = request.parameters.get("rollup")
    return None if columns is None else [name for name in columns.split(",") if name]


def _once(page: RowsPage | ChangesPage) -> Response:
    document: dict[str, Any] = {"id": str(EventId.of(page.batch))}
    if isinstance(page, RowsPage):
        document |= {"rows": listed(page.rows), "cursor": None}
    else:
        document |= {"after": page.after, "changed": listed(page.changed), "removed": listed(page.removed)}
    return stamped(page.stamp, document)


class SqlRoutes:
    """The handlers of /v1/sql, and the pool of SQL processes."""

    def __init__(self, layout: Layout, tables: Sequence[str] = ()) -> None:
        self._pool = SqlPool(layout, tables)

    async def relations(self, request: Request) -> Response:
        """The relations that the principal may read."""
        return Response({"relations": await self._pool.listed(request.holder)})

    async def run(self, request: Request) -> Response:
        """The result of a statement, as a stream."""
        question = SqlQuery.parse(request.document())
        running = await self._pool.run(question, request.holder, request.floor(), request.left)
        stamps = json.dumps([request.positions.stamp(stamp).as_dict() for stamp in running.stamps])
        return Response(
            {},
            running.stamps,
            stream=StreamResponse(running.kind, running, running.cut),
            headers=[("stateside-stamps", stamps)],
        )


def sql_routes(layout: Layout, tables: Sequence[str] = ()) -> list[Route]:
    """The routes of SQL over a folder; `tables` names, as `module:function`, the sources of `GatedTable`s."""
    routes = SqlRoutes(layout, tables)
    return [
        Route("/v1/sql", routes.relations, _RELATIONS, "sql", answer=_RELATIONS_ANSWER),
        Route("/v1/sql", routes.run, _SQL, "sql", FLOOR, "POST", Body(SCHEMA), _SQL_ANSWER, KINDS),
    ]
