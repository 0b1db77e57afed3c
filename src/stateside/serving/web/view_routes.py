"""The routes of views: which there are, and their rows, sums and rollups."""

from __future__ import annotations

from stateside.errors import KeyInvalid
from stateside.serving.reading.sums import Span
from stateside.serving.reading.values import described
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response, stamped
from stateside.serving.web.route import FLOOR, KEY, Parameter, Route, whole


async def _views(request: Request) -> Response:
    note = request.views.note()
    return Response({"views": request.views.states(), **({"note": note} if note else {})})


async def _rows(request: Request) -> Response:
    view, *in_path = request.parts
    floor = request.floor()
    reader = await request.views.ready(view, floor)
    key = reader.shape.parse_key([*in_path, *request.keys])
    if not key and reader.shape.key_parts:
        parts = described(reader.shape.key_parts)
        raise KeyInvalid(f"The rows of {view!r} are asked for by key", next_step=f"Its parts are: {parts}")
    answer = await reader.rows(key, floor)
    return stamped(answer.stamp, {"rows": answer.rows, "cursor": None})


async def _sum(request: Request) -> Response:
    view, *in_path = request.parts
    floor, span = request.floor(), Span.parse(request.parameters)
    reader = await request.views.ready(view, floor)
    answer = await reader.sum(reader.shape.parse_key([*in_path, *request.keys]), span, floor)
    return stamped(answer.stamp, {"rows": answer.rows, "range": answer.range, "buckets": answer.buckets})


async def _rollup(request: Request) -> Response:
    view, *in_path = request.parts
    columns, *parts = in_path or [""]
    floor = request.floor()
    reader = await request.views.ready(view, floor)
    tallies = request.number("tallies", 1) == 1
    answer = await reader.rollup(columns.split(",") if columns else [], [*parts, *request.keys], floor, tallies=tallies)
    made_of = reader.shape.rollups.columns() if tallies else {}
    return stamped(answer.stamp, {"rows": answer.rows, "cursor": None, **made_of})


_SPAN = (
    Parameter("from", "from this time on, which lies on the buckets' borders"),
    Parameter("to", "up to this time; the newest bucket's end if it is not given"),
    Parameter("last", "over the last so long, up to `to`: 90s, 15m, 24h, 7d"),
)
_TALLIES = whole("tallies", "1: the whole numbers that values are made of, to add up those of several shares")
_JOB_STATES = (
    "the views that are served, each with its job's state: running, idle, holding (why), stopped, failed (why), down, "
    "or unknown; of a job that is not ours also those that are refused (why), and a note if it waits"
)
_ROWS = "the rows of one key, or of all keys that begin with these parts"
_SUM = "the buckets of one key, its parts before the window, combined into a row"
_ROLLUP = (
    "the rows added up by some of the key's columns, joined by commas: for one coarser key, or for all that begin with "
    "these parts, or for all; /rollup alone is the total of all rows. The view declares which there are"
)
VIEW_ROUTES = [
    Route("/v1/views", _views, _JOB_STATES),
    Route("/v1/views/{view}/rows", _rows, _ROWS, parameters=(KEY, *FLOOR)),
    Route("/v1/views/{view}/rows/{key...}", _rows, _ROWS, parameters=(KEY, *FLOOR)),
    Route("/v1/views/{view}/sum", _sum, _SUM, parameters=(KEY, *_SPAN, *FLOOR)),
    Route("/v1/views/{view}/sum/{key...}", _sum, _SUM, parameters=(KEY, *_SPAN, *FLOOR)),
    Route("/v1/views/{view}/rollup", _rollup, _ROLLUP, parameters=(KEY, _TALLIES, *FLOOR)),
    Route("/v1/views/{view}/rollup/{by_and_key...}", _rollup, _ROLLUP, parameters=(KEY, _TALLIES, *FLOOR)),
]
