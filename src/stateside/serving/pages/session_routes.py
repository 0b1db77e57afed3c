"""The routes of a browser's session: who am I here, signing in with a token, signing out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.errors import RequestInvalid, StatesideError, TokenInvalid
from stateside.serving.access.guard import Guard
from stateside.serving.access.holder import OPERATOR, Holder
from stateside.serving.access.session import presented, signed_in, signed_out
from stateside.serving.pages.page import Page
from stateside.serving.reading.views import Views
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Body, Route

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
    """The routes; `secure`: this server speaks TLS, and the cookie goes nowhere else."""

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
    """The token to sign in with, and whether the browser is to keep it; RequestInvalid against the schema."""
    token, keep = document.get("token"), document.get("keep", False)
    if not (isinstance(token, str) and isinstance(keep, bool) and document.keys() <= {"token", "keep"}):
        raise RequestInvalid(
            "Signing in takes a token and, if you like, whether to keep it",
            next_step='Send {"token": "…"} or {"token": "…", "keep": true}',
        )
    return token.strip(), keep


def _nobody() -> dict[str, Any]:
    return {"signed_in": False, "open": False, "name": None, "pages": []}


def _shown(holder: Holder, pages: Sequence[Page], views: Views) -> dict[str, Any]:
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


def _application(views: Views) -> str | None:
    """Whose views these are; None before the first one."""
    for layout in views.layouts():
        try:
            return Catalogue.load(layout.catalogue).application
        except (OSError, StatesideError):
            continue
    return None
