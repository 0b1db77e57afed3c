"""What pages are made of: served as it was written, kept by browsers for ever, and nothing of it unknown."""

from __future__ import annotations

import asyncio
import gzip
import re
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest

from stateside.core.errors import RouteUnknown
from stateside.core.layout import Layout
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.principal import OPERATOR, customer
from stateside.serving.changes.feed import Feeds
from stateside.serving.pages.assets import Assets
from stateside.serving.pages.routes import page_routes, rendered
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response

PACKAGES = ("stateside.serving.pages", "stateside.billing.pages")
STATIC = "src/stateside/serving/pages/static"
VENDORED = {  # from npm, @fontsource-variable/inter 5.3.0 and axe-core 4.14.0
    f"{STATIC}/inter-latin.woff2": "3100e775e8616cd2611beecfa23a4263d7037586789b43f035236a2e6fbd4c62",
    f"{STATIC}/inter-latin-ext.woff2": "34b9c504cab7a73e37b746343a449132e56cf7b5481af2cb81dc74dcff25c956",
    "tests/pages/vendored/axe.min.js": "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878",
}
TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def assets() -> Assets:
    return Assets(PACKAGES[1:])


def asked(assets: Assets, layout: Layout, version: str, name: str, **headers: str) -> Response:
    route = next(each for each in page_routes(assets) if each.pattern.startswith("/assets"))
    views = ViewReaders(layout)
    request = Request((version, name), (), {}, views, Feeds(views), headers=headers)

    async def answer() -> Response:
        return await route.handler(request)

    return asyncio.run(answer())


@pytest.mark.parametrize("path", VENDORED)
def test_what_is_not_ours_is_what_was_published_and_has_its_licence(path: str) -> None:
    file = TOP / path
    assert sha256(file.read_bytes()).hexdigest() == VENDORED[path]
    assert list(file.parent.glob("*LICENSE.txt"))


def test_an_asset_is_kept_for_ever_and_sent_packed_to_who_takes_that(assets: Assets, layout: Layout) -> None:
    plain = asked(assets, layout, assets.version, "base.css")
    packed = asked(assets, layout, assets.version, "base.css", **{"accept-encoding": "gzip, br"})
    assert plain.file is not None
    assert packed.file is not None
    assert gzip.decompress(packed.file.content) == plain.file.content
    assert ("content-encoding", "gzip") in packed.headers
    assert ("cache-control", "public, max-age=31536000, immutable") in plain.headers
    assert "no-store" not in dict(security_headers(plain.file.kind, plain.headers)).values()


def test_another_version_or_name_is_not_there(assets: Assets, layout: Layout) -> None:
    for version, name in ((assets.version, "../page.py"), (assets.version, "page.html"), ("000000000000", "base.css")):
        with pytest.raises(RouteUnknown):
            asked(assets, layout, version, name)


def test_every_page_has_its_module_and_style_and_loads_only_what_there_is(assets: Assets) -> None:
    for page in assets.pages:
        html = rendered(page, assets).decode()
        named = re.findall(r'(?:href|src)="([^"#]+)"', html)
        loaded = [each for each in named if each.startswith("/assets/")]
        assert {f"{page.name}.js", f"{page.name}.css"} <= {each.rpartition("/")[2] for each in loaded}
        assert all(each == assets.address(each.rpartition("/")[2]) for each in loaded)
        assert all(assets.get(each.rpartition("/")[2]) for each in loaded)
        assert not re.search(r"<style|style=|onclick|<script(?! (type=\"module\" )?src=)|https?:", html)


@pytest.mark.parametrize("package", PACKAGES)
def test_scripts_and_styles_name_only_what_there_is_and_no_other_host(assets: Assets, package: str) -> None:
    for file in files(package).joinpath("static").iterdir():
        if not file.name.endswith((".js", ".css")):
            continue
        content = file.read_text()
        for name in re.findall(r"""(?:from|import|url\()\s*["']\./([^"']+)["']""", content):
            assert assets.get(name), f"{file.name} names {name}"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function", content), file.name
        assert re.findall(r"https?://[^\s\"'`]+", content) in ([], ["http://www.w3.org/2000/svg"]), file.name


def test_pages_are_for_those_who_have_something_to_see_there(assets: Assets) -> None:
    def names(holder: object, application: str | None) -> list[str]:
        return [page.name for page in assets.pages if page.is_for(holder, application)]  # type: ignore[arg-type]

    assert names(OPERATOR, "billing") == ["bill", "business", "control", "views"]
    assert names(OPERATOR, None) == ["control", "views"]
    assert names(customer("emma's page", "emma"), "billing") == ["bill"]
