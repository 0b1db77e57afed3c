"""A folder with billing events at chosen times, for tests: plans, customers, usage, and what Spark made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from stateside.billing.calendar import Cycle
from stateside.billing.invoicing.documents import dead_letters_table, documents_table
from stateside.billing.model import DAY_US, assignment
from stateside.billing.money import Rounding
from stateside.billing.plans.file import CREDIT, PlanVersion, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal import Event, JournalWriter
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import rows

TABLE_COLUMNS = ("number", "kind", "customer", "period", "currency", "amount_micros", "charged_micros", "events")


def at_us(text: str) -> int:
    """A time with its offset, as microseconds."""
    moment = datetime.fromisoformat(text)
    assert moment.tzinfo is not None, text
    return round(moment.timestamp() * 1_000_000)


def tiers(*numbers: tuple[int, int, int]) -> Tiers:
    """Tiers of (above, micros, per)."""
    return Tiers(tuple(Tier(*each) for each in numbers))


def version(
    plan: str,
    number: int,
    effective_us: int,
    cycle: Cycle,
    prices: dict[str, Tiers],
    *,
    currency: str = "EUR",
    rounding: Rounding = "half-even",
) -> PlanVersion:
    """A version with these prices, and credit."""
    return PlanVersion(plan, number, effective_us, currency, cycle, rounding, {**prices, "credit": CREDIT})


@dataclass(frozen=True, slots=True)
class Stage:
    """An application's folder, whose journal takes events in at times that the test says."""

    layout: Layout

    def append(self, appended_us: int, events: Sequence[Event]) -> Position:
        """Have the events appended at this time."""
        with JournalWriter(self.layout.journal, clock=ManualClock(appended_us)) as writer:
            return writer.append(events, compare_ids=False)

    def publish(self, versions: Sequence[PlanVersion], customers: dict[str, str]) -> Position:
        """Publish versions, each a day before it takes effect, and assign customers to plans from the first one on."""
        for each in versions:
            time_us = each.effective_us - DAY_US
            self.append(time_us, [plan_event(each, f"plan-{each.id}", time_us)])
        first_us = min(each.effective_us for each in versions)
        assigned = [assignment(f"assign-{name}", name, plan, first_us, first_us) for name, plan in customers.items()]
        return self.append(max(each.effective_us for each in versions) - DAY_US, assigned)

    def open_rows(self) -> list[dict[str, Any]]:
        """The running bills, as a server would show them."""
        return rows(self.layout, "bill")

    def documents(self) -> list[dict[str, Any]]:
        """All invoices and notes, by number."""
        return _by(documents_table(self.layout).read(), "number")

    def dead_letters(self) -> list[tuple[str, str]]:
        """The bad events with their reasons, in the journal's order."""
        return [(row["id"], row["reason"]) for row in _by(dead_letters_table(self.layout).read(), "offset")]

    def watermarks_us(self) -> list[int]:
        """The watermark of each batch."""
        checkpoint = Checkpoint(Storage.at(self.layout.view("bill").checkpoint))
        return [checkpoint.plan(batch).watermark_us for batch in checkpoint.commits()]

    def ends(self) -> list[int]:
        """Where each batch ends in the journal."""
        checkpoint = Checkpoint(Storage.at(self.layout.view("bill").checkpoint))
        return [checkpoint.plan(batch).position["0"] for batch in checkpoint.commits()]


def _by(table: pa.Table, column: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.sort_by(column).to_pylist()
    return found
