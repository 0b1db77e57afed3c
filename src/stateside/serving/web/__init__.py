"""HTTP: Starlette on uvicorn, with our own protocol in front (`connection`) for checks, limits and the fast path.

`route` has the registry of routes, `application` answers with them, `*_routes` declare the server's own. An
application declares its routes with the names below, and names them in an `Extension`.
"""

from stateside.serving.web.request import Request
from stateside.serving.web.response import JSON, File, Response, StreamResponse, stamped
from stateside.serving.web.route import FLOOR, KEY, Body, Parameter, Route, whole

__all__ = ["FLOOR", "JSON", "KEY", "Body", "File", "Parameter", "Request", "Response", "Route", "StreamResponse"]
__all__ += ["stamped", "whole"]
