"""Rows as JSON: the same text for the same row."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import ViewInvalid
from stateside.pipeline.sinks.json_rows import check_json, json_texts

MOMENT = datetime(2026, 3, 1, 12, 0, 0, 5, UTC)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.int64(), 2**62 + 1, 2**62 + 1),
        (pa.bool_(), True, True),
        (pa.string(), "ü\n", "ü\n"),
        (pa.float64(), 0.1, 0.1),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.decimal128(38, 2), Decimal("123456789012345678901234567890.10"), "123456789012345678901234567890.10"),
        (pa.timestamp("us", tz="UTC"), MOMENT, "2026-03-01T12:00:00.000005Z"),
        (pa.timestamp("us", tz="Europe/Berlin"), MOMENT, "2026-03-01T12:00:00.000005Z"),
        (pa.timestamp("us"), MOMENT.replace(tzinfo=None), "2026-03-01T12:00:00.000005"),
        (pa.date32(), date(2026, 3, 1), "2026-03-01"),
        (pa.time64("us"), time(1, 2), "01:02:00"),
        (pa.duration("us"), timedelta(days=1, microseconds=1), 86_400_000_001),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.struct([("b", pa.int64()), ("a", pa.date32())]), {"b": 1, "a": None}, {"b": 1, "a": None}),
        (pa.list_(pa.decimal128(4, 1)), [Decimal("1.0"), None], ["1.0", None]),
        (pa.map_(pa.string(), pa.date32()), [("b", None), ("a", date(2026, 1, 1))], {"a": "2026-01-01", "b": None}),
        (pa.map_(pa.int64(), pa.int64()), [(2, 1), (1, 2)], [[1, 2], [2, 1]]),
        (pa.int64(), None, None),
    ],
)
def test_every_type_has_one_form(kind: pa.DataType, value: Any, shown: Any) -> None:
    (text,) = json_texts(pa.table({"x": pa.array([value], kind)}))
    assert json.loads(text) == {"x": shown}


def test_a_type_without_a_form_is_refused_by_its_column() -> None:
    with pytest.raises(ViewInvalid, match="'x' is of the type month_day_nano_interval"):
        check_json(pa.schema([("x", pa.list_(pa.month_day_nano_interval()))]))


@given(st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1) | st.none())))
def test_any_rows_come_back_from_their_texts_which_have_one_line_each(rows: list[tuple[str, int | None]]) -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    texts = json_texts(pa.Table.from_pylist([{"s": s, "n": n} for s, n in rows], schema))
    assert [tuple(json.loads(text).values()) for text in texts] == rows
    assert not any("\n" in text for text in texts)
