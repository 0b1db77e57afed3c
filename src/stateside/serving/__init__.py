"""The server: answers requests over HTTP from the replicas and the archive, each answer with a stamp.

`stamp` is the freshness of an answer, `rows` reads replicas and archive, `changes` streams changes, `sql` runs
statements, `web` has protocol and routes, `fast_path` the point lookups, `access` the tokens and limits, `registry` the
servers of a folder, `health` status and metrics, `clients` the Python clients. `follower` moves the replicas, `server`
runs uvicorn.
"""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.serving.changes.sse import EVENTS
    from stateside.serving.extension import Extension
    from stateside.serving.health.metrics import Metric
    from stateside.serving.pages.page import Page
    from stateside.serving.rows.archive import GatedTable
    from stateside.serving.rows.floor import Floor
    from stateside.serving.rows.relation import not_whole
    from stateside.serving.rows.shape import Shape
    from stateside.serving.rows.view_readers import ViewAnswer, ViewReader
    from stateside.serving.stamp import Stamp, iso_time, parse_time
    from stateside.serving.web.request import Request
    from stateside.serving.web.response import JSON, File, Response, StreamResponse, stamped
    from stateside.serving.web.route import FLOOR, KEY, Body, Parameter, Route, whole
    from stateside.serving.web.view_routes import composed_stream
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.serving.changes.sse": ["EVENTS"],
            "stateside.serving.extension": ["Extension"],
            "stateside.serving.health.metrics": ["Metric"],
            "stateside.serving.pages.page": ["Page"],
            "stateside.serving.rows.floor": ["Floor"],
            "stateside.serving.rows.relation": ["not_whole"],
            "stateside.serving.rows.shape": ["Shape"],
            "stateside.serving.rows.view_readers": ["ViewAnswer", "ViewReader"],
            "stateside.serving.rows.archive": ["GatedTable"],
            "stateside.serving.stamp": ["Stamp", "iso_time", "parse_time"],
            "stateside.serving.web.request": ["Request"],
            "stateside.serving.web.response": ["JSON", "File", "Response", "StreamResponse", "stamped"],
            "stateside.serving.web.route": ["FLOOR", "KEY", "Body", "Parameter", "Route", "whole"],
            "stateside.serving.web.view_routes": ["composed_stream"],
        },
    )

__all__ = [
    "EVENTS",
    "FLOOR",
    "JSON",
    "KEY",
    "Body",
    "Extension",
    "File",
    "Floor",
    "GatedTable",
    "Metric",
    "Page",
    "Parameter",
    "Request",
    "Response",
    "Route",
    "Shape",
    "Stamp",
    "StreamResponse",
    "ViewAnswer",
    "ViewReader",
    "composed_stream",
    "iso_time",
    "not_whole",
    "parse_time",
    "stamped",
    "whole",
]
