"""A billing folder made without Spark: the checkpoint as Spark writes it, documents in the real tables.

A batch does what the real sink and Spark do, in their order: documents first, then the state, then the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from stateside.billing.answers.totals import ROLLUP
from stateside.billing.book.book import BookKeeper
from stateside.billing.invoicing.amounts import Amounts
from stateside.billing.invoicing.documents import (
    LATE,
    corrections,
    dead_letters,
    dead_letters_table,
    documents_table,
    invoices,
    numbered,
)
from stateside.billing.plans.file import PlanVersion, parse_plan
from stateside.billing.rating.rating import events_table, rate
from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.journal import FileLog
from stateside.journal.backends.files.segment import PARTITION
from stateside.replica.tail import Tail
from stateside.views.catalogue import Catalogue, Computed, KeyColumn, StateColumn, ViewColumn
from stateside.views.functions import extend_functions
from tests.written import Written, WrittenOperator

KEY = [("customer", "string"), ("period_end", "timestamp"), ("type", "string"), ("plan", "string")]
VALUE = [("sum", "long"), ("count", "long")]
Key = tuple[str, int, str, str]  # customer, period_end_us, type, plan
Row = tuple[int, int]  # quantity, events

BASIC = """
plan = "basic"
version = 1
effective = 2026-01-01
currency = "EUR"
time_zone = "Europe/Berlin"
cycle = "month"
rounding = "half-even"
prices.call = { included = 60, price = "0.09", per = 60 }
prices.message = { tiers = [{ up_to = 10, price = "0.10" }, { price = "0.05" }] }
prices.data = { price = "0.000003" }
prices.package.weekend = { price = "4.99" }
fees.base = { price = "9.99" }
"""
SWISS = BASIC.replace('"basic"', '"swiss"').replace("EUR", "CHF").replace("Berlin", "Zurich")
TOKYO = BASIC.replace('"basic"', '"tokyo"').replace("EUR", "JPY").replace("Europe/Berlin", "Asia/Tokyo")


def plan(text: str = BASIC) -> PlanVersion:
    return parse_plan(text.encode(), "plan.toml")


def catalogue() -> Catalogue:
    """The catalogue that the view `bill` has."""
    key = tuple(
        KeyColumn(name, type_, StateColumn(index, name, type_), name) for index, (name, type_) in enumerate(KEY)
    )
    columns = (
        ViewColumn("quantity", "long", "sum", (StateColumn(0, "sum", "long"),), "sum(quantity)"),
        ViewColumn("events", "long", "count", (StateColumn(1, "count", "long"),), "count(1)"),
    )
    computed = (Computed("amount_micros", of="quantity", by=("plan", "type")),)
    return Catalogue("billing", "bill", 0, key, columns, rollups=(ROLLUP,), computed=computed)


@dataclass
class WrittenBills:
    """The folder, to which batches are added. `rows` is the state as of the last batch."""

    layout: Layout
    plans: dict[str, PlanVersion]
    rows: dict[Key, Row] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=lambda: {"I": 0, "N": 0})
    spark: Written = field(init=False)
    deduplicates: bool = True
    seen: set[tuple[str, int]] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    position: int = 0
    watermark_us: int = 0  # of the next batch

    @classmethod
    def begin(cls, layout: Layout, *plans: PlanVersion, deduplicates: bool = True) -> WrittenBills:
        made = cls(layout, {each.id: each for each in plans}, deduplicates=deduplicates)
        view = layout.view("bill")
        view.root.mkdir(parents=True)
        made.publish()
        write_atomically(view.catalogue, catalogue().as_json())
        others = [WrittenOperator([("id", "string")], [], "dedupe")] if deduplicates else []
        made.spark = Written(view.checkpoint, WrittenOperator(KEY, VALUE), *others)
        documents_table(layout).create()
        dead_letters_table(layout).create()
        return made

    def publish(self, *plans: PlanVersion) -> None:
        """What the sink does before anything else."""
        self.plans |= {each.id: each for each in plans}
        view = self.layout.view("bill")
        extend_functions(
            view.functions, {key: tiers for each in self.plans.values() for key, tiers in each.table_entries().items()}
        )
        content = {name: each.as_payload() for name, each in self.plans.items()}
        write_atomically(view.root / "plans.json", json.dumps(content).encode())

    @property
    def batch_number(self) -> int:
        """The next batch."""
        return self.spark.batches

    def issue(self, drafts: pa.Table, series: str = "I") -> pa.Table:
        """Number drafts and store them under the next batch."""
        documents = numbered(drafts, series, self.highest[series])
        self.highest[series] += drafts.num_rows
        documents_table(self.layout).append(documents, f"{self.spark.query}/{series}", self.batch_number)
        return documents

    def seal(self, *ends_us: int) -> dict[Key, None]:
        """The first half of a batch that closes these periods: its invoices are stored, and it is not committed."""
        closed = {key: row for key, row in self.rows.items() if key[1] in ends_us}
        self.watermark_us = max([self.watermark_us, *ends_us])
        if closed:
            self.issue(invoices(rows_table(closed), Amounts(self.plans), self.position))
        return dict.fromkeys(closed)

    def play(self, close: tuple[int, ...] = ()) -> None:
        """A batch over all that the journal has since the last one, which closes these periods, as Spark would.

        Events of periods that were closed before come too late. Ids are de-duplicated while their period is open.
        """
        journal = FileLog(self.layout.journal)
        stop = journal.end()[PARTITION]
        book = BookKeeper(journal, None).at(stop)
        self.publish(*book.plans.values())
        events = events_table(journal, self.position, stop)
        self.position = stop
        rated = rate(events, book)
        changes, late = self._fold(rated, book.plans)
        if late.num_rows:
            found = corrections(late, documents_table(self.layout).read(), Amounts(self.plans))
            self.issue(found.late_invoices)
            self.issue(found.notes, "N")
        self.rows |= changes
        gone = self.seal(*close)
        bad = dead_letters(events, rated)
        dead_letters_table(self.layout).append(bad, f"{self.spark.query}/letters", self.batch_number)
        self.commit({**changes, **gone}, stop)
        self.closed = {*self.closed, *close}

    def _fold(self, rated: pa.Table, plans: Mapping[str, PlanVersion]) -> tuple[dict[Key, Row], pa.Table]:
        changes: dict[Key, Row] = {}
        late = []
        for event in rated.to_pylist():
            if event["reason"] is not None or event["type"] == "clock":
                continue
            time_us = int(event["time"].timestamp()) * 1_000_000 + event["time"].microsecond
            end_us = plans[event["plan"]].cycle.containing(time_us).end_us
            if end_us in self.closed:
                late.append({**event, "period_end": end_us})
            elif (event["id"], end_us) not in self.seen or not self.deduplicates:
                self.seen.add((event["id"], end_us))
                key = (event["customer"], end_us, event["type"], event["plan"])
                quantity, count = changes.get(key, self.rows.get(key, (0, 0)))
                changes[key] = (quantity + event["quantity"], count + 1)
        columns = {name: [event[name] for event in late] for name in LATE.names}
        table = pa.table({**columns, "period_end": pa.array(columns["period_end"], pa.int64())})
        return changes, table.cast(LATE)

    def commit(self, changes: Mapping[Key, Row | None], position: int | None = None) -> None:
        """The second half: the state with these rows changed, or gone, and the commit."""
        for key, row in changes.items():
            if row is None:
                del self.rows[key]
            else:
                self.rows[key] = row
        source = None if position is None else json.dumps({"journal": "6f7e", "0": position})
        self.spark.batch(
            [(list(key), None if row is None else list(row)) for key, row in changes.items()],
            source=source,
            watermark_us=self.watermark_us,
        )


def rows_table(rows: Mapping[Key, Row]) -> pa.Table:
    """Rows as Spark hands them to the sink."""
    keys = list(rows)
    time = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "customer": [key[0] for key in keys],
            "period_end": pa.array([key[1] for key in keys], pa.int64()).cast(time),
            "type": [key[2] for key in keys],
            "plan": [key[3] for key in keys],
            "quantity": pa.array([rows[key][0] for key in keys], pa.int64()),
            "events": pa.array([rows[key][1] for key in keys], pa.int64()),
        }
    )


def step(layout: Layout) -> None:
    """Move the replica to the newest batch."""
    tail = Tail(layout.view("bill"))
    try:
        tail.step()
    finally:
        tail.close()
