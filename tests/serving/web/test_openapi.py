"""The document of the interface is a correct OpenAPI document, and the server keeps to it."""

from __future__ import annotations

from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from stateside.billing.answers.api import routes as billing_routes
from stateside.core.errors import SetupError
from stateside.core.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.route import openapi


@pytest.fixture
def document(layout: Layout) -> dict[str, Any]:
    application = Application(
        ViewReaders(layout), [*event_routes(layout), *billing_routes(layout)], guard=Guard.of(layout)
    )
    return openapi(application.routes)


def test_a_second_route_of_one_method_and_pattern_is_refused(layout: Layout) -> None:
    with pytest.raises(SetupError, match="two routes POST /v1/events"):
        Application(ViewReaders(layout), [*event_routes(layout), *event_routes(layout)], guard=Guard.of(layout))


def test_it_is_openapi_3_1(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_every_operation_has_a_name_of_its_own_and_says_what_it_is_for(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names)) > 15
    assert all(operation["summary"] for operation in operations)


def test_every_name_in_a_path_is_declared(document: dict[str, Any]) -> None:
    for address, path in document["paths"].items():
        for operation in path.values():
            declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert declared == {part[1:-1] for part in address.split("/") if part.startswith("{")}
