"""A folder with a journal, and the checkpoint that Spark would leave of it. Nothing is sealed yet."""

from __future__ import annotations

import json
from pathlib import Path

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.replica.tail import Tail
from stateside.views.catalogue import Catalogue, Computed, KeyColumn, StateColumn, ViewColumn
from stateside.views.functions import extend_functions
from tests.billing.audit.books import Pen, assign, plan, us, used
from tests.written import Written, WrittenOperator

KEY = [("customer", "string"), ("period_end", "timestamp"), ("type", "string"), ("plan", "string")]
VALUE = [("sum", "long"), ("count", "long")]
JANUARY_END = us("2026-01-31T23:00")


class LiveBill:
    """The view `bill` of one application; `go_on` is a batch with what it reads."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder)
        self.view = self.layout.view("bill")
        self.view.root.mkdir(parents=True)
        self.view.catalogue.write_bytes(_catalogue().as_json())
        calls = Tiers((Tier(0, 0, 1), Tier(6_000, 90_000, 60)))
        extend_functions(
            self.view.functions, {("basic@1", "call"): calls, ("basic@1", "message"): Tiers((Tier(0, 100_000, 1),))}
        )
        (self.view.root / "plans.json").write_text(json.dumps({"basic@1": plan("basic")}))  # as the sink writes it
        self.written = Written(self.view.checkpoint, WrittenOperator(KEY, VALUE))
        self.pen = Pen(self.layout)
        self.pen.append("2025-12-01T00:00", Event("p", "basic", "plan", 0, plan("basic")), assign("e", "emma", "basic"))
        self.pen.append("2025-12-01T00:00", assign("b", "ben", "basic"))
        self.end = 3

    def go_on(self, *events: Event, follow: bool = True, **rows: tuple[int, int]) -> None:
        """Append events of January, and run a batch that leaves these rows, named like `emma_call`; the replica too."""
        if events:
            self.end = self.pen.append("2026-01-20T00:00", *events) + len(events)
        keys = [tuple(name.split("_")) for name in rows]
        changes = [
            ([customer, JANUARY_END, type_, "basic@1"], list(row))
            for (customer, type_), row in zip(keys, rows.values(), strict=True)
        ]
        self.written.batch(changes, source=f'{{"0": {self.end}}}')
        if follow:
            tail = Tail(self.view)
            tail.step()
            tail.close()


def right_bill(folder: Path) -> LiveBill:
    """Two customers with their rows in January."""
    bill = LiveBill(folder)
    events = [
        used("1", "emma", "call", "2026-01-10T00:00", 7_000),
        used("2", "emma", "call", "2026-01-10T00:00", 260),
        used("3", "ben", "message", "2026-01-10T00:00", 3),
    ]
    bill.go_on(*events, emma_call=(7_260, 2), ben_message=(3, 1))
    return bill


def _catalogue() -> Catalogue:
    key = tuple(KeyColumn(name, type_, StateColumn(at, name, type_), name) for at, (name, type_) in enumerate(KEY))
    quantity = ViewColumn("quantity", "long", "sum", (StateColumn(0, "sum", "long"),), "sum(quantity)")
    events = ViewColumn("events", "long", "count", (StateColumn(1, "count", "long"),), "count(1)")
    computed = (Computed("amount_micros", of="quantity", by=("plan", "type")),)
    rollups = (("period_end", "plan", "type"),)
    return Catalogue("billing", "bill", 0, key, (quantity, events), rollups=rollups, computed=computed)
