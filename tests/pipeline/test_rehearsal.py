"""The rehearsal of a standby: it tells code that does not fit, and leaves everything as it is."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.foreground import rehearse
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import Sink, SinkContext
from stateside.testing import append
from tests.pipeline.test_supervision import orders, totals

pytestmark = pytest.mark.spark


def never(context: SinkContext) -> Sink:
    raise AssertionError("a rehearsal opens no sink")


def changed() -> stateside.App:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["entity"])
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.max("amount").alias("total"))

    return app


def stored(layout: Layout) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}


def test_a_rehearsal_changes_nothing_opens_no_sink_and_refuses_code_that_does_not_fit_the_state(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, orders(3))
    layout.spark.mkdir()
    rehearse(totals(never), layout, RunSettings(), spark)
    assert not layout.view("total").root.exists(), "also where nothing has run yet"
    with Runner(totals(), layout, session=spark) as runner:
        runner.run_to_end()
    append(layout, orders(5))
    before = stored(layout)
    rehearse(totals(never), layout, RunSettings(), spark)
    with pytest.raises(ViewInvalid, match="'total' is not the one that its state was built with: its column 'total'"):
        rehearse(changed(), layout, RunSettings(), spark)
    assert stored(layout) == before and list(layout.spark.iterdir()) == []
