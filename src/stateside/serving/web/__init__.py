"""HTTP: Starlette on uvicorn, with our own protocol in front (`connection`) for checks, limits and the fast path.

`route` has the registry of routes, `application` answers with them, `*_routes` declare the server's own. An
application declares its routes with the names of `stateside.serving`, and names them in an `Extension`.
"""
