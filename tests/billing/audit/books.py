"""Small books with everything in them, every number worked out by hand, and how an audit of them is made.

January of the plan `basic` (Berlin) is sealed: invoices by the batch that ends at 23, a note and a late invoice by the
next one, which ends at 25, the journal's end. What a later batch has sealed already is there, and is not looked at.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from stateside.billing.audit import Audit, Live, LiveBatch, audit
from stateside.billing.audit.found import DEAD_LETTERS, DOCUMENTS
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog, JournalWriter

HOUR_US = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(text: str) -> int:
    """Microseconds of a time in UTC."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


PUBLISHED = us("2025-12-01T00:00")
JANUARY = ("2026-01", "2025-12-31T23:00:00Z", "2026-01-31T23:00:00Z")
FEBRUARY_END = "2026-02-28T23:00:00Z"
FEBRUARY: dict[str, Any] = {"period": "2026-02", "period_end": datetime.fromisoformat(FEBRUARY_END)}
TOKYO_END = "2026-02-14T15:00:00Z"  # the month from the 15th of January on
WATERMARK = us("2026-02-01T00:00")
CREDIT = [[0, -1, 1]]


def plan(name: str, **changes: Any) -> dict[str, Any]:
    """The payload of a plan: 100 minutes are included, then 0.09 a minute."""
    prices = {"call": [[0, 0, 1], [6_000, 90_000, 60]], "message": [[0, 100_000, 1]], "credit": CREDIT}
    return {
        "plan": name,
        "version": 1,
        "effective_us": PUBLISHED + HOUR_US,
        "currency": "EUR",
        "rounding": "half-even",
        "cycle": {"kind": "month", "time_zone": "Europe/Berlin", "anchor_day": 1},
        "prices": prices | {"package:weekend": [[0, 4_990_000, 1]], "fee:base": [[0, 9_990_000, 1]]},
        "fees": ["base"],
    } | changes


NIPPON = {
    "currency": "JPY",
    "rounding": "up",
    "cycle": {"kind": "month", "time_zone": "Asia/Tokyo", "anchor_day": 15},
    "prices": {"data": [[0, 1_000_000, 1_000_000]], "credit": CREDIT},
    "fees": [],
}


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time_us = PUBLISHED

    def now_us(self) -> int:
        return self.time_us


class Pen:
    """Writes a journal, at times that are given."""

    def __init__(self, layout: Layout) -> None:
        self._journal, self._clock = layout.journal, Hand()

    def append(self, appended: str, *events: Event) -> int:
        """Append events at this time; the offset of the first."""
        self._clock.time_us = us(appended)
        with JournalWriter(self._journal, clock=self._clock) as writer:
            return writer.append(list(events), compare_ids=False)["0"] - len(events)


def used(id: str, customer: str, type: str, time: str, quantity: Any, **more: Any) -> Event:
    return Event(id, customer, type, us(time), {"quantity": quantity, **more})


def line(type: str, quantity: int, events: int, amount: int, charged: int, plan: str = "basic@1") -> dict[str, Any]:
    numbers = {"quantity": quantity, "events": events, "amount_micros": amount, "charged_micros": charged}
    return {"type": type, "plan": plan, **numbers}


def document(
    number: str, customer: str, position: int, *lines: dict[str, Any], rounding: int = 0, **more: Any
) -> dict[str, Any]:
    """A document for January, with the totals of its lines, and this rounding on top."""
    label, start, end = JANUARY
    sums = {name: sum(each[name] for each in lines) for name in ("amount_micros", "charged_micros", "events")}
    return {
        "number": number,
        "kind": "invoice",
        "sequence": int(number[2:]),
        "customer": customer,
        "period": label,
        "period_start": datetime.fromisoformat(start),
        "period_end": datetime.fromisoformat(end),
        "currency": "EUR",
        "lines": list(lines),
        **sums,
        "charged_micros": sums["charged_micros"] + rounding,
        "rounding_micros": rounding,
        "corrects": None,
        "event_ids": [],
        "late": False,
        "sealed_position": position,
    } | more


def open_row(customer: str, end: str, type: str, plan: str, quantity: int, events: int, amount: int) -> dict[str, Any]:
    numbers = {"quantity": quantity, "events": events, "amount_micros": amount}
    return {"customer": customer, "period_end": end, "type": type, "plan": plan, **numbers}


def letter(offset: int, id: str, reason: str) -> dict[str, Any]:
    return {"offset": offset, "id": id, "entity": "", "type": "", "reason": reason}


@dataclass
class Books:
    """A journal, and what was made of it."""

    layout: Layout
    documents: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    rollups: list[dict[str, Any]] = field(default_factory=list)
    batch: int = 5
    watermark_us: int = WATERMARK
    position: int | None = None  # the journal's end
    stored: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # what the tables have

    @property
    def pen(self) -> Pen:
        return Pen(self.layout)

    def invoice(self, number: str) -> dict[str, Any]:
        return next(each for each in self.documents if each["number"] == number)

    def row(self, customer: str) -> dict[str, Any]:
        return next(each for each in self.rows if each["customer"] == customer)

    def live(self) -> Live:
        end = FileLog(self.layout.journal).end()["0"]
        standing = LiveBatch(self.batch, end if self.position is None else self.position, self.watermark_us)
        return Live(standing, iter(deepcopy(self.rows)), iter(deepcopy(self.rollups)))

    def audit(self, **arguments: Any) -> Audit:
        self.store("documents", self.documents, DOCUMENTS, ["period"])
        self.store("dead_letters", self.letters, DEAD_LETTERS, [])
        return audit(self.layout, nullcontext(self.live()), **arguments)

    def store(self, name: str, rows: list[dict[str, Any]], schema: pa.Schema, partition_by: list[str]) -> None:
        if self.stored.get(name) == rows:
            return
        self.stored[name] = deepcopy(rows)
        path = self.layout.table(name)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        write_deltalake(path, pa.Table.from_pylist(rows, schema=schema), partition_by=partition_by)


