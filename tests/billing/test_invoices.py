"""Invoices: closed rows become documents, each batch once."""

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.calendar import Month
from stateside.billing.invoices import INVOICES, InvoiceSink, assemble, invoice_table
from stateside.billing.model import AMOUNT_TYPES
from stateside.errors import ArchiveInvalid
from stateside.layout import Layout
from stateside.pipeline.sinks.sink import BatchId, SinkContext

Row = tuple[str, Month, str, int, int]


def table(rows: list[Row], zone: str = "UTC") -> pa.Table:
    """Rows as the view has them: customer, month, type, micros, events."""
    customers, months, types, micros, events = zip(*rows, strict=True) if rows else [()] * 5
    time = pa.timestamp("us", tz=zone)
    return pa.table(
        {
            "period_end": pa.array([month.end_us for month in months], pa.int64()).cast(time),
            "customer": pa.array(customers, pa.string()),
            "type": pa.array(types, pa.string()),
            "amount_micros": pa.array(micros, pa.int64()),
            "events": pa.array(events, pa.int64()),
        }
    )


MARCH, APRIL = Month(2026, 3), Month(2026, 4)
ROWS: list[Row] = [
    ("noah", MARCH, "call", 5, 1),
    ("emma", MARCH, "message", 7, 2),
    ("emma", MARCH, "call", 1_000_000, 3),
    ("emma", APRIL, "data", 9, 1),
]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_closed_rows_become_an_invoice_for_each_customer_and_month(zone: str) -> None:
    invoices = assemble(table(ROWS, zone))
    assert invoices.schema.equals(INVOICES.schema)
    assert invoices.drop_columns("period_end").to_pylist() == [
        {
            "period": "2026-03",
            "customer": "emma",
            "total_micros": 1_000_007,
            "events": 5,
            "lines": [
                {"type": "call", "amount_micros": 1_000_000, "events": 3},
                {"type": "message", "amount_micros": 7, "events": 2},
            ],
        },
        {
            "period": "2026-03",
            "customer": "noah",
            "total_micros": 5,
            "events": 1,
            "lines": [{"type": "call", "amount_micros": 5, "events": 1}],
        },
        {
            "period": "2026-04",
            "customer": "emma",
            "total_micros": 9,
            "events": 1,
            "lines": [{"type": "data", "amount_micros": 9, "events": 1}],
        },
    ]
    ends = invoices["period_end"].cast(pa.int64()).to_pylist()
    assert ends == [MARCH.end_us, MARCH.end_us, APRIL.end_us]


def test_no_rows_are_no_invoices() -> None:
    assert assemble(table([])).equals(INVOICES.schema.empty_table())


keys = st.tuples(
    st.sampled_from(["emma", "noah", "Zoë", ""]),
    st.builds(Month, st.integers(1971, 2190), st.integers(1, 12)),
    st.sampled_from(AMOUNT_TYPES),
)
amounts = st.tuples(st.integers(0, 2**52), st.integers(1, 2**40))


@settings(max_examples=25)
@given(st.dictionaries(keys, amounts, min_size=1, max_size=12))
def test_invoices_add_up_to_their_rows(cells: dict[tuple[str, Month, str], tuple[int, int]]) -> None:
    expected: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for (customer, month, type_), (micros, events) in sorted(cells.items()):
        expected[str(month), customer].append({"type": type_, "amount_micros": micros, "events": events})
    found = assemble(table([(*key, *value) for key, value in cells.items()])).to_pylist()
    assert {(row["period"], row["customer"]): row["lines"] for row in found} == expected
    assert len(found) == len(expected)
    for row in found:
        assert row["total_micros"] == sum(line["amount_micros"] for line in row["lines"])
        assert row["events"] == sum(line["events"] for line in row["lines"])


def test_a_batch_is_sealed_once(layout: Layout) -> None:
    sink = InvoiceSink.of(SinkContext(layout, "bill", pa.schema([])))
    for _ in range(2):
        sink.write(table(ROWS[:3]), BatchId("query", 4))
    sink.write(table([]), BatchId("query", 5))
    with pytest.raises(ArchiveInvalid, match="checkpoint of the query that sealed them is gone"):
        InvoiceSink.of(SinkContext(layout, "bill", pa.schema([])))
    layout.view("bill").checkpoint.mkdir()
    (layout.view("bill").checkpoint / "metadata").touch()
    InvoiceSink.of(SinkContext(layout, "bill", pa.schema([]))).write(table(ROWS[3:]), BatchId("query", 6))
    invoices = invoice_table(layout).read().sort_by("sealed_batch")
    assert invoices["sealed_batch"].to_pylist() == [4, 4, 6]
    assert invoice_table(layout).read(up_to_batch=5).num_rows == 2
    assert invoices.drop_columns("sealed_batch").num_columns == len(INVOICES.schema)
