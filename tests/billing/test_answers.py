"""Bills, explanations and dead letters, from a real journal, real tables and a replica. Amounts worked out by hand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import pytest

from stateside.billing.answers import explain
from stateside.billing.answers.api import Api
from stateside.billing.answers.bills import BillPeriod, bill, bill_periods
from stateside.billing.answers.document_store import DocumentStore, Gate
from stateside.billing.answers.explain import Behind, Explainer
from stateside.billing.answers.letters import DeadLetterReader, letters_to_replay, parse_changes, replay
from stateside.billing.answers.period_names import PublishedPlans
from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.model import HOUR_US, assignment, clock_tick, usage
from stateside.billing.plans.file import load_plans, plan_event
from stateside.core.clock import ManualClock
from stateside.core.errors import CheckpointInvalid, EventRefused, PositionInvalid, RequestInvalid, StateError
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal import Event, FileLog, JournalWriter
from stateside.serving.access.position_codec import PLAIN
from stateside.serving.changes import watch
from stateside.serving.changes.feed import Feeds
from stateside.serving.rows.view_readers import Floor, ViewReader, ViewReaders
from stateside.serving.stamp import Stamp
from stateside.serving.web.request import Request
from stateside.serving.web.response import StreamResponse, as_json
from stateside.spark_state.batch_log import Checkpoint

from .written_bills import SWISS, WrittenBills, plan, step

BERLIN = Cycle("month", "Europe/Berlin")
JANUARY = BERLIN.containing(1_768_000_000_000_000)
FEBRUARY = BERLIN.containing(JANUARY.end_us)
DAY_US = 24 * HOUR_US


class Folder:
    """A billing folder with a clock of its own."""

    def __init__(self, layout: Layout, *, deduplicates: bool = True) -> None:
        self.layout, self.clock = layout, ManualClock(JANUARY.start_us - 30 * DAY_US)
        self.bills = WrittenBills.begin(layout, deduplicates=deduplicates)
        self.plans = PublishedPlans(lambda: load_plans(layout.view("bill")), "plans.json")
        self.append(plan_event(plan(), "p-1", self.clock.now_us()), plan_event(plan(SWISS), "p-2", self.clock.now_us()))
        for customer, name in (("emma", "basic"), ("ben", "basic"), ("urs", "swiss")):
            self.append(assignment(f"a-{customer}", customer, name, JANUARY.start_us, self.clock.now_us()))
        self.clock.time_us = JANUARY.start_us

    def append(self, *events: Event) -> Position:
        with JournalWriter(self.layout.journal, clock=self.clock) as writer:
            return writer.append(events, compare_ids=False)

    def used(self, id_: str, type_: str, quantity: int, customer: str = "emma", **named: Any) -> Event:
        """Usage in January."""
        return usage(id_, customer, type_, JANUARY.start_us + DAY_US, quantity, **named)

    def batch(self, *close: int, move: Callable[[Layout], None] = step) -> None:
        self.clock.time_us = max(self.clock.time_us, JANUARY.start_us + 2 * DAY_US)
        self.bills.play(close)
        move(self.layout)

    def asked(self, customer: str) -> tuple[Stamp, list[dict[str, Any]]]:
        reader = ViewReader(self.layout.view("bill"))
        answer = asyncio.run(reader.rows([customer], Floor(wait_ms=0)))
        reader.close()
        return answer.stamp, answer.rows

    def bill(self, customer: str = "emma") -> dict[str, Any]:
        stamp, rows = self.asked(customer)
        return bill(customer, rows, DocumentStore.of(self.layout).of_customer(customer, Gate.of(stamp)), self.plans)

    def period(self, customer: str = "emma") -> tuple[BillPeriod, Stamp]:
        stamp, rows = self.asked(customer)
        documents = DocumentStore.of(self.layout).of_customer(customer, Gate.of(stamp))
        return bill_periods(rows, documents, self.plans)[0], stamp

    def explained(self, customer: str = "emma") -> list[Behind]:
        period, stamp = self.period(customer)
        return self.explainer().behind(customer, period, stamp.position)

    def explainer(self) -> Explainer:
        journal = FileLog(self.layout.journal)
        checkpoint = Checkpoint(Storage.at(self.layout.view("bill").checkpoint))
        return Explainer(journal, BookKeeper(journal, None), lambda: checkpoint)


@pytest.fixture
def folder(layout: Layout) -> Folder:
    made = Folder(layout)
    made.clock.time_us = JANUARY.start_us + 2 * DAY_US
    return made


def shown(found: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    return [(p["period"], p["currency"], p["state"], p["charged_micros"]) for p in found["periods"]]


class TestBills:
    def test_a_period_in_its_grace_time_and_the_next_one_are_drafts_at_the_same_time(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 121))
        folder.clock.time_us = FEBRUARY.start_us + DAY_US
        folder.append(usage("c-2", "emma", "call", FEBRUARY.start_us + HOUR_US, 60))
        folder.batch()
        found = folder.bill()
        assert shown(found) == [("2026-01", "EUR", "draft", 90_000), ("2026-02", "EUR", "draft", 0)]
        (line,) = found["periods"][0]["lines"]
        assert (line["amount_micros"], line["charged_micros"]) == (91_500, 90_000), "61 seconds at 0.09 a minute"

    def test_a_period_is_draft_then_sealed_then_corrected_and_its_amount_goes_on(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 180), folder.used("m-1", "message", 9))
        folder.batch()
        assert shown(folder.bill()) == [("2026-01", "EUR", "draft", 1_080_000)]
        folder.batch(JANUARY.end_us)
        assert shown(folder.bill()) == [("2026-01", "EUR", "sealed", 1_080_000)]
        folder.append(folder.used("m-2", "message", 2))
        folder.batch()
        (period,) = folder.bill()["periods"]
        assert shown(folder.bill()) == [("2026-01", "EUR", "corrected", 1_080_000 + 100_000 + 50_000)]
        assert [(d["number"], d["kind"], d["charged_micros"]) for d in period["documents"]] == [
            ("I-000000001", "invoice", 1_080_000),
            ("N-000000001", "debit-note", 150_000),
        ]
        assert [(line["type"], line["quantity"], line["events"]) for line in period["lines"]] == [
            ("call", 180, 1),
            ("message", 11, 2),
        ]

    def test_currencies_are_never_added_up(self, folder: Folder) -> None:
        folder.append(assignment("a-2", "emma", "swiss", JANUARY.start_us + 10 * DAY_US, folder.clock.now_us()))
        folder.clock.time_us = JANUARY.start_us + 20 * DAY_US
        folder.append(
            folder.used("f-1", "fee", 1, name="base"),
            usage("f-2", "emma", "fee", JANUARY.start_us + 15 * DAY_US, 1, name="base"),
            usage("f-3", "emma", "credit", JANUARY.start_us + 15 * DAY_US, 990_000),
        )
        folder.batch()
        found = folder.bill()
        assert shown(found) == [("2026-01", "CHF", "draft", 9_000_000), ("2026-01", "EUR", "draft", 9_990_000)]
        assert [(t["currency"], t["charged_micros"]) for t in found["totals"]] == [
            ("CHF", 9_000_000),
            ("EUR", 9_990_000),
        ]
        assert [(t["type"], t["amount_micros"]) for t in found["totals"][0]["types"]] == [
            ("credit", -990_000),
            ("fee:base", 9_990_000),
        ]

    def test_a_row_of_a_plan_that_nobody_knows_is_an_error_that_names_it(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 120))
        folder.batch()
        with pytest.raises(CheckpointInvalid, match="basic@1"):
            folder.plans = PublishedPlans(dict, "plans.json")
            folder.bill()


class Subscriber:
    """A subscriber to a bill: replaces the periods that it is sent, and computes nothing."""

    def __init__(self, folder: Folder) -> None:
        views = ViewReaders(folder.layout)
        self.feeds, self._api = Feeds(views), Api(folder.layout)
        self._request = Request(("emma",), (), {}, views, self.feeds)
        self.told: list[str] = []
        self.bill: dict[str, Any] = {}

    async def hear(self, stream: StreamResponse, batch: int) -> None:
        """Read events until the bill is that of a batch, and compare it with the bill that is asked for."""
        async with asyncio.timeout(20):
            while self.bill.get("stamp", {}).get("batch") != batch:
                async for content in stream.parts:
                    self._apply(content)
                    break
        asked = json.loads(as_json((await self._api.bill(self._request)).document, PLAIN))
        assert {**self.bill, "stamp": {}} == {**asked, "stamp": {}}
        assert self.bill["stamp"]["batch"] == asked["stamp"]["batch"]

    async def open(self) -> StreamResponse:
        stream = (await self._api.changes(self._request)).stream
        assert stream is not None
        return stream

    def _apply(self, content: bytes) -> None:
        kind, data = re.findall(r"^event: (\w+)$.*?^data: (.*)$", content.decode(), re.MULTILINE | re.DOTALL)[0]
        event = json.loads(data)
        if kind == "pulse":
            return
        self.told.append(kind)
        assert event.pop("last")
        if kind == "snapshot":
            self.bill = event
            return
        assert event.pop("after") == self.bill["stamp"]["batch"]
        periods = {self._key(period): period for period in self.bill["periods"]}
        for period in event.pop("removed"):
            del periods[self._key(period)]
        periods |= {self._key(period): period for period in event.pop("changed")}
        self.bill = {**self.bill, **event, "periods": [periods[key] for key in sorted(periods)]}

    def _key(self, period: dict[str, str]) -> tuple[str, ...]:
        return period["period_end"], period["period"], period["currency"]


@pytest.mark.e2e
class TestStream:
    def test_its_events_lead_to_the_bill_of_each_batch(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lines and periods appear, a period closes, a note comes for it, and batches pass that change nothing."""
        monkeypatch.setattr(watch, "COMPOSED_S", 0.0)

        async def run(move: Callable[[Layout], None]) -> None:
            subscriber = Subscriber(folder)
            stream = await subscriber.open()
            await subscriber.hear(stream, 0)
            steps: list[tuple[list[Event], list[int]]] = [
                ([folder.used("m-1", "message", 2)], []),
                ([folder.used("b-1", "call", 600, "ben")], []),
                ([usage("c-2", "emma", "call", FEBRUARY.start_us + HOUR_US, 90)], []),
                ([], [JANUARY.end_us]),
                ([folder.used("m-2", "message", 2)], []),
                ([assignment("a-2", "emma", "swiss", FEBRUARY.start_us + DAY_US, FEBRUARY.start_us)], []),
                ([usage("f-1", "emma", "fee", FEBRUARY.start_us + 2 * DAY_US, 1, name="base")], [FEBRUARY.end_us]),
            ]
            folder.clock.time_us = FEBRUARY.start_us + 3 * DAY_US
            for number, (events, closed) in enumerate(steps, 1):
                folder.append(*events)
                folder.batch(*closed, move=move)
                await subscriber.hear(stream, number)
            assert subscriber.told == ["snapshot", *["changes"] * len(steps)]
            again = await subscriber.open()
            subscriber.bill = {}
            await subscriber.hear(again, len(steps))
            assert subscriber.told[-1] == "snapshot", "a reconnect begins with the whole bill"
            subscriber.feeds.stop()
            rest = [content for opened in (stream, again) async for content in opened.parts]
            assert [content.split(b"\n")[0] for content in rest if b"pulse" not in content] == [b"event: end"] * 2

        folder.append(folder.used("c-1", "call", 180))
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a process reads a replica, or moves it
            folder.batch(move=lambda layout: pool.submit(step, layout).result())
            asyncio.run(run(lambda layout: pool.submit(step, layout).result()))


