"""Billing's sink: invoices, notes and dead letters, each once, whatever crashes and whoever begins again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.archive import ArchiveTable
from stateside.billing.book.book import BookKeeper
from stateside.billing.invoicing import invoice_sink as sink_module
from stateside.billing.invoicing.documents import ADDED, DOCUMENTS
from stateside.billing.invoicing.invoice_sink import BillingSink, Frontier, Swept
from stateside.billing.model import CLOCK, HOUR_US, clock_tick, usage
from stateside.billing.money import round_micros
from stateside.billing.pipeline import app, at_least_once
from stateside.billing.plans.file import load_plans
from stateside.billing.rating.rating import events_table, rate
from stateside.core.errors import ArchiveInvalid, SinkAway
from stateside.core.layout import Layout, ViewGeneration
from stateside.journal import Event, FileLog
from stateside.pipeline.sinks.sink import is_keyed
from stateside.views.functions import FunctionTable
from tests.billing.played import Crash, Query, append, crash_at, documents, sink
from tests.billing.story import BATCHES, ENDS, OPENING, at
from tests.sizes import examples, in_full, not_in_fast, sized

STEPS = range(1, 8)
ROOT = Path(__file__).parents[2]


EXPECTED = [  # number, kind, customer, period, currency, charged, events, corrects, ids, late, position
    ("I-000000001", "invoice", "emma", "2026-01", "EUR", 0, 2, None, [], False, 14),
    ("I-000000002", "invoice", "noah", "2026-01", "USD", 20_000, 2, None, [], False, 14),
    ("I-000000003", "invoice", "olga", "2026-01", "EUR", 20_000, 1, None, ["9"], True, 16),
    ("I-000000004", "invoice", "emma", "2026-02", "EUR", 0, 1, None, [], False, 22),
    ("N-000000001", "debit-note", "emma", "2026-01", "EUR", 10_000, 1, "I-000000001", ["8"], False, 15),
    ("N-000000002", "debit-note", "olga", "2026-01", "EUR", 10_000, 1, "I-000000003", ["10"], False, 18),
]
DEAD = [(7, "3", "unknown-customer"), (8, "4", "future-dated"), (9, "5", "negative-quantity")]
AGAIN = [(16, "8", "repeated"), (18, "9", "repeated")]
DEAD_LAST = (20, "12", "unknown-customer")


@pytest.fixture
def story(layout: Layout) -> Layout:
    return write_story(layout)


@pytest.fixture(scope="module")
def billed_once(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The story, billed, which no test changes."""
    layout = write_story(Layout(tmp_path_factory.mktemp("billed")))
    run_story(layout)
    return layout


@not_in_fast("a whole story")
def test_the_log_has_a_line_for_the_dead_letters_of_a_batch(story: Layout, caplog: pytest.LogCaptureFixture) -> None:
    run_story(story)
    told = [record.getMessage() for record in caplog.records if "dead letter" in record.getMessage()]
    counts = [int(re.search(r"batch \d+: (\d+) dead letters?:", line)[1]) for line in told]  # type: ignore[index]
    assert sum(counts) == len([*DEAD, *AGAIN, DEAD_LAST])


@pytest.fixture
def billed(billed_once: Layout, tmp_path: Path) -> Layout:
    """A copy of it."""
    shutil.copytree(billed_once.root, tmp_path / "billed")
    return Layout(tmp_path / "billed")


def write_story(layout: Layout) -> Layout:
    append(layout, [(at(day), event) for day, events in BATCHES for event in events])
    return layout


def told(layout: Layout) -> list[tuple[Any, ...]]:
    """The documents as `EXPECTED` has them."""
    names = ["number", "kind", "customer", "period", "currency", "charged_micros", "events", "corrects", "event_ids"]
    names += ["late", "sealed_position"]
    return [tuple(document[name] for name in names) for document in documents(layout)]


