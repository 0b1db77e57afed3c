"""The gate: answers and audits are right at every batch, also of a query that is begun again with other batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.answers.document_store import Document, DocumentStore, Gate, followed
from stateside.billing.answers.totals import ArchiveSums
from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.model import DAY_US, clock_tick
from stateside.billing.rating.rating import events_table, rate
from stateside.core.errors import NotFreshEnough
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog
from tests.billing.audit.test_played import audited
from tests.billing.played import Query, append
from tests.billing.story import OPENING, at, call
from tests.sizes import examples, not_in_fast, sized

NAMES = ("emma", "noah", "olga")
Account = tuple[str, int]  # customer, period's end
Expected = list[tuple[int, Account, int]]  # offset, account, quantity of each usage event


def months(seed: int, days: int = 130) -> list[tuple[int, Event]]:
    """Some months: a call or two a day, of which some are told days or weeks later, and a tick of the clock."""
    rng = random.Random(seed)
    found = [(at("2025-12-01"), event) for event in OPENING]
    for day in range(days):
        now_us = at("2026-01-01") + day * DAY_US
        for number in range(rng.randint(0, 2)):
            late = rng.choice([0, 0, 0, 2, 6, 40]) * DAY_US
            time_us = max(at("2026-01-01"), now_us - late)
            event = call(f"{day}-{number}", rng.choice(NAMES), "2026-01-01", rng.randint(1, 50))
            found.append((now_us, Event(event.id, event.entity, event.type, time_us, event.payload)))
        found.append((now_us, clock_tick(now_us, f"tick-{day}")))
    return found


def expected(layout: Layout) -> Expected:
    """All usage of the journal."""
    journal = FileLog(layout.journal)
    end = journal.end()["0"]
    book = BookKeeper(journal, None).at(end)
    rows = rate(events_table(journal, 0, end), book).to_pylist()
    return [
        (row["offset"], (row["customer"], _end_us(book.plans[row["plan"]].cycle, row["time"])), row["quantity"])
        for row in rows
        if row["reason"] is None and row["type"] == "call"
    ]


def _end_us(cycle: Cycle, time: datetime) -> int:
    return cycle.containing(round(time.timestamp() * 1_000_000)).end_us


@dataclass(frozen=True)
class Readers:
    """What a server keeps open: it follows the documents, batch after batch."""

    issued: DocumentStore
    sums: ArchiveSums

    @classmethod
    def of(cls, layout: Layout) -> Readers:
        return cls(DocumentStore.of(layout), ArchiveSums(followed(layout)))

    def counting(self, gate: Gate) -> Iterator[Document]:
        for name in NAMES:
            yield from self.issued.of_customer(name, gate)


def answered(query: Query, readers: Readers, gate: Gate) -> Counter[Account]:
    """The quantity on every customer's bill, by period: live rows and documents."""
    found: Counter[Account] = Counter()
    for (customer, end_us, _, _), (quantity, _) in query.open.items():
        found[customer, end_us] += quantity
    for document in readers.counting(gate):
        found[document.customer, document.period_end_us] += sum(line.quantity for line in document.lines)
    return found


def totals(query: Query, readers: Readers, gate: Gate, ends_us: set[int]) -> Counter[int]:
    """The quantity of all customers, by period."""
    found: Counter[int] = Counter()
    for (_, end_us, _, _), (quantity, _) in query.open.items():
        found[end_us] += quantity
    for entry in readers.sums.of(ends_us, gate):
        found[entry.end_us] += entry.sums.quantity
    return found


def windows(readers: Readers, usage: Expected, gate: Gate) -> Counter[Account]:
    """By how much the gate's docstring lets an answer be ahead, or behind: what documents have on the other side."""
    off: Counter[Account] = Counter()
    for document in readers.counting(Gate(10**9, gate.watermark_us)):
        if document.sealed_position > gate.position:
            account = document.customer, document.period_end_us
            if document.is_invoice and not document.late:
                inside = range(gate.position, document.sealed_position)
                off[account] += sum(many for offset, of, many in usage if of == account and offset in inside)
            else:
                mine = [(o, many) for o, of, many in usage if of == account and o < document.sealed_position]
                named = mine[-len(document.event_ids) :]
                off[account] -= sum(many for offset, many in named if offset < gate.position)
    return off


def check(query: Query, readers: Readers, usage: Expected) -> bool:
    """Bills, totals and the audit at a batch of a query; whether it is in none of the windows."""
    gate = Gate(query.position, query.watermark_us)
    off = {account: many for account, many in windows(readers, usage, gate).items() if many}
    right: Counter[Account] = Counter()
    for offset, account, quantity in usage:
        right[account] += quantity if offset < gate.position else 0
    for account, many in off.items():
        right[account] += many
    assert answered(query, readers, gate) == right
    by_end: Counter[int] = Counter()
    for (_, end_us), quantity in right.items():
        by_end[end_us] += quantity
    assert totals(query, readers, gate, {end_us for _, (_, end_us), _ in usage}) == by_end
    if off:
        with pytest.raises(NotFreshEnough, match="the query was started again"):
            audited(query)
    return not off


def play(query: Query, lengths: Sequence[int], usage: Expected, *, audits: bool) -> list[bool]:
    """Take batches of these lengths in turn, up to the journal's end, and check after each."""
    end, exact = FileLog(query.layout.journal).end()["0"], list[bool]()
    readers = Readers.of(query.layout)
    for number in range(10_000):
        if query.position == end and query.watermark_us == query._next_watermark_us():
            return exact
        query = query.run(min(query.position + lengths[number % len(lengths)], end))
        exact.append(check(query, readers, usage))
        if audits and exact[-1] and number % sized(2, 1) == 0:
            try:
                assert audited(query).differences() == []
            except NotFreshEnough:  # a document reaches further, with no event behind this offset
                exact[-1] = False
    raise AssertionError("it does not end")


@not_in_fast("a story with its audit at every batch")
@pytest.mark.parametrize("first", sized([[1_000]], [[7], [40, 3], [1_000]]), ids=str)
def test_a_query_begun_anew_answers_right_at_every_batch_and_the_audit_holds(tmp_path: Path, first: list[int]) -> None:
    """It fails if invoices count by their position too, or notes by the watermark alone: both were tried."""
    layout = Layout(tmp_path)
    append(layout, months(7, days=sized(45, 70)))
    usage = expected(layout)
    assert all(play(Query(layout), first, usage, audits=True)), "an unbroken query is in no window"
    exact = play(Query(layout, "again"), [9, 31, 2, 12], usage, audits=True)
    assert sum(exact) > len(exact) / 2


lengths = st.lists(st.sampled_from([0, 3, 7, 12, 40, 1_000]), min_size=1, max_size=5).filter(any)


@not_in_fast("the test above plays one other query")
@settings(max_examples=examples(2, 200), deadline=None)
@given(st.integers(0, 10**6), lengths, lengths, st.integers(1, 60), lengths)
def test_rollbacks_and_new_queries_with_any_batches_count_every_event_once(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    first: list[int],
    anew: list[int],
    kept: int,
    back: list[int],
) -> None:
    """Bills and totals."""
    layout = Layout(tmp_path_factory.mktemp("gate"))
    append(layout, months(seed, days=45))
    usage = expected(layout)
    old = Query(layout).run(kept)  # a copy of the checkpoint, from early on
    assert all(play(old, first, usage, audits=False))
    play(Query(layout, "again"), anew, usage, audits=False)
    play(old, back, usage, audits=False)