class TestExplaining:
    def test_an_event_that_came_with_a_trace_is_shown_with_it(self, folder: Folder) -> None:
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        folder.append(replace(folder.used("c-1", "call", 60), metadata={"traceparent": trace, "by": "shop"}))
        folder.append(folder.used("c-2", "call", 60), replace(folder.used("c-3", "call", 1), metadata={"by": "shop"}))
        folder.batch()
        shown = [event.as_dict(PLAIN.offset) for event in folder.explained()]
        assert [event.get("traceparent") for event in shown] == [trace, None, None]

    def test_events_add_what_they_add_at_their_place_in_the_tiers(self, folder: Folder) -> None:
        folder.append(
            folder.used("m-1", "message", 8), folder.used("x", "call", 30, "ben"), folder.used("m-2", "message", 4)
        )
        folder.append(folder.used("c-1", "call", 50), folder.used("c-2", "call", 50), folder.used("m-3", "message", 1))
        folder.batch()
        assert [(event.id, event.amount_micros) for event in folder.explained()] == [
            ("m-1", 800_000),
            ("m-2", 300_000),  # two at 0.10, two at 0.05
            ("c-1", 0),  # a minute is included
            ("c-2", 60_000),
            ("m-3", 50_000),
        ]

    def test_duplicates_count_once_where_the_query_drops_them(self, folder: Folder) -> None:
        folder.append(folder.used("m-1", "message", 8), folder.used("m-1", "message", 8))
        folder.batch()
        folder.append(folder.used("m-1", "message", 8))
        folder.batch()
        assert [event.offset for event in folder.explained()] == [5]

    def test_and_each_time_where_it_does_not(self, layout: Layout) -> None:
        folder = Folder(layout, deduplicates=False)
        folder.clock.time_us = JANUARY.start_us + 2 * DAY_US
        folder.append(folder.used("m-1", "message", 8), folder.used("m-1", "message", 8))
        folder.batch()
        assert [event.amount_micros for event in folder.explained()] == [800_000, 500_000]

    def test_late_events_are_shown_with_their_note_and_late_duplicates_as_they_were_charged(
        self, folder: Folder
    ) -> None:
        """Documents of an older version may charge a late event with the id of one that came in time."""
        folder.append(folder.used("m-1", "message", 8), folder.used("m-1", "message", 8))
        folder.batch(JANUARY.end_us)
        folder.append(folder.used("m-2", "message", 4), folder.used("m-1", "message", 1))
        folder.batch()
        folder.append(folder.used("m-2", "message", 4), folder.used("c-1", "call", 120))
        folder.batch()
        assert [(event.id, event.amount_micros, event.document) for event in folder.explained()] == [
            ("m-1", 800_000, None),
            ("m-2", 300_000, "N-000000001"),
            ("m-1", 50_000, "N-000000001"),
            ("c-1", 90_000, "N-000000002"),
        ]

    def test_a_late_invoice_s_events_are_late(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 120, "ben"))
        folder.batch(JANUARY.end_us)
        folder.append(folder.used("c-2", "call", 120))
        folder.batch()
        (event,) = folder.explained()
        assert (event.id, event.document) == ("c-2", "I-000000002")

    def test_a_balance_that_the_journal_does_not_have_is_an_error_and_no_list(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 120))
        folder.batch()
        folder.bills.commit({("emma", JANUARY.end_us, "call", "basic@1"): (121, 1)}, folder.bills.position)
        step(folder.layout)
        with pytest.raises(
            StateError, match=r"do not add up .* the bill has 121 in 1 events, 91500 micros, the journal 120"
        ):
            folder.explained()

    def test_only_events_up_to_the_answer_s_position_are_behind_it(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 120))
        folder.batch()
        explainer = folder.explainer()
        period, stamp = folder.period()
        folder.append(folder.used("c-2", "call", 120))
        assert [event.id for event in explainer.behind("emma", period, stamp.position)] == ["c-1"]
        folder.batch()
        period, stamp = folder.period()
        assert [event.id for event in explainer.behind("emma", period, stamp.position)] == ["c-1", "c-2"]

    def test_an_id_that_another_customer_s_event_had_first_did_not_count(self, folder: Folder) -> None:
        """Ids are the source's: de-duplication knows no customers."""
        folder.append(
            folder.used("c-1", "call", 120, "ben"), folder.used("c-1", "call", 120), folder.used("c-2", "call", 90)
        )
        folder.batch()
        assert [event.id for event in folder.explained()] == ["c-2"]
        assert [event.id for event in folder.explained("ben")] == ["c-1"]

    def test_pages_of_different_batches_fit_together(self, folder: Folder) -> None:
        folder.append(*(folder.used(f"m-{n}", "message", 3) for n in range(5)))
        folder.batch()
        first, more = explain.page(folder.explained(), -1, 3)
        assert (len(first), more) == (3, first[-1].offset)
        folder.append(folder.used("m-5", "message", 3))
        folder.batch(JANUARY.end_us)
        second, end = explain.page(folder.explained(), first[-1].offset, 100)
        assert end is None
        assert [event.id for event in (*first, *second)] == [f"m-{n}" for n in range(6)]
        period, _ = folder.period()
        assert sum(event.amount_micros for event in (*first, *second)) == period.amount_micros

    def test_a_position_of_another_journal_is_refused(self, folder: Folder) -> None:
        folder.append(folder.used("c-1", "call", 120))
        folder.batch()
        period, _ = folder.period()
        with pytest.raises(PositionInvalid, match="calls-0"):
            folder.explainer().behind("emma", period, Position.of({"calls-0": 7}))