def dead(layout: Layout) -> list[tuple[Any, ...]]:
    rows = sink(layout).dead_letters.read().sort_by("offset").to_pylist()
    return [(row["offset"], row["id"], row["reason"]) for row in rows]


def run_story(layout: Layout) -> Query:
    query = Query(layout)
    for end in ENDS:
        query = query.run(end)
    return query


def test_closed_rows_late_events_and_bad_events_each_get_to_their_table(story: Layout) -> None:
    """Without the late sweep there would be neither the notes nor olga's invoice. With the watermark of the batch
    itself in place of the one before it, noah's last call would be billed twice.
    """
    query = run_story(story)
    assert told(story) == EXPECTED
    assert dead(story) == [*DEAD, *AGAIN, DEAD_LAST]
    assert query.open == {("noah", at("2026-03-31T22:00:00"), "call", "gold@2"): (7, 1)}
    letter = sink(story).dead_letters.read().sort_by("offset").to_pylist()[2]
    assert (letter["payload"], letter["entity"], letter["type"]) == ('{"quantity":-1}', "emma", "call")


@not_in_fast("a whole story")
def test_a_table_of_stateside_0_1_is_gone_on_with_and_its_documents_stay_as_they_are(story: Layout) -> None:
    """Its invoices have no rounding line: nor have their notes. Those of new invoices have one."""
    old = replace(DOCUMENTS, schema=pa.schema([field for field in DOCUMENTS.schema if field.name not in ADDED]))
    mark = story.view("bill").mark(DOCUMENTS.name)
    ArchiveTable(story.table(DOCUMENTS.name), old, mark).create()
    query = Query(story)
    for end in ENDS[:5]:  # January is sealed
        query = query.run(end)
    before = [document for document in documents(story) if document["number"] in ("I-000000001", "I-000000002")]
    rows = [{name: document[name] for name in old.schema.names} for document in before]
    table = DeltaTable(story.table(DOCUMENTS.name))
    write_deltalake(table, pa.Table.from_pylist(rows, old.schema), mode="overwrite", schema_mode="overwrite")
    for end in ENDS[5:]:
        query = query.run(end)
    assert told(story) == EXPECTED
    roundings = {document["number"]: document["rounding_micros"] for document in documents(story)}
    new = ("I-000000003", "I-000000004", "N-000000002")
    assert roundings == {"I-000000001": None, "I-000000002": None, "N-000000001": None} | dict.fromkeys(new, 0)


IN_TURN = tuple(STEPS)  # a crash at the first step, one at the second in the rerun, and so on
EACH_TWICE = [IN_TURN, *((step, step) for step in STEPS)]


@pytest.mark.parametrize("steps", sized([IN_TURN], EACH_TWICE), ids=str)
def test_a_crash_at_any_step_of_any_batch_and_its_rerun_change_nothing(story: Layout, steps: tuple[int, ...]) -> None:
    """The idempotent sink. Without the frontier a crash after step 4 seals twice, or takes late events for duplicates;
    without the position of dead letters a crash after step 5 stores these twice: both were tried.
    """
    query = Query(story)
    for end in ENDS:
        for step in steps:
            with pytest.raises(Crash):
                query.run(end, crash_at(step))
        query = query.run(end)
    assert told(story) == EXPECTED
    assert dead(story) == [*DEAD, *AGAIN, DEAD_LAST]


@not_in_fast("a whole story")
def test_without_its_guard_a_batch_that_is_repeated_is_sealed_twice(story: Layout) -> None:
    """The control of `stateside chaos --guarantee at-least-once`: a first attempt that was stored is not looked at."""
    query, last = Query(story, guarded=False), EXPECTED[3][-1]  # the end of the batch with the last invoice
    for end in ENDS:
        if end == last:
            with pytest.raises(Crash):
                query.run(end, crash_at(6))
        query = query.run(end)
    again = ("I-000000005", *EXPECTED[3][1:])
    assert told(story) == [*EXPECTED[:4], again, *EXPECTED[4:]]


