"""Delta tables: a batch is one commit, and a row with a key is there once, whoever brings it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from stateside.core.errors import ArchiveInvalid, SinkAway, SinkRefused, StatesideError, ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.sinks.delta import archive_sink, delta, first_of_each
from stateside.pipeline.sinks.sink import BatchId, Guarantee, OnStep, Sink, SinkContext, SinkFactory
from tests.sizes import not_in_fast

from .harness import SCHEMA, VIEW, FolderSuite, SinkCase, Trial, Values, Verdict, World


def appended(world: World, on_step: OnStep) -> SinkFactory:
    return delta("numbers", on_step=on_step)


def archived(world: World, on_step: OnStep) -> SinkFactory:
    return archive_sink("numbers", on_step=on_step)


def keyed(world: World, on_step: OnStep) -> SinkFactory:
    return delta("numbers", key=["id"], on_step=on_step)


def read_back(world: World) -> list[Values]:
    rows = DeltaTable(world.layout.table("numbers")).to_pyarrow_table()
    return [tuple(row.values()) for row in rows.select(SCHEMA.names).to_pylist()]


class TestAppend(FolderSuite):
    case = SinkCase("delta, appended", appended, read_back, steps=(1, 2, 3, 5), imports=["stateside.archive"])


class TestArchive(FolderSuite):
    case = SinkCase("delta, archive", archived, read_back, steps=(1, 2, 3, 5), imports=["stateside.archive"])

    def test_every_row_has_the_batch_that_sealed_it(self, world: World) -> None:
        sink = self.case.open(world)
        for batch in (0, 1, 1):
            sink.write(self.case.table(batch), BatchId("query", batch))
        rows = DeltaTable(world.layout.table("numbers")).to_pyarrow_table()
        assert all(row["id"].startswith(f"{row['sealed_batch']}-") for row in rows.to_pylist())


class TestKey(FolderSuite):
    case = SinkCase(
        "delta, if absent", keyed, read_back, (1, 2, 3, 5), moment_ms_max=120, imports=["stateside.archive"]
    )

    @pytest.mark.e2e
    def test_the_same_run_at_least_once_doubles_and_loses_nothing(self, trial: Callable[[Guarantee], Trial]) -> None:
        """The key knows a row again even if its batch has a new name: no negative control, but the point of keys."""
        assert trial("at-least-once").run() == Verdict()

    def test_a_new_checkpoint_that_brings_the_same_rows_in_other_batches_adds_nothing(self, world: World) -> None:
        sink = self.case.open(world)
        for batch in range(4):
            sink.write(self.case.table(batch), BatchId("first", batch))
        shutil.rmtree(world.layout.view(VIEW).root)
        together = pa.concat_tables([self.case.table(batch) for batch in range(6)])
        self.case.open(world).write(together, BatchId("second", 0))
        assert Verdict.of(self.case.expected(6), read_back(world)) == Verdict()


def opened(layout: Layout, factory: SinkFactory, schema: pa.Schema = SCHEMA) -> Sink:
    return factory(SinkContext(layout, VIEW, schema))


def numbers(*ids: str, n: int = 0) -> pa.Table:
    return pa.table({"id": ids, "n": [n] * len(ids), "at": [0] * len(ids)}, SCHEMA)


def stored(layout: Layout) -> list[tuple[str, int]]:
    return sorted(values[:2] for values in read_back(World(layout)))


def test_of_rows_with_one_key_in_a_batch_the_first_by_its_text_stays_whatever_their_order(layout: Layout) -> None:
    rows = pa.concat_tables([numbers("a", n=2), numbers("a", n=1), numbers("b", n=3)])
    assert first_of_each(rows, ["id"]).to_pylist() == first_of_each(rows.take([2, 1, 0]), ["id"]).to_pylist()[::-1]
    opened(layout, delta("numbers", key=["id"])).write(rows, BatchId("q", 0))
    assert stored(layout) == [("a", 1), ("b", 3)]


def test_the_row_of_the_earliest_batch_stays(layout: Layout) -> None:
    sink = opened(layout, delta("numbers", key=["id"]))
    sink.write(numbers("a", n=2), BatchId("q", 0))
    sink.write(numbers("a", "b", n=1), BatchId("q", 1))
    assert stored(layout) == [("a", 2), ("b", 1)]


def test_a_null_in_a_key_is_refused_and_nothing_of_the_batch_stored(layout: Layout) -> None:
    sink = opened(layout, delta("numbers", key=["id"]))
    with pytest.raises(SinkRefused, match="'id' is null in 1 rows"):
        sink.write(pa.table({"id": ["a", None], "n": [1, 2], "at": [0, 0]}, SCHEMA), BatchId("q", 0))
    assert stored(layout) == []


def test_a_table_that_is_gone_holds_the_batch_until_it_is_back(layout: Layout) -> None:
    sink = opened(layout, delta("numbers"))
    table = layout.table("numbers")
    table.rename(table.with_name("away"))
    with pytest.raises(SinkAway, match="Bring the table back"):
        sink.write(numbers("a"), BatchId("q", 0))
    assert not table.exists()
    table.with_name("away").rename(table)
    sink.write(numbers("a"), BatchId("q", 0))
    assert stored(layout) == [("a", 0)]


@pytest.mark.parametrize("factory", [delta("numbers"), archive_sink("numbers")], ids=["appended", "archive"])
@pytest.mark.parametrize("gone", [".", "checkpoint"])
def test_a_filled_table_is_refused_by_a_new_checkpoint(layout: Layout, factory: SinkFactory, gone: str) -> None:
    view = layout.view(VIEW)
    sink = opened(layout, factory)
    view.checkpoint.mkdir()
    (view.checkpoint / "metadata").touch()
    sink.write(numbers("a"), BatchId("q", 0))
    opened(layout, factory)
    shutil.rmtree(view.root / gone)
    with pytest.raises(ArchiveInvalid, match=r"is gone"):
        opened(layout, factory)


def test_a_schema_that_changed_is_refused_with_the_difference(layout: Layout) -> None:
    opened(layout, delta("numbers"))
    changed = pa.schema([("id", pa.string()), ("n", pa.string()), ("more", pa.int64())])
    with pytest.raises(ArchiveInvalid) as refused:
        opened(layout, delta("numbers"), changed)
    assert "'at' is missing in the rows" in str(refused.value)
    assert "'more' is missing in the table" in str(refused.value)
    assert '\'n\' is "long" in the table, "string" in the rows' in str(refused.value)


def test_columns_that_can_no_longer_be_null_are_no_change(layout: Layout) -> None:
    opened(layout, delta("numbers"))
    opened(layout, delta("numbers"), pa.schema([field.with_nullable(False) for field in SCHEMA]))


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: delta("../numbers"), "cannot be the name of a table"),
        (lambda: delta("numbers", key=[]), "a key without columns"),
        (lambda: delta("numbers", key=["nobody"]), "has no column 'nobody'"),
        (lambda: delta("numbers", partition_by=["nobody"]), "has no column 'nobody'"),
        (lambda: delta("numbers", key=["x"]), "the float 'x' in its key"),
        (lambda: archive_sink("numbers"), "has a column 'sealed_batch' of its own"),
    ],
)
def test_a_table_that_cannot_be_is_refused_before_a_run(
    layout: Layout, declare: Callable[[], SinkFactory], reason: str
) -> None:
    schema = pa.schema([("id", pa.string()), ("x", pa.float64()), ("sealed_batch", pa.int64())])
    with pytest.raises(ViewInvalid, match=reason):
        opened(layout, declare(), schema)
    assert not layout.root.exists()


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us")])
def test_a_type_that_delta_does_not_have_is_refused_by_its_column(layout: Layout, kind: pa.DataType) -> None:
    with pytest.raises(ViewInvalid, match=r"has the column 'x' of the type .*, which Delta tables cannot hold"):
        opened(layout, delta("numbers"), pa.schema([("x", kind)]))
    assert not layout.root.exists()


MOMENT = datetime(2026, 3, 29, 1, 30, 0, 123456)
HANDED_OVER: dict[str, tuple[types.DataType, Any]] = {  # each type that Delta has, with a value that shows its width
    "string": (types.StringType(), "Grüße"),
    "boolean": (types.BooleanType(), True),
    "byte": (types.ByteType(), -128),
    "short": (types.ShortType(), 32_767),
    "integer": (types.IntegerType(), -(2**31)),
    "long": (types.LongType(), 2**63 - 1),
    "float": (types.FloatType(), 0.5),
    "double": (types.DoubleType(), 0.1),
    "decimal": (types.DecimalType(38, 2), Decimal("123456789012345678901234567890123456.78")),
    "binary": (types.BinaryType(), b"\x00\xff"),
    "date": (types.DateType(), MOMENT.date()),
    "timestamp": (types.TimestampType(), MOMENT.replace(tzinfo=UTC)),
    "timestamp_ntz": (types.TimestampNTZType(), MOMENT),
    "window": (types.StructType().add("start", types.TimestampType()), {"start": MOMENT.replace(tzinfo=UTC)}),
    "array": (types.ArrayType(types.LongType()), [1, None]),
    "map": (types.MapType(types.StringType(), types.LongType()), [("a", 1), ("b", None)]),
}


@pytest.mark.parametrize(
    "factory",
    [delta("numbers"), delta("numbers", key=["string", "window"]), archive_sink("numbers")],
    ids=["appended", "keyed", "archive"],
)
def test_every_type_that_spark_hands_over_can_be_stored(layout: Layout, factory: SinkFactory) -> None:
    struct = types.StructType([types.StructField(name, type_) for name, (type_, _) in HANDED_OVER.items()])
    schema = to_arrow_schema(struct, timezone="UTC")
    full = {name: value for name, (_, value) in HANDED_OVER.items()}
    empty = dict.fromkeys(full) | {"string": "", "window": {"start": None}}
    World(layout).query_id()
    opened(layout, factory, schema).write(pa.Table.from_pylist([full], schema), BatchId("q", 0))
    opened(layout, factory, schema).write(pa.Table.from_pylist([empty], schema), BatchId("q", 1))
    rows = DeltaTable(layout.table("numbers")).to_pyarrow_table().select(schema.names)
    assert sorted(rows.to_pylist(), key=lambda row: row["string"]) == [empty, full]


def test_a_write_by_somebody_else_at_the_same_time_does_not_double_a_key(layout: Layout) -> None:
    sink = opened(layout, delta("numbers", key=["id"], on_step=lambda step: overtake() if step == 3 else None))
    overtaken: list[int] = []

    def overtake() -> None:
        if len(overtaken) < 3:
            overtaken.append(1)
            write_deltalake(layout.table("numbers"), numbers(f"{len(overtaken)}", n=9), mode="append")

    sink.write(numbers("1", "2", "3", "4"), BatchId("q", 0))
    assert stored(layout) == [("1", 9), ("2", 9), ("3", 9), ("4", 0)]


@not_in_fast("it waits for many attempts")
def test_an_insert_that_is_always_overtaken_is_held(layout: Layout) -> None:
    def overtake(step: int) -> None:
        if step == 3:
            write_deltalake(layout.table("numbers"), numbers("a"), mode="append")

    sink = opened(layout, delta("numbers", key=["id"], on_step=overtake))
    with pytest.raises(SinkAway, match="came in between 20 times"):
        sink.write(numbers("a", "b"), BatchId("q", 0))


def test_errors_of_a_sink_are_of_the_tree(layout: Layout) -> None:
    """A log that cannot be written, as on a full or foreign disk."""
    sink = opened(layout, delta("numbers"))
    (layout.table("numbers") / "_delta_log" / f"{1:020d}.json").mkdir()
    with pytest.raises(StatesideError):
        sink.write(numbers("a"), BatchId("q", 0))


def test_the_case_of_a_repeated_batch_names_its_query(layout: Layout) -> None:
    batch = BatchId("q", 0)
    sink = opened(layout, delta("numbers"))
    for again in (batch, batch, replace(batch, query="r")):
        sink.write(numbers("a"), again)
    assert stored(layout) == [("a", 0), ("a", 0)]