class TestDeadLetters:
    @pytest.fixture
    def letters(self, folder: Folder) -> Iterator[DeadLetterReader]:
        """At offsets 5 to 8: an unknown customer twice, a future one, one that counts between them."""
        folder.append(
            folder.used("u-1", "call", 60, "nobody"),
            folder.used("c-1", "call", 120),
            folder.used("u-2", "call", 60, "no one"),
            usage("f-1", "emma", "call", folder.clock.now_us() + 2 * HOUR_US, 60),
        )
        folder.batch()
        yield DeadLetterReader.of(folder.layout)

    def test_they_are_counted_by_reason_listed_and_shown(self, letters: DeadLetterReader) -> None:
        assert letters.counts() == {"future-dated": 1, "unknown-customer": 2}
        assert letters.counts(before=0) == {}
        assert [letter.offset for letter in letters.page(limit=10)] == [5, 7, 8]
        assert [letter.offset for letter in letters.page(limit=1, after=5)] == [7]
        assert [letter.id for letter in letters.page(limit=10, reason="future-dated")] == ["f-1"]
        letter = letters.get(7)
        assert letter is not None
        assert letter.as_dict()["payload"] == {"quantity": 60}
        assert letters.get(6) is None

    def test_a_replay_appends_the_repaired_event_once_however_often_it_is_run(
        self, folder: Folder, letters: DeadLetterReader
    ) -> None:
        (letter,) = letters_to_replay(folder.layout, 5, None)
        for expected in ((1, 0), (0, 1), (0, 1)):
            done = replay(folder.layout, [letter], parse_changes(["customer=emma", "quantity=61"]), folder.clock)
            assert (done.appended, done.already) == expected
        folder.append(clock_tick(folder.clock.now_us(), "t-1"))
        folder.batch()
        assert [(event.id, event.quantity) for event in folder.explained()] == [("c-1", 120), ("replay/5", 61)]

    def test_all_of_one_reason_are_replayed_once_they_can_be(self, folder: Folder, letters: DeadLetterReader) -> None:
        both = letters_to_replay(folder.layout, None, "unknown-customer")
        with pytest.raises(EventRefused, match=r"replay/5 would be a dead letter again: unknown-customer"):
            replay(folder.layout, both, {}, folder.clock)
        end = FileLog(folder.layout.journal).end()
        for customer in ("nobody", "no one"):
            folder.append(assignment(f"a-{customer}", customer, "basic", JANUARY.start_us, folder.clock.now_us()))
        done = replay(folder.layout, both, {}, folder.clock)
        assert (done.appended, done.receipt) == (2, Position.of({"0": end["0"] + 4}))
        folder.batch()
        assert shown(folder.bill("nobody")) == [("2026-01", "EUR", "draft", 0)]

    def test_what_a_replay_cannot_set_is_refused(self, folder: Folder, letters: DeadLetterReader) -> None:
        for text in ("id=5", "quantity", "=", "amount=1"):
            with pytest.raises(RequestInvalid, match="quantity, name, currency"):
                parse_changes([text])
        (letter,) = letters_to_replay(folder.layout, 5, None)
        with pytest.raises(RequestInvalid, match="whole number"):
            replay(folder.layout, [letter], {"quantity": "many"}, folder.clock)
        with pytest.raises(RequestInvalid, match="time like"):
            replay(folder.layout, [letter], {"time": "soon"}, folder.clock)
