"""Running bills out of the rows of the view."""

from typing import Any

from stateside.billing.bills import running_bill


def row(period_end: str, type_: str, amount_micros: int, events: int) -> dict[str, Any]:
    return {
        "customer": "emma",
        "period_end": period_end,
        "type": type_,
        "amount_micros": amount_micros,
        "events": events,
    }


def test_a_customer_without_rows_has_an_empty_bill() -> None:
    assert running_bill("emma", []) == {"customer": "emma", "currency": "EUR", "periods": []}


def test_every_open_month_has_its_lines_and_its_total() -> None:
    bill = running_bill(
        "emma",
        [
            row("2026-03-31T22:00:00Z", "call", 1_500_000, 3),
            row("2026-03-31T22:00:00Z", "data", 1, 1),
            row("2026-04-30T22:00:00Z", "call", 7, 2),
        ],
    )
    assert bill["periods"] == [
        {
            "period": "2026-03",
            "period_end": "2026-03-31T22:00:00Z",
            "state": "draft",
            "total_micros": 1_500_001,
            "events": 4,
            "lines": [
                {"type": "call", "amount_micros": 1_500_000, "events": 3},
                {"type": "data", "amount_micros": 1, "events": 1},
            ],
        },
        {
            "period": "2026-04",
            "period_end": "2026-04-30T22:00:00Z",
            "state": "draft",
            "total_micros": 7,
            "events": 2,
            "lines": [{"type": "call", "amount_micros": 7, "events": 2}],
        },
    ]