@not_in_fast("a whole story")
def test_without_its_guard_a_stream_without_crashes_is_billed_just_the_same(story: Layout) -> None:
    query = Query(story, guarded=False)
    for end in ENDS:
        query = query.run(end)
    assert told(story) == EXPECTED
    assert dead(story) == [*DEAD, *AGAIN, DEAD_LAST]


KILLED = """
import os, signal, sys
from pathlib import Path
from stateside.core.layout import Layout
from tests.billing.played import Query
from tests.billing.story import ENDS

layout, step = Layout(Path(sys.argv[1])), int(sys.argv[2])
def kill(reached):
    if reached == step and query.batch == 4:  # in the batch after that: a note, a late invoice, a duplicate
        os.kill(os.getpid(), signal.SIGKILL)
query = Query(layout)
for end in ENDS:
    query = query.run(end, kill)
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(4, marks=in_full("the test before this one")),
        5,
        pytest.param(6, marks=in_full("the test before this one")),
    ],
)
def test_a_process_that_is_killed_leaves_whole_documents_or_none(story: Layout, step: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", KILLED, str(story.root), str(step)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert told(story) == ([*EXPECTED[:3], EXPECTED[4]] if step > 4 else EXPECTED[:2])
    run_story(story)
    assert told(story) == EXPECTED


@not_in_fast("a whole story; one that begins in mid-journal is here")
@pytest.mark.parametrize("length", sized([4], [1, 4, 100]))
def test_a_new_query_neither_doubles_nor_renumbers(billed: Layout, length: int) -> None:
    """With other batches, and so with other watermarks: some that were late are not, and the other way round."""
    shutil.rmtree(billed.view("bill").root)
    Query(billed, "new").run_to_end(length)
    assert told(billed) == EXPECTED
    assert dead(billed) == [*DEAD, *AGAIN, DEAD_LAST]


def test_a_query_that_begins_anew_in_mid_journal_bills_what_the_first_had_not_got_to(story: Layout) -> None:
    """January is sealed, its late events have not come yet; the new query has them all in its first batch."""
    query = Query(story)
    for end in ENDS[:5]:
        query = query.run(end)
    assert len(told(story)) == 2
    shutil.rmtree(story.view("bill").root)
    Query(story, "new").run_to_end()
    assert [row[:-1] for row in told(story) if row[3] == "2026-01"] == [
        ("I-000000001", "invoice", "emma", "2026-01", "EUR", 0, 2, None, [], False),
        ("I-000000002", "invoice", "noah", "2026-01", "USD", 20_000, 2, None, [], False),
        ("I-000000003", "invoice", "olga", "2026-01", "EUR", 30_000, 2, None, ["9", "10"], True),
        ("N-000000001", "debit-note", "emma", "2026-01", "EUR", 10_000, 1, "I-000000001", ["8"], False),
    ]


def test_two_generations_that_seal_at_a_time_store_each_document_once(story: Layout) -> None:
    """The old one has decided what to store when the new one, which is filled beside it, stores the same first."""
    second = Layout(story.root, (story.at("bill", ViewGeneration(2, "bill/generations/2")),))
    old, new = Query(story), Query(second, "refolded").run(ENDS[3])
    for end in ENDS[:4]:
        old = old.run(end)

    def overtake(step: int) -> None:
        nonlocal new
        if step == 4:
            new = new.run(ENDS[4])

    with pytest.raises(SinkAway, match="at the same time"):
        old.run(ENDS[4], overtake)
    assert len(documents(story)) == 2
    for end in ENDS[4:]:
        old, new = old.run(end), new.run(end) if end > new.position else new
    assert told(story) == EXPECTED and dead(story) == [*DEAD, *AGAIN, DEAD_LAST]
    assert old.open == new.open
    assert (second.view("bill").root / "plans.json").exists()


def test_only_the_guarded_sink_is_declared_to_recognise_rows() -> None:
    """So bills without the guard, which a second generation would double, cannot be folded again."""
    assert [is_keyed(each.views["bill"].sink or BillingSink.of) for each in (app, at_least_once.app)] == [True, False]


@not_in_fast("a whole story")
def test_a_frontier_that_is_lost_holds_the_batch_rather_than_double_an_invoice(
    billed: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second guard: an invoice is inserted only if its account has none."""
    monkeypatch.setattr(Frontier, "of", classmethod(lambda cls, counter: cls()))
    with pytest.raises(ArchiveInvalid, match="3 invoices are there already, the first for emma"):
        Query(billed, "new").run_to_end(4)
    assert told(billed) == EXPECTED


