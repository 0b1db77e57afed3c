"""The SQL routes: list the relations, run a statement."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stateside.core.layout import Layout
from stateside.serving.sql.pool import SqlPool
from stateside.serving.sql.result import KINDS
from stateside.serving.sql.sql_query import SCHEMA, SqlQuery
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response, StreamResponse
from stateside.serving.web.route import FLOOR, Body, Route

_RELATIONS = "what a statement can name: views, their rollups and tables of the archive, with their columns"
_SQL = (
    "the result of one SELECT, as JSON, CSV or an Arrow stream, over one snapshot of each view that it names; the"
    " stamps stand in the body, or in the header Stateside-Stamps"
)
_ANSWER = {
    "type": "object",
    "required": ["stamps", "columns", "rows"],
    "properties": {
        "stamps": {"type": "array", "items": {"type": "object"}},
        "columns": {"type": "array", "items": {"type": "object", "required": ["name", "type"]}},
        "rows": {"type": "array", "items": {"type": "array"}},
    },
}
_LISTING = {
    "type": "object",
    "required": ["relations"],
    "properties": {"relations": {"type": "array", "items": {"type": "object", "required": ["name", "view", "kind"]}}},
}


class SqlRoutes:
    """The handlers, and the pool of SQL processes."""

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
    """The routes over a folder; `tables` names, as `module:function`, the sources of `GatedTable`s."""
    routes = SqlRoutes(layout, tables)
    return [
        Route("/v1/sql", routes.relations, _RELATIONS, "sql", answer=_LISTING),
        Route("/v1/sql", routes.run, _SQL, "sql", FLOOR, "POST", Body(SCHEMA), _ANSWER, KINDS),
    ]
