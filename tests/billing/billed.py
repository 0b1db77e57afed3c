"""Plans and rows to bill, for tests."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from stateside.billing.calendar import Cycle
from stateside.billing.invoicing.amounts import Amounts
from stateside.billing.money import Rounding
from stateside.billing.plans.file import CREDIT, PlanVersion
from stateside.billing.plans.tiers import Tier, Tiers

BERLIN = Cycle("month", "Europe/Berlin")
DAILY = Cycle("day", "Europe/Berlin")
JANUARY = BERLIN.containing(1_768_000_000_000_000)
TIME = pa.timestamp("us", tz="UTC")

# Calls: 100 seconds are free, then a third of a cent each; above 1000 a seventh of a cent. Messages: 0.0951 each.
PRICES = {
    "call": Tiers((Tier(0, 0, 1), Tier(100, 10_000, 3), Tier(1_000, 10_000, 7))),
    "message": Tiers((Tier(0, 95_100, 1),)),
    "credit": CREDIT,
}


def version(
    plan: str = "basic",
    number: int = 1,
    *,
    currency: str = "EUR",
    cycle: Cycle = BERLIN,
    rounding: Rounding = "half-even",
    prices: dict[str, Tiers] = PRICES,
    effective_us: int = 0,
) -> PlanVersion:
    return PlanVersion(plan, number, effective_us, currency, cycle, rounding, prices, ())


def amounts(*versions: PlanVersion) -> Amounts:
    return Amounts({version.id: version for version in versions})


Row = tuple[str, int, str, str, int, int]  # customer, period's end, type, plan, quantity, events


def closed(rows: Iterable[Row]) -> pa.Table:
    """Rows as the view gives them to its sink."""
    names = ("customer", "period_end", "type", "plan", "quantity", "events")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    types = (pa.string(), pa.int64(), pa.string(), pa.string(), pa.int64(), pa.int64())
    table = pa.table({name: pa.array(columns[name], type_) for name, type_ in zip(names, types, strict=True)})
    return table.set_column(1, "period_end", table["period_end"].cast(TIME))
