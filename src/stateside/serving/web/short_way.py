"""The short way through the application: `GET /v1/views/{view}/rows/{key...}` with a whole key and nothing else.

It gives the same answer as the long way, with the same headers, in a seventh of the time (`reading.point`), or none at
all: then the long way answers. That is so for keys that are not whole, parameters, `If-None-Match`, tokens that reach
only some rows, views with an archive, replicas without a batch, and every error.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from stateside.replica.moment import MOMENT_S
from stateside.serving.access.guard import Visit
from stateside.serving.access.headers import security_headers
from stateside.serving.health.traces import answered_with
from stateside.serving.reading.point import PointReader
from stateside.serving.reading.views import Views
from stateside.serving.web.asked import reaches_all
from stateside.serving.web.etag import etag
from stateside.serving.web.request import PATH_CHARS_MAX

ROUTE: Final = "/v1/views/{view}/rows/{key...}"
_KIND: Final = ("content-type", "application/json")
_SECURITY: Final = tuple(security_headers("application/json"))


class ShortWay:
    """Answers what can be answered at once: one for each worker process."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._kept: dict[str, PointReader] = {}
        self._points: dict[str, PointReader] = {}  # those whose catalogue was looked at a moment ago

    def answer(self, visit: Visit, scope: Any, protocol: Any) -> bool:
        """Answer, if this is such a question; whether it was."""
        path = scope.path
        if scope.method != "GET" or scope.query_string or len(path) > PATH_CHARS_MAX:
            return False
        parts = path.split("/")
        if len(parts) < 6 or parts[4] != "rows" or parts[2] != "views" or parts[1] != "v1":
            return False
        try:
            holder = visit.enter()
            if not reaches_all(holder) or "read" not in holder.roles:
                return False
            points = self._of(parts[3])
            if points is None or len(parts) - 5 != points.parts:
                return False
            found = points.find(parts[5:])
        except Exception:  # whatever it is, the long way meets it as well, and tells it as it should be told
            return False
        headers = scope.headers
        if found is None or headers.get("if-none-match") is not None:
            return False
        told, age_ms, body = found
        age = "stateside-age-ms", str(age_ms)
        tag = "etag", etag(told.stamp, path, "", holder)
        trace = answered_with(headers.get("traceparent"))
        protocol.response_bytes(200, [_KIND, *told.headers, age, tag, trace, *_SECURITY], body)
        visit.route = ROUTE
        return True

    def _of(self, view: str) -> PointReader | None:
        """What finds a view's rows; None if it has an archive too."""
        found = self._points.get(view)
        if found is None:
            reader = self._views.get(view)
            kept = self._kept.get(view)
            found = kept if kept is not None and kept.reader is reader else PointReader(reader)
            self._kept[view] = self._points[view] = found
            asyncio.get_running_loop().call_later(MOMENT_S, self._let_go, view)
        return found if found.reader.sealed is None else None

    def _let_go(self, view: str) -> None:
        """Have a view's catalogue looked at again before its next answer, and its snapshot taken anew."""
        self._points.pop(view).moment.release()
