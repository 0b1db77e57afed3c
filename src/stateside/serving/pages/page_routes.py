"""The routes of pages and assets. There is nothing of anybody's data in them: anyone may have them."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Final

from stateside.errors import RouteUnknown
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.page import Page
from stateside.serving.web.request import Request
from stateside.serving.web.response import File, Response
from stateside.serving.web.route import Route

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
    """Those of all pages that these assets are of; `/` leads on to the first one that is for who asks."""
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
    """The page's HTML: the same for all, but for its name and what it loads."""
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
