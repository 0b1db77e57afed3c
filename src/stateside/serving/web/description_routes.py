"""The route that describes a view: its key, its columns, its rollups, and where it stands."""

from __future__ import annotations

from typing import Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import TYPE
from stateside.checkpoint.tallies import not_in_rollups
from stateside.replica.store import Snapshot
from stateside.serving.reading.views import without_cause
from stateside.serving.stamp import Stamp
from stateside.serving.web.asked import Asked, reaches_all
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response, stamped
from stateside.serving.web.route import FLOOR, Route

_TEXT = "what a view is: its key and columns with their types, its rollups, its job's state, and how many rows it has"
_COLUMNS = {"type": "array", "items": {"type": "object", "required": ["name", "type"]}}
_ANSWER = {
    "type": "object",
    "required": ["stamp", "view", "key", "columns", "rollups"],
    "properties": {
        "stamp": {"type": "object"},
        "view": {"type": "string"},
        "application": {"type": "string"},
        "key": _COLUMNS,
        "columns": _COLUMNS,
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
    asked = await Asked.of(request)

    def look(snapshot: Snapshot, stamp: Stamp) -> tuple[Stamp, int]:
        return stamp, snapshot.count()

    stamp, rows = await asked.reader.read(asked.floor, look)
    job, is_all = request.views.state(request.parts[0]), reaches_all(request.holder)
    shown = {"rows": rows, "job": job} if is_all else {"rows": None, "job": without_cause(job)}
    return stamped(stamp, {**described(asked.reader.shape.catalogue), **shown})


def described(catalogue: Catalogue) -> dict[str, Any]:
    """What the catalogue says of a view, as it stands in an answer."""
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


DESCRIPTION_ROUTES = [Route("/v1/views/{view}", _describe, _TEXT, "read", FLOOR, answer=_ANSWER)]
