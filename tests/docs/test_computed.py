"""The page on computed columns: its application runs, and its rows are what the page says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

import stateside
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.testing import append, rollup, rows, run_to

PAGE = (Path(__file__).parents[2] / "docs" / "computed.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_the_application_on_the_page_answers_as_the_page_says(
    spark: SparkSession, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page_of_computed_columns")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("\n".join(blocks("python")), module.__dict__)
    app: stateside.App = module.app
    [shown] = map(json.loads, blocks("json"))
    calls = [
        Event(f"{n}", row["entity"], "call", 0, {"plan": row["plan"], "seconds": row["seconds"]})
        for n, row in enumerate(shown)
    ]
    append(layout, calls)
    run_to(app, layout, spark)
    assert sorted(rows(layout, "calls"), key=str) == sorted(shown, key=str)
    assert rollup(layout, "calls", ["plan"], "basic") == [{"plan": "basic", "seconds": 780, "amount_micros": 180_000}]
    assert {row["plan"]: row["count"] for row in rows(layout, "minutes")} == {"basic": 2, "direct": 1}
