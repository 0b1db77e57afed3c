"""The oracle is Spark as people run it, with generated code: interpreted, its reader of join states has a fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark_settings import conf

GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(autouse=True)
def generated_code(request: pytest.FixtureRequest) -> Iterator[None]:
    if "spark" not in request.fixturenames:
        yield
        return
    with conf(request.getfixturevalue("spark"), GENERATED):
        yield
