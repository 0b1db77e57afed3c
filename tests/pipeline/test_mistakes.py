"""Mistakes that users make: each is one sentence, with what to do next, and no trace of Java."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import InputError, PipelineFailed, SinkAway, StatesideError, ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId
from stateside.testing import append, run_to

pytestmark = pytest.mark.spark


def fold(events: DataFrame) -> DataFrame:
    return events.groupBy("entity").agg(F.sum("amount").alias("total"))


def declared(function: Callable[[DataFrame], DataFrame] = fold, **options: object) -> stateside.App:
    app = stateside.App("shop", fields="amount long")
    app.view(**{"key": ["entity"], "name": "total", **options})(function)  # type: ignore[arg-type]
    return app


def without_key() -> stateside.App:
    return declared(key=[])


def with_two_of_a_name() -> stateside.App:
    app = declared()
    app.view(key=["entity"], name="total")(fold)
    return app


def angry(events: DataFrame) -> DataFrame:
    def refuse(amount: int) -> int:
        raise ValueError("amounts make me angry")

    return fold(events.withColumn("amount", F.udf(refuse, "long")("amount")))


class Away:
    def write(self, rows: pa.Table, batch: BatchId) -> None:
        raise SinkAway("The endpoint does not answer", where="http://127.0.0.1:1", next_step="Bring it back")


MISTAKES: dict[str, tuple[Callable[[], stateside.App], type[StatesideError], str]] = {
    "a view without key": (
        without_key,
        ViewInvalid,
        "The view 'total' has no key. Name its grouping columns: key=[…].",
    ),
    "a key that is not grouped by": (
        lambda: declared(key=["country"]),
        ViewInvalid,
        "its key is ['country'], but it groups by ['entity']",
    ),
    "two views of one name": (
        with_two_of_a_name,
        ViewInvalid,
        "The application 'shop' has two views of the name 'total'. Rename one of them.",
    ),
    "a query that is not streaming": (
        lambda: declared(lambda e: e.sparkSession.range(3).groupBy("id").count()),
        ViewInvalid,
        "returns a DataFrame that is not streaming, not a streaming DataFrame. Let it transform the events",
    ),
    "a function that raises while it is planned": (
        lambda: declared(lambda e: 1 / 0),  # type: ignore[arg-type, return-value]
        ViewInvalid,
        "The view 'total' fails: ZeroDivisionError: division by zero. Mend its function",
    ),
    "a column that does not exist": (
        lambda: declared(lambda e: e.groupBy("entity").agg(F.sum("price"))),
        ViewInvalid,
        "fails: AnalysisException: [UNRESOLVED_COLUMN",
    ),
    "a function that raises in a task": (
        lambda: declared(angry),
        PipelineFailed,
        "The view 'total' stopped: ValueError: amounts make me angry",
    ),
    "a sink that is away": (
        lambda: declared(sink=lambda _: Away(), rows="changed"),
        PipelineFailed,
        "stopped: The endpoint does not answer (http://127.0.0.1:1). Bring it back.",
    ),
    "closed rows of a view that never closes any": (
        lambda: declared(archive="closed"),
        ViewInvalid,
        "The view 'total' cannot be run:",
    ),
    "a setting that does not exist": (
        lambda: stateside.App("shop", settings={"partitons": 2}),
        InputError,
        "There is no setting 'partitons', which stands in the application. Did you mean partitions?",
    ),
}


@pytest.mark.parametrize(("make", "kind", "sentence"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_sentence_with_what_to_do(
    spark: SparkSession, layout: Layout, make: Callable[[], stateside.App], kind: type[StatesideError], sentence: str
) -> None:
    append(layout, [Event("1", "emma", "order", 0, {"amount": 5})])
    with pytest.raises(kind) as mistake:
        app = make()
        RunSettings.of(("in the application", app.settings))
        run_to(app, layout, spark)
    told = str(mistake.value)
    assert sentence in told
    assert mistake.value.next_step
    assert "\n" not in told
    assert "\tat " not in told and "org.apache.spark" not in told
