"""Running bills: a customer's open months, from the rows of the view `bill`."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from stateside.billing.calendar import Month
from stateside.billing.model import CURRENCY
from stateside.serving.stamp import parse_time

APPLICATION = "billing"
VIEW = "bill"


def running_bill(customer: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The bill as the API shows it: every open month with its lines and total, oldest first."""
    months = groupby(rows, key=lambda row: row["period_end"])  # the rows come in key order: by month, then type
    return {"customer": customer, "currency": CURRENCY, "periods": [_period(end, list(group)) for end, group in months]}


def _period(end: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    lines = [{name: row[name] for name in ("type", "amount_micros", "events")} for row in rows]
    return {
        "period": str(Month.ending(parse_time(end))),
        "period_end": end,
        "state": "draft",
        "total_micros": sum(line["amount_micros"] for line in lines),
        "events": sum(line["events"] for line in lines),
        "lines": lines,
    }
