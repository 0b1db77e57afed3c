"""The oracle for a state variable in Avro that gets another field."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_settings import conf

from .matrix import Case
from .queries import NO_DATA_BATCHES, keeper
from .running import start
from .staged import Staged
from .statestore import told
from .typed_events import Events


@pytest.mark.spark
def test_a_value_in_avro_may_get_another_field_and_older_rows_lack_it(spark: SparkSession, tmp_path: Path) -> None:
    case = Case("transformWithState", "RocksDB", "2", "changelogs", "lz4", "avro", "numbers")
    events, names = Events(case.columns(), case.seed), []
    with conf(spark, case.conf() | {NO_DATA_BATCHES: "false"}):
        for number, fewer in enumerate((1, 0)):
            events.write(tmp_path / "events", number)
            fields = list(events.values)[: len(events.values) - fewer]
            stream = events.read(spark, tmp_path / "events").where("kind = 'b'" if number else "kind != 'd'")
            processor = keeper(fields, ", ".join(f"{name} {events.values[name].sql}" for name in fields))
            grouped = stream.groupBy(*events.keys)
            kept = grouped.transformWithState(processor, "n bigint", "Update", "processingTime")
            start(kept, "update", tmp_path / "checkpoint")
            staged = Staged(tmp_path / "checkpoint", tmp_path / f"staged-{number}")
            staged.let_through(*staged.batches())
            view = staged.views()["checkpoint-value"]
            names.append([column.name for column in view.columns])
        expected = told(spark, tmp_path / "checkpoint", view, [1])[1].decoded()
    rows = staged.rows("checkpoint-value")
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
    assert names[1][:-1] == names[0]
    assert {row[-1] is None for row in rows} == {True, False}
