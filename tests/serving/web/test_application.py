"""The application, asked without a server: dispatch, metrics and errors."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.access.position_codec import PLAIN
from stateside.serving.access.tokens import Issuer
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Route


async def _names(request: Request) -> Response:
    return Response({"parts": request.parts})


async def _large(request: Request) -> Response:
    return Response({"total": 2**70})  # JSON here ends at 64 bits


async def _header(request: Request) -> Response:
    return Response({"host": [request.headers["Host"], request.headers["host"]]})


async def _missing(request: Request) -> Response:
    raise ModuleNotFoundError("No module named 'fpdf'", name="fpdf")


ROUTES = [
    Route("/v1/missing", _missing, "", "anyone"),
    Route("/v1/header", _header, "", "anyone"),
    Route("/v1/names/{name}/all", _names, "", "anyone"),
    Route("/v1/paths/{path...}", _names, "", "anyone"),
    Route("/v1/large", _large, "", "anyone"),
]


@pytest.fixture
def app(tmp_path: Path) -> Application:
    layout = Layout(tmp_path)
    return Application(ViewReaders(layout), ROUTES, guard=Guard.of(layout))


def ask(app: Application, path: str, method: str = "GET", token: str | None = None) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(asked())


def counted(app: Application, token: str | None = None) -> set[tuple[str, ...]]:
    """The route, method and status of each series of answers."""
    lines = re.findall(r"^stateside_answers_total\{(.*)\}", ask(app, "/metrics", token=token).text, re.MULTILINE)
    return {
        tuple(dict(re.findall(r'(\w+)="(.*?)"', line))[name] for name in ("route", "method", "status"))
        for line in lines
    }


@pytest.mark.parametrize("path", ["/healthz%0A", "/v1/views%0A", "/v1/views/x/rows%0A", "/v1/names/emma/all%0A"])
def test_a_line_feed_after_a_path_makes_it_another_one(app: Application, path: str) -> None:
    answer = ask(app, path)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:stateside:problem:route-unknown")


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v1/names/a%0A/all", ["a\n"]),
        ("/v1/names//all", [""]),
        ("/v1/paths/a/b%0A", ["a", "b\n"]),
        ("/v1/paths/", [""]),
    ],
)
def test_a_part_of_a_path_may_have_any_character(app: Application, path: str, parts: list[str]) -> None:
    assert ask(app, path).json() == {"parts": parts}


def test_an_answer_that_is_no_json_is_a_problem_in_the_log_and_in_the_metrics(
    app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(app, "/v1/large")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "the server's log has the cause" in answer.text
    assert "GET /v1/large failed" in caplog.text
    assert ("/v1/large", "GET", "500") in counted(app)


def test_a_refusal_counts_for_its_route(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    token = Issuer(layout).create("reader", roles=["read"])[0]
    operator = Issuer(layout).create_operator("operator")
    app = Application(ViewReaders(layout), ROUTES, guard=Guard.of(layout))
    ask(app, "/v1/views")
    ask(app, "/metrics", token=token)
    ask(app, "/v1/views", "DELETE", token=token)
    ask(app, "/v1/nothing")
    assert counted(app, operator) == {
        ("/v1/views", "GET", "401"),
        ("/metrics", "GET", "403"),
        ("/v1/views", "DELETE", "405"),
        ("none", "GET", "401"),
    }


def test_a_handler_finds_a_header_in_any_case(app: Application) -> None:
    assert ask(app, "/v1/header").json() == {"host": ["localhost", "localhost"]}


def test_a_package_that_is_not_installed_is_named_with_its_extra(app: Application) -> None:
    answer = ask(app, "/v1/missing")
    assert answer.status_code == 503
    assert "pip install 'stateside[" in answer.json()["next_step"]


def test_only_an_opaque_codec_copies_a_response() -> None:
    response = Response({})
    assert response.shown(PLAIN) is response