def right_books(folder: Path) -> Books:
    """The right ones."""
    books = Books(Layout(folder))
    _write_journal(books.pen)
    # 7,200 s: 1,200 above the included ones, 20 minutes. The message that came twice counts once.
    emma = [line("call", 7_200, 1, 1_800_000, 1_800_000), line("message", 3, 1, 300_000, 300_000)]
    ben = [line("package:weekend", 1, 1, 4_990_000, 4_990_000), line("credit", 15_000, 1, -15_000, -20_000)]
    # 61 s more: 1,261 * 90,000 / 60 = 1,891,500, which is 1.89; charged were 1.80 before.
    correction = line("call", 61, 1, 91_500, 90_000)
    named: dict[str, Any] = {"kind": "debit-note", "corrects": "I-000000001", "event_ids": ["late-1"]}
    books.documents = [
        document("I-000000001", "emma", 23, *emma),
        document("I-000000002", "ben", 23, *ben, rounding=10_000),  # 4.975 is 4.98, and its lines are 4.97
        document("I-000000003", "carl", 25, line("message", 1, 1, 100_000, 100_000), late=True, event_ids=["late-2"]),
        document("N-000000001", "emma", 24, correction, **named),
        document("I-000000004", "nobody", 99, line("message", 9, 1, 900_000, 900_000), **FEBRUARY),
    ]
    reasons = ["unknown-customer", "negative-quantity", "future-dated", "malformed", "not-in-plan"]
    books.letters = [letter(12 + number, f"bad-{number}", reason) for number, reason in enumerate(reasons)]
    books.letters.append(letter(99, "of a later batch", "malformed"))
    books.rows = [
        open_row("ben", FEBRUARY_END, "message", "basic@1", 2, 1, 200_000),
        open_row("emma", FEBRUARY_END, "call", "basic@1", 30, 1, 0),
        open_row("emma", FEBRUARY_END, "message", "basic@1", 5, 2, 500_000),
        open_row("yuki", TOKYO_END, "data", "nippon@1", 1_500_001, 1, 1_500_001),
    ]
    books.rollups = [
        open_row("", FEBRUARY_END, "message", "basic@1", 7, 3, 700_000),
        open_row("", FEBRUARY_END, "call", "basic@1", 30, 1, 0),
        open_row("", TOKYO_END, "data", "nippon@1", 1_500_001, 1, 1_500_001),
    ]
    return books


def _write_journal(pen: Pen) -> None:
    """25 events: 6 of reference, 11 that count, a duplicate, 5 bad ones, 2 ticks."""
    plans = [Event(f"plan-{name}", name, "plan", PUBLISHED, plan(name, **changes)) for name, changes in PLANS.items()]
    pen.append("2025-12-01T00:00", *plans)
    named = {"emma": "basic", "ben": "basic", "carl": "basic", "yuki": "nippon"}
    pen.append("2025-12-02T00:00", *(assign(f"a-{who}", who, name) for who, name in named.items()))
    pen.append(
        "2026-01-20T00:00",
        used("e-1", "emma", "call", "2026-01-10T12:00", 7_200),
        used("e-2", "emma", "message", "2025-12-31T23:00", 3),  # midnight in Berlin
        used("e-2", "emma", "message", "2025-12-31T23:00", 3),
        used("b-1", "ben", "package", "2026-01-19T00:00", 1, name="weekend"),
        used("b-2", "ben", "credit", "2026-01-12T12:00", 15_000, currency="EUR"),
        used("y-1", "yuki", "data", "2026-01-14T15:00", 1_500_001),  # midnight in Tokyo
    )
    pen.append(
        "2026-01-21T00:00",
        used("bad-0", "nobody", "call", "2026-01-20T00:00", 60),
        used("bad-1", "emma", "call", "2026-01-20T00:00", -60),
        used("bad-2", "emma", "call", "2026-02-20T00:00", 60),
        used("bad-3", "emma", "call", "2026-01-20T00:00", "60"),
        used("bad-4", "emma", "data", "2026-01-20T00:00", 60),
        Event("tick-1", "clock", "clock", us("2026-01-21T00:00"), {}),
    )
    pen.append(
        "2026-02-04T00:00",
        used("b-3", "ben", "message", "2026-02-01T00:00", 2),
        used("e-3", "emma", "call", "2026-02-02T00:00", 30),
        used("e-4", "emma", "message", "2026-01-31T23:00", 4),  # midnight in Berlin
        used("e-5", "emma", "message", "2026-02-02T00:00", 1),
        Event("tick-2", "clock", "clock", us("2026-02-04T00:00"), {}),
    )
    pen.append(
        "2026-02-05T00:00",
        used("late-1", "emma", "call", "2026-01-20T12:00", 61),
        used("late-2", "carl", "message", "2026-01-31T22:59:59.999999", 1),
    )


PLANS = {"basic": {}, "nippon": NIPPON}


def assign(id: str, customer: str, plan: str, effective_us: int = 0) -> Event:
    return Event(id, customer, "assign", PUBLISHED, {"plan": plan, "effective_us": effective_us})
