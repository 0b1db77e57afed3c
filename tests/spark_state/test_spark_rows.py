"""Rows of every type that can stand in a state, written by Spark itself, come out as the values they are."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stateside.core.storage import Storage
from stateside.spark_state.arrow_rows import RowsToArrow
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import read_changelog
from stateside.spark_state.slices import ChangeBlock
from stateside.spark_state.types import parse_type, read_schema
from stateside.spark_state.unsafe_row import RowDecoder

from .test_arrow_rows import plain

pytestmark = pytest.mark.spark

DAY_US = 86_400_000_000


def us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# For each column: literals in Spark's SQL, and what they are. The last value of each row of the test is null.
LITERALS: dict[str, list[tuple[str, Any]]] = {
    "a_boolean": [("true", True), ("false", False)],
    "a_byte": [("-128Y", -128), ("127Y", 127)],
    "a_short": [("-32768S", -32768), ("32767S", 32767)],
    "an_integer": [("-2147483647", -2147483647), ("2147483647", 2147483647)],
    "a_long": [("-9223372036854775807L", -9223372036854775807), ("9223372036854775807L", 9223372036854775807)],
    "a_float": [("float('1.5')", 1.5), ("float('-Infinity')", float("-inf"))],
    "a_double": [("double('-1e300')", -1e300), ("0.1D", 0.1)],
    "a_small_decimal": [
        ("cast('-12345678.90' as decimal(10,2))", Decimal("-12345678.90")),
        ("0.05BD", Decimal("0.05")),
    ],
    "a_large_decimal": [
        (
            "cast('-1234567890123456789012345678.0123456789' as decimal(38,10))",
            Decimal("-1234567890123456789012345678.0123456789"),
        ),
        ("cast('0.0000000001' as decimal(38,10))", Decimal("0.0000000001")),
    ],
    "a_text": [("''", ""), ("'Grüße, 世界 🎈'", "Grüße, 世界 🎈")],
    "some_bytes": [("X'00FF10'", b"\x00\xff\x10"), ("X''", b"")],
    "a_date": [("date'1969-12-31'", -1), ("date'2026-11-15'", (date(2026, 11, 15) - date(1970, 1, 1)).days)],
    "a_time": [
        ("timestamp'2026-03-29 02:30:00.123456 UTC'", us(datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC))),
        ("timestamp'1900-01-01 00:00:00 UTC'", us(datetime(1900, 1, 1, tzinfo=UTC))),
    ],
    "a_local_time": [("timestamp_ntz'2026-03-29 02:30:00'", us(datetime(2026, 3, 29, 2, 30, tzinfo=UTC)))],
    "some_months": [("interval '-3-2' year to month", -38)],
    "some_days": [("interval '2 03:04:05.000006' day to second", 2 * DAY_US + 11_045_000_006)],
    "a_calendar_interval": [("make_interval(1, 2, 0, 3, 4)", (14, 3, 14_400_000_000))],
    "a_struct": [
        (
            "named_struct('a', 1, 'b', 'x', 'c', named_struct('d', cast(2.5 as decimal(20,3))))",
            (1, "x", (Decimal("2.500"),)),
        ),
        ("named_struct('a', cast(null as int), 'b', '', 'c', null)", (None, "", None)),
    ],
    "an_array": [("array(1, null, 3)", (1, None, 3)), ("array()", ())],
    "an_array_of_booleans": [("array(true, false, null, true)", (True, False, None, True))],
    "an_array_of_texts": [
        ("array('a', '', null, 'long enough for two words')", ("a", "", None, "long enough for two words"))
    ],
    "an_array_of_arrays": [("array(array(1Y, 2Y), null, array(3Y))", ((1, 2), None, (3,)))],
    "an_array_of_decimals": [("array(cast('1.10' as decimal(25,2)), null)", (Decimal("1.10"), None))],
    "a_map": [("map('a', 1L, 'b', null)", (("a", 1), ("b", None))), ("map()", ())],
    "a_nested_map": [
        ("map('k', array(named_struct('x', 7S, 'y', 'z')))", (("k", ((7, "z"),)),)),
    ],
    "seventy_shorts": [("transform(sequence(1, 70), x -> cast(x as short))", tuple(range(1, 71)))],
}
ROWS = 3


def test_every_type_in_a_state_comes_out_as_the_value_that_it_is(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(ROWS).write.parquet(str(tmp_path / "ids"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "ids"))
    columns = [F.expr(f"first({_expression(literals)})").alias(name) for name, literals in LITERALS.items()]
    query = stream.groupBy("id").agg(*columns).writeStream.format("noop").outputMode("update")
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()

    found = dict(_state(tmp_path / "checkpoint"))
    for row in range(ROWS):
        for name, literals in LITERALS.items():
            assert found[row][name] == (literals[row][1] if row < len(literals) else None), f"{name} of row {row}"
    assert _arrow_state(tmp_path / "checkpoint") == found


def _expression(literals: list[tuple[str, Any]]) -> str:
    cases = " ".join(f"when {row} then {sql}" for row, (sql, _) in enumerate(literals[: ROWS - 1]))
    return f"case id {cases} end"


def _arrow_state(folder: Path) -> dict[Any, dict[str, Any]]:
    """The same through Arrow, all rows of a partition at once."""
    checkpoint = Checkpoint(Storage.at(folder))
    schema, found = read_schema(checkpoint.storage, 0), dict[Any, dict[str, Any]]()
    for partition in range(checkpoint.partitions(0, checkpoint.plan(0), checkpoint.commit(0))):
        changes = read_changelog(checkpoint.storage, checkpoint.commit(0), 0, partition).changes
        assert isinstance(changes, ChangeBlock)
        keys, values = RowsToArrow(schema.key).batch(changes.keys), RowsToArrow(schema.value).batch(changes.values)
        columns = [
            [plain(parse_type(column.type), value) for value in array]
            for column, array in zip(schema.value[::2], values.columns[::2], strict=True)
        ]
        rows = zip(*columns, strict=True)
        found |= {
            key: dict(zip(LITERALS, row, strict=True)) for key, row in zip(keys[0].to_pylist(), rows, strict=True)
        }
    return found


def _state(folder: Path) -> list[tuple[Any, dict[str, Any]]]:
    """Key and named values of every row; each `first` has two buffers, the value and whether it is set."""
    checkpoint = Checkpoint(Storage.at(folder))
    schema = read_schema(checkpoint.storage, 0)
    keys, values = RowDecoder(schema.key), RowDecoder(schema.value)
    changes = [
        change
        for partition in range(checkpoint.partitions(0, checkpoint.plan(0), checkpoint.commit(0)))
        for change in read_changelog(checkpoint.storage, checkpoint.commit(0), 0, partition).changes
    ]
    return [
        (keys.decode(change.key)[0], dict(zip(LITERALS, values.decode(change.value or b"")[::2], strict=True)))
        for change in changes
    ]