def test_without_the_late_sweep_the_law_of_conservation_is_broken(
    story: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the check that the next test makes would find it."""
    whole = sink_module.sweep
    monkeypatch.setattr(sink_module, "sweep", lambda *args: Swept((found := whole(*args)).late.slice(0, 0), found.bad))
    query = run_story(story)
    with pytest.raises(AssertionError):
        check_conserved(story, query)


def check_conserved(layout: Layout, query: Query) -> None:
    """Each event is in a document, in an open row or a dead letter; sums and numbers are right. No duplicates here."""
    journal = FileLog(layout.journal)
    book = BookKeeper(journal, None).at(query.position)
    expected: Counter[Any] = Counter()
    bad = []
    for row in rate(events_table(journal, 0, query.position), book).to_pylist():
        if row["reason"] not in (None, "reference"):
            bad.append(row["offset"])
        elif row["reason"] is None and row["type"] != CLOCK:
            end_us = book.plans[row["plan"]].cycle.containing(round(row["time"].timestamp() * 1_000_000)).end_us
            expected[row["customer"], end_us, row["type"], row["plan"]] += row["quantity"] + (1 << 80)  # and an event
    stored = documents(layout)
    found: Counter[Any] = Counter()
    charged: Counter[Any] = Counter()
    for document in stored:
        end_us = round(document["period_end"].timestamp() * 1_000_000)
        for line in document["lines"]:
            cell = (document["customer"], end_us, line["type"], line["plan"])
            found[cell] += line["quantity"] + (line["events"] << 80)
            charged[cell] += line["charged_micros"]
    for cell, whole in found.items():
        plan = book.plans[cell[3]]
        exact = plan.prices[cell[2]].value(whole % (1 << 80))
        assert charged[cell] == round_micros(exact, plan.currency, plan.rounding)
    closed_us = max([query.watermark_us, Frontier.of(sink(layout).documents.opened().counter).closed_us])
    for cell, (quantity, events) in query.open.items():
        if cell[1] > closed_us:  # a row of a period that an earlier query has closed is left out when it is sealed
            found[cell] += quantity + (events << 80)
    assert found == expected
    assert [row["offset"] for row in sink(layout).dead_letters.read().sort_by("offset").to_pylist()] == bad
    for kinds in (["invoice"], ["credit-note", "debit-note"]):
        sequences = [document["sequence"] for document in stored if document["kind"] in kinds]
        assert sequences == list(range(1, len(sequences) + 1))
    accounts = [(d["customer"], d["period_end"], d["currency"]) for d in stored if d["kind"] == "invoice"]
    assert len(accounts) == len(set(accounts))


DAY_US = 24 * HOUR_US
arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # days since the last one
        st.sampled_from([0, 0, 0, 2, 9, 40]),  # days that it is late
        st.sampled_from(["emma", "noah", "olga", "nobody"]),
        st.sampled_from(["call", "message", "credit", CLOCK]),
        st.integers(0, 300),
    ),
    min_size=4,
    max_size=24,
)
moves = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 1, 3, 9]), st.integers(0, 2), st.integers(0, 8)), max_size=8
)


@not_in_fast("a property over stories; one crash at each step is tried here")
@settings(max_examples=examples(5, 150))
@given(arrivals, moves, st.sampled_from([1, 3, 50]))
def test_crashes_rollbacks_and_new_queries_in_any_order_bill_each_event_once(
    arrivals: list[tuple[int, int, str, str, int]], moves: list[tuple[int, int, int, int]], length: int
) -> None:
    """As in `test_frontier`, with the real sink, tables and journal; a move may crash at a step, then runs again."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        journal = append(layout, [*((at("2025-12-01"), event) for event in OPENING), *_events(arrivals)])
        end = journal.end()["0"]
        saved = [Query(layout, f"query-{number}") for number in range(3)]
        for source, forward, target, step in moves:
            stop = min(saved[source].position + forward, end)
            if step in STEPS:
                with pytest.raises(Crash):
                    saved[source].run(stop, crash_at(step))
            saved[target] = saved[source].run(stop)
        last = saved[moves[-1][2] if moves else 0].run_to_end(length)
        check_conserved(layout, last)


def _events(arrivals: list[tuple[int, int, str, str, int]]) -> list[tuple[int, Event]]:
    now_us, events = at("2026-01-05"), []
    for number, (days, late_days, customer, type_, quantity) in enumerate(arrivals):
        now_us += days * DAY_US
        time_us = now_us if type_ == CLOCK else max(now_us - late_days * DAY_US, at("2025-12-03"))
        event = (
            clock_tick(time_us, f"{number}")
            if type_ == CLOCK
            else usage(f"{number}", customer, type_, time_us, quantity)
        )
        events.append((now_us, event))
    return events


def test_prices_and_plans_are_there_before_anything_that_refers_to_them(story: Layout) -> None:
    with pytest.raises(Crash):
        Query(story).run(ENDS[0], crash_at(2))
    places = story.view("bill")
    plans = load_plans(places)
    assert plans.keys() == {"basic@1", "gold@2"}
    assert FunctionTable.load(places.functions).entries["gold@2", "call"] == plans["gold@2"].prices["call"]


@pytest.mark.parametrize("table", ["documents", "dead_letters"])
def test_a_table_that_is_gone_or_another_holds_the_batch(story: Layout, table: str) -> None:
    query = Query(story)
    for end in ENDS[:4]:
        query = query.run(end)
    home, away = story.table(table), story.root / "away"
    opened = sink(story)
    home.rename(away)
    for _ in range(2):
        with pytest.raises(ArchiveInvalid, match="cannot be opened"):
            query.run(ENDS[4])
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(story.table("documents" if table == "dead_letters" else "dead_letters"), home)
    with pytest.raises(ArchiveInvalid, match="is another one"):
        opened._opened(getattr(opened, table))
    shutil.rmtree(home)
    away.rename(home)
    for end in ENDS[4:]:
        query = query.run(end)
    assert told(story) == EXPECTED


def test_documents_of_another_journal_are_refused(billed: Layout) -> None:
    shutil.rmtree(billed.journal)
    append(billed, [(at("2026-01-01"), OPENING[0])])
    with pytest.raises(ArchiveInvalid, match="was filled from another journal"):
        sink(billed)


@not_in_fast("a whole story")
def test_documents_of_more_events_than_the_journal_has_are_refused(layout: Layout) -> None:
    """An old copy of the journal: new events would stand where lost ones did, and seem to be billed."""
    events = [(at(day), event) for day, events in BATCHES for event in events]
    append(layout, events[: ENDS[4]])
    old_copy = layout.root / "copy"
    shutil.copytree(layout.journal, old_copy)
    append(layout, events[ENDS[4] :])
    run_story(layout)
    shutil.rmtree(layout.journal)
    old_copy.rename(layout.journal)
    with pytest.raises(ArchiveInvalid, match=f"of {ENDS[8]} events, and the journal has {ENDS[4]} only"):
        sink(layout)
