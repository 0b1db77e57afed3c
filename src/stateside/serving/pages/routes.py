"""Routes of pages and assets, which contain no data and are open to anyone; and of the browser session.

The session's routes report the principal, sign in with a token, and sign out.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from stateside.core.errors import RequestInvalid, RouteUnknown, StatesideError, TokenInvalid
from stateside.serving.access.browser_session import presented, signed_in, signed_out
from stateside.serving.access.guard import Guard
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.page import Page
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.request import Request
from stateside.serving.web.response import File, Response
from stateside.serving.web.route import Body, Route
from stateside.views.catalogue import Catalogue

_POLICY: Final = (
    "content-security-policy",
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
)
_FOR_EVER: Final = ("cache-control", "public, max-age=31536000, immutable")
_HTML: Final = "text/html; charset=utf-8"
_HOME: Final = Page("home", "Stateside")


def page_routes(assets: Assets) -> list[Route]:
    """The routes of all pages and assets; the page at `/` leads on to the first page for the principal."""
    found = [_page_route("/", _HOME, assets)]
    for page in assets.pages:
        patterns = (f"/{page.name}", f"/{page.name}/{{rest...}}")
        found += [_page_route(pattern, page, assets) for pattern in patterns]
    return [*found, _asset_route(assets), _icon_route(assets)]


def _page_route(pattern: str, page: Page, assets: Assets) -> Route:
    async def show(request: Request) -> Response:
        return Response({}, file=File(_HTML, content, f"{page.name}.html"), headers=[_POLICY])

    content = rendered(page, assets)
    return Route(pattern, show, page.title, "anyone", kinds=(_HTML,), documented=False)


def rendered(page: Page, assets: Assets) -> bytes:
    """The page's HTML: one template, with the page's name, title and asset address."""
    template = files("stateside.serving.pages").joinpath("static", "page.html").read_text()
    values = {"name": page.name, "title": page.title, "assets": f"/assets/{assets.version}"}
    for name, value in values.items():
        template = template.replace("{{" + name + "}}", escape(value))
    return template.encode()


def _asset_route(assets: Assets) -> Route:
    async def show(request: Request) -> Response:
        version, name = request.parts
        found = assets.get(name) if version == assets.version else None
        if found is None:
            raise RouteUnknown(f"There is nothing of this name here: {name[:80]!r}", next_step="Load the page again")
        headers = [_FOR_EVER, ("vary", "accept-encoding")]
        if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                {}, file=File(found.kind, found.packed, name), headers=[*headers, ("content-encoding", "gzip")]
            )
        return Response({}, file=File(found.kind, found.content, name), headers=headers)

    return Route("/assets/{version}/{name}", show, "a part of a page", "anyone", documented=False)


def _icon_route(assets: Assets) -> Route:
    async def show(request: Request) -> Response:
        found = assets.get("icon.svg")
        assert found is not None, "the icon is one of our own assets"
        return Response({}, file=File(found.kind, found.content, "icon.svg"))

    return Route("/favicon.ico", show, "the icon, for who does not read the page", "anyone", documented=False)


_BODY = Body(
    {
        "type": "object",
        "required": ["token"],
        "additionalProperties": False,
        "properties": {
            "token": {"type": "string", "description": "as `stateside token create` printed it"},
            "keep": {"type": "boolean", "description": "also when the browser is closed, for 30 days"},
        },
    },
    16_384,
)
_ANSWER = {
    "type": "object",
    "required": ["signed_in", "open", "pages"],
    "properties": {
        "signed_in": {"type": "boolean"},
        "open": {"type": "boolean", "description": "no token is needed here: everybody is an operator"},
        "name": {"type": ["string", "null"]},
        "roles": {"type": "array", "items": {"type": "string"}},
        "views": {"type": ["array", "null"], "items": {"type": "string"}},
        "where": {"type": "object"},
        "application": {"type": ["string", "null"]},
        "pages": {"type": "array", "items": {"type": "object", "required": ["address", "title"]}},
    },
}
_WHO = "who asks, by header or cookie, and the pages that are for them; who has no valid token is `signed_in: false`"
_IN = "sign a browser in: the token goes into a cookie that no script can read, and counts like the header from then on"
_OUT = "sign a browser out"


def session_routes(guard: Guard, pages: Sequence[Page], *, secure: bool) -> list[Route]:
    """The session's routes; `secure`: the server uses TLS, and the cookie is sent over TLS only."""

    async def who(request: Request) -> Response:
        try:
            holder = guard.holder(presented(request.headers), request.headers.get("host"))
            return Response(_shown(holder, pages, request.views))
        except TokenInvalid:
            return Response(_nobody())

    async def sign_in(request: Request) -> Response:
        token, keep = _asked(request.document())
        holder = guard.holder(f"Bearer {token}", request.headers.get("host"))
        shown = _shown(holder, pages, request.views)
        headers = [] if holder is OPERATOR else [signed_in(token, request.headers, secure=secure, keep=keep)]
        return Response(shown, headers=headers)

    async def sign_out(request: Request) -> Response:
        return Response(_nobody(), headers=[signed_out(request.headers, secure=secure)])

    address = "/v1/session"
    return [
        Route(address, who, _WHO, "anyone", answer=_ANSWER),
        Route(address, sign_in, _IN, "anyone", method="POST", body=_BODY, answer=_ANSWER),
        Route(address, sign_out, _OUT, "anyone", method="DELETE", answer=_ANSWER),
    ]


def _asked(document: dict[str, Any]) -> tuple[str, bool]:
    """The token to sign in with, and whether the browser keeps the cookie; RequestInvalid for an invalid body."""
    token, keep = document.get("token"), document.get("keep", False)
    if not (isinstance(token, str) and isinstance(keep, bool) and document.keys() <= {"token", "keep"}):
        raise RequestInvalid(
            "Signing in takes a token and, if you like, whether to keep it",
            next_step='Send {"token": "…"} or {"token": "…", "keep": true}',
        )
    return token.strip(), keep


def _nobody() -> dict[str, Any]:
    return {"signed_in": False, "open": False, "name": None, "pages": []}


def _shown(holder: Principal, pages: Sequence[Page], views: ViewReaders) -> dict[str, Any]:
    application = _application(views)
    return {
        "signed_in": True,
        "open": holder is OPERATOR,
        "name": None if holder is OPERATOR else holder.name,
        "roles": sorted(holder.roles),
        "views": None if holder.views is None else sorted(holder.views),
        "where": dict(holder.where),
        "application": application,
        "pages": [page.as_dict() for page in pages if page.is_for(holder, application)],
    }


def _application(views: ViewReaders) -> str | None:
    """The application of the folder's views; None before the first view."""
    for layout in views.layouts():
        try:
            return Catalogue.load(layout.catalogue).application
        except (OSError, StatesideError):
            continue
    return None
