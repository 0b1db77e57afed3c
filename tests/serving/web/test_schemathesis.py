"""A server that is asked all that its OpenAPI document allows, and what it does not: never an error of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans

from stateside.core.layout import Layout
from tests.serving.cluster import Cluster
from tests.serving.conftest import serving
from tests.sizes import examples

from .application import make_application

pytestmark = pytest.mark.e2e

FLOOR = ("min_position", "max_age_ms", "wait_ms", "as_of")
NOT_READY = 503  # what a floor that is not reached is answered with: no error of the server's


BILLING = "billing's folder"
FOLDERS = ["another job's checkpoint", "an application's folder", pytest.param(BILLING, marks=pytest.mark.spark)]


@pytest.fixture(scope="module", params=FOLDERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Only the first one has no journal to append to; billing's has the application's own routes."""
    folder = Path(tmp_path_factory.mktemp("asked"))
    if request.param == BILLING:
        layout = Layout(folder / "billing")  # a copy: what is asked here may change it
        shutil.copytree(request.getfixturevalue("billing_folder").root, layout.root)
        yield from serving(layout, folder / "server.log")
        return
    if request.param == "an application's folder":
        layout = Layout(folder / "application")
        make_application(layout)
        yield from serving(layout, folder / "server.log", "/v1/views/orders/rows/emma")
        return
    cluster = Cluster(folder)
    yield cluster.start("asked")
    cluster.close()


def test_no_question_is_answered_with_an_error_of_the_server_s_own(url: str) -> None:
    """All routes but streams, which have no end: `tests/serving/changes` has those."""
    import schemathesis  # takes seconds, of every process that collects tests: not at the top, and no plugin
    from schemathesis.core.result import Ok

    document = httpx.get(f"{url}/v1/openapi.json").json()
    interface = schemathesis.openapi.from_dict(document).exclude(path_regex="/changes")
    found = list(interface.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    assert len(operations) == len(found) > 12
    view = httpx.get(f"{url}/v1/views").json()["views"][0]["view"]
    for operation in operations:
        ask(operation, url, view)


def ask(operation: Any, url: str, view: str) -> None:
    """Half of the cases have no floor, and name a view that there is: with random ones few get beyond a 400 or 404."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    wanted = [not_a_server_error, checks.status_code_conformance]
    wanted += [checks.content_type_conformance, checks.response_schema_conformance]

    @settings(max_examples=examples(8, 200), deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(), booleans())
    def asked(case: Any, answerable: bool) -> None:
        if answerable:
            case.query = {name: value for name, value in (case.query or {}).items() if name not in FLOOR}
            case.path_parameters = {**(case.path_parameters or {})} | ({"view": view} if "{view}" in case.path else {})
        if "wait_ms" in (case.query or {}):
            case.query["wait_ms"] = 0  # whatever is asked for, it is not waited for
        answer = case.call(base_url=url, timeout=60)
        if answer.status_code == NOT_READY and answer.json().get("type", "").endswith("not-fresh-enough"):
            return
        case.validate_response(answer, checks=wanted)

    asked()
