"""The generator: the same stream for the same seed, even sums by an arithmetic of the test's own, the asked shares."""

from __future__ import annotations

import calendar
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.generator import EVEN_MICROS, Arrival, ExpectedTotals, Generator, Shares, generate, output
from stateside.billing.generator.output import to_files, to_journal, to_kafka
from stateside.core.errors import RequestInvalid, SinkAway
from stateside.core.processes import free_port
from stateside.journal import Event, FileLog
from stateside.testbed.broker import Broker
from tests.sizes import examples

DAY_US = 86_400_000_000
GRACE_US = 3 * DAY_US
HOUR_US = DAY_US // 24
USAGE = ("bill", "note")
SMALL = Generator(seed=5, customers=60, events_per_period=12)
REASONS = {
    "malformed", "unknown-type", "unknown-customer", "unknown-plan", "not-in-plan", "negative-quantity",
    "absurd-quantity", "future-dated", "wrong-currency", "plan-refused", "assign-refused",
}  # fmt: skip


@pytest.fixture(scope="module")
def arrivals() -> list[Arrival]:
    return list(SMALL.arrivals())


@pytest.fixture(scope="module")
def report() -> ExpectedTotals:
    return SMALL.report()


@dataclass
class Ledger:
    """The test's own bills: plans and assignments as the journal tells them, usage by line."""

    plans: dict[str, list[dict[str, Any]]]
    assigned: dict[str, list[tuple[int, str]]]
    quantities: Counter[tuple[str, str, str, str]]  # customer, period, plan version, type
    currencies: dict[tuple[str, str], str]

    @classmethod
    def of(cls, events: Iterator[Event] | list[Event]) -> Ledger:
        ledger = cls(defaultdict(list), defaultdict(list), Counter(), {})
        for event in events:
            ledger.take(event)
        return ledger

    def take(self, event: Event) -> None:
        if event.type == "plan":
            self.plans[event.entity].append(dict(event.payload))
        elif event.type == "assign":
            self.assigned[event.entity].append((event.payload["effective_us"], event.payload["plan"]))
        elif event.type != "clock":
            self.use(event)

    def use(self, event: Event) -> None:
        _, plan = max(entry for entry in self.assigned[event.entity] if entry[0] <= event.time_us)
        versions = [version for version in self.plans[plan] if version["effective_us"] <= event.time_us]
        version = max(versions, key=lambda version: version["version"])
        period = month(event.time_us, **version["cycle"])
        name = f":{event.payload['name']}" if "name" in event.payload else ""
        line = (event.entity, period, f"{plan}@{version['version']}", event.type + name)
        self.quantities[line] += event.payload["quantity"]
        assert self.currencies.setdefault((event.entity, period), version["currency"]) == version["currency"]

    def amounts(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for (customer, period, id_, type_), quantity in self.quantities.items():
            plan, number = id_.split("@")
            (version,) = [version for version in self.plans[plan] if version["version"] == int(number)]
            found[customer, period] += amount(version["prices"][type_], quantity)
        return found


def amount(tiers: list[list[int]], quantity: int) -> int:
    edges = [above for above, _, _ in tiers[1:]] + [quantity]
    parts = [max(0, min(edge, quantity) - above) for (above, _, _), edge in zip(tiers, edges, strict=True)]
    return sum(part * micros // per for part, (_, micros, per) in zip(parts, tiers, strict=True))


def month(time_us: int, kind: str, time_zone: str, anchor_day: int) -> str:
    assert kind == "month"
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).astimezone(ZoneInfo(time_zone)).date()
    if day < start(day.year, day.month, anchor_day):
        day = day.replace(day=1) - timedelta(days=1)
    return f"{day:%Y-%m}" + (f"@{anchor_day}" if anchor_day > 1 else "")


def start(year: int, number: int, anchor_day: int) -> date:
    return date(year, number, min(anchor_day, calendar.monthrange(year, number)[1]))


def good(arrivals: list[Arrival]) -> list[Event]:
    return [arrival.event for arrival in arrivals if arrival.fate in (*USAGE, "reference")]


def test_the_same_seed_gives_the_same_stream(arrivals: list[Arrival]) -> None:
    again = list(replace(SMALL).arrivals())
    assert again == arrivals
    assert [arrival.arrival_us for arrival in again] == [arrival.arrival_us for arrival in arrivals]


def test_another_seed_gives_another_stream(arrivals: list[Arrival]) -> None:
    assert list(replace(SMALL, seed=6).arrivals()) != arrivals


def test_every_period_of_every_customer_adds_up_to_an_even_100(arrivals: list[Arrival]) -> None:
    amounts = Ledger.of(good(arrivals)).amounts()
    assert set(amounts.values()) == {EVEN_MICROS} == {100_000_000}
    periods = Counter(customer for customer, _ in amounts)
    assert periods == {f"c{number}": SMALL.periods + 1 for number in range(SMALL.customers)}


@settings(max_examples=examples(8, 50))
@given(st.integers(0, 1_000), st.integers(1, 70), st.integers(1, 9), st.integers(1, 4))
def test_sums_are_even_whatever_the_sizes(seed: int, customers: int, events: int, periods: int) -> None:
    generator = Generator(seed, customers, events, periods, Shares(late=0.2, duplicate=0.2))
    amounts = Ledger.of(good(list(generator.arrivals()))).amounts()
    assert set(amounts.values()) == {EVEN_MICROS}
    assert len(amounts) == customers * (periods + 1)


def test_sums_are_even_with_very_many_events_of_a_customer() -> None:
    amounts = Ledger.of(good(list(Generator(1, 2, 5_000, 1).arrivals()))).amounts()
    assert set(amounts.values()) == {EVEN_MICROS}


def test_the_scenario_has_all_that_a_bill_can_have(arrivals: list[Arrival]) -> None:
    ledger = Ledger.of(good(arrivals))
    lines = {(plan, type_) for _, _, plan, type_ in ledger.quantities}
    assert {plan for plan, _ in lines} == {"basic@1", "basic@2", "plus@1", "prairie@1", "payday@1"}
    assert {type_ for _, type_ in lines} == {"call", "message", "data", "package:weekend", "fee:base", "credit"}
    assert set(ledger.currencies.values()) == {"EUR", "USD"}
    assert {period for _, period in ledger.currencies} >= {"2025-12@31", "2026-01@31", "2026-02@31", "2026-03"}
    versions = defaultdict(set)
    for customer, period, plan, _ in ledger.quantities:
        versions[customer, period].add(plan)
    assert {"basic@1", "basic@2"} in versions.values()
    assert {"basic@2", "plus@1"} in versions.values()


def test_plans_and_assignments_come_first_and_a_change_an_hour_before_it_takes_effect(arrivals: list[Arrival]) -> None:
    reference = [arrival for arrival in arrivals if arrival.fate == "reference"]
    assert [arrival.fate for arrival in arrivals[: SMALL.customers + 5]] == ["reference"] * (SMALL.customers + 5)
    assert [arrival.event.type for arrival in arrivals[:4]] == ["plan"] * 4
    later = [
        arrival for arrival in reference if arrival.event.type == "plan" or arrival.event.payload["plan"] == "plus"
    ]
    moved = [arrival for arrival in later[4:] if arrival.event.entity in ("c1", "c51") or arrival.event.type == "plan"]
    assert {arrival.event.entity for arrival in moved} == {"c1", "c51", "basic"}
    for arrival in moved:
        assert arrival.event.payload["effective_us"] >= arrival.arrival_us + HOUR_US


def test_events_arrive_in_order_and_none_but_future_dated_ones_before_it_happens(arrivals: list[Arrival]) -> None:
    assert all(one.arrival_us <= other.arrival_us for one, other in pairwise(arrivals))
    for arrival in arrivals:
        ahead_us = arrival.event.time_us - arrival.arrival_us
        assert ahead_us > HOUR_US if arrival.fate == "future-dated" else ahead_us <= 0
    assert any(one.event.time_us > other.event.time_us for one, other in pairwise(arrivals))


def test_usage_comes_while_its_period_is_open_for_sure_or_when_it_is_closed_for_sure(arrivals: list[Arrival]) -> None:
    ends = {total.period + total.currency: total.period_end_us for total in SMALL.report().totals}
    ledger, newest_us = Ledger.of([]), 0
    after_its_end = 0
    for arrival in arrivals:
        if arrival.fate in (*USAGE, "reference", "duplicate"):
            ledger.take(arrival.event)
        if arrival.fate in (*USAGE, "duplicate"):
            period = period_of(ledger, arrival.event)
            end_us = ends[period + ledger.currencies[arrival.event.entity, period]]
            assert (newest_us - GRACE_US >= end_us) == (arrival.fate == "note")
            after_its_end += arrival.fate == "bill" and arrival.arrival_us >= end_us
        if arrival.fate in (*USAGE, "clock"):
            newest_us = max(newest_us, arrival.event.time_us)
    assert after_its_end > 0


def period_of(ledger: Ledger, event: Event) -> str:
    plan = max(entry for entry in ledger.assigned[event.entity] if entry[0] <= event.time_us)[1]
    return month(event.time_us, **ledger.plans[plan][0]["cycle"])


def test_duplicates_are_the_same_event_soon_after_the_first(arrivals: list[Arrival]) -> None:
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        if arrival.fate != "duplicate":
            assert arrival.event.id not in first
            first[arrival.event.id] = arrival
        else:
            assert arrival.event == first[arrival.event.id].event
            assert first[arrival.event.id].fate == "bill"
            assert 0 < arrival.arrival_us - first[arrival.event.id].arrival_us <= 6 * HOUR_US


def test_the_shares_are_those_that_were_asked_for() -> None:
    generator = Generator(3, 200, 20, 2, Shares(delayed=0, late=0.05, duplicate=0.02, bad=0.04))
    fates = Counter(arrival.fate for arrival in generator.arrivals())
    usage = 200 * 20 * 3
    assert fates["note"] == 0.05 * 200 * 20 * 2
    assert fates["duplicate"] == pytest.approx(0.02 * usage, rel=0.02)
    assert sum(count for fate, count in fates.items() if fate in REASONS) == 0.04 * usage


def test_every_reason_occurs_even_where_few_bad_events_are_asked_for() -> None:
    few = Generator(3, 3, 4, 1, Shares(bad=0.001))
    assert few.report().dead_letters == dict.fromkeys(REASONS, 1)


def test_without_bad_late_and_duplicate_events_there_are_none() -> None:
    fates = {arrival.fate for arrival in Generator(3, 30, 4, 1, Shares(0, 0, 0, 0)).arrivals()}
    assert fates == {"bill", "clock", "reference"}


def test_a_customer_with_nothing_but_late_events_occurs(report: ExpectedTotals) -> None:
    wholly = Generator(1, 200, 10, 2).report().wholly_late
    assert len(wholly) >= 1


def test_the_report_counts_what_comes(arrivals: list[Arrival], report: ExpectedTotals) -> None:
    assert report.events == Counter(arrival.fate for arrival in arrivals)
    assert report.journalled == len(arrivals)
    assert report.dead_letters.keys() == REASONS
    ledger = Ledger.of(good(arrivals))
    totals: Counter[tuple[str, str]] = Counter()
    for (customer, period), micros in ledger.amounts().items():
        totals[period, ledger.currencies[customer, period]] += micros
    assert totals == {(total.period, total.currency): total.amount_micros for total in report.totals}
    assert sum(total.events for total in report.totals) == report.events["bill"] + report.events["note"]
    assert [total.closes for total in report.totals] == [True] * 9 + [False] * 3
    late = {(arrival.event.entity, period_of(ledger, arrival.event)) for arrival in arrivals if arrival.fate == "note"}
    assert report.late == late


def test_what_is_charged_is_every_customer_s_period_rounded_once(
    arrivals: list[Arrival], report: ExpectedTotals
) -> None:
    ledger = Ledger.of(good(arrivals))
    exact: Counter[tuple[str, str]] = Counter()
    for (customer, period, plan, type_), quantity in ledger.quantities.items():
        name, number = plan.split("@")
        (version,) = [version for version in ledger.plans[name] if version["version"] == int(number)]
        exact[customer, period] += amount(version["prices"][type_], quantity)
    charged: Counter[tuple[str, str]] = Counter()
    for (customer, period), micros in exact.items():
        charged[period, ledger.currencies[customer, period]] += rounded(micros, "half-even")
    assert charged == {(total.period, total.currency): total.charged_micros for total in report.totals}
    assert all(total.charged_micros == total.amount_micros for total in report.totals), "100.00 each"


def rounded(micros: int, rule: str) -> int:
    cents, rest = divmod(abs(micros), 10_000)
    up = {
        "down": 0,
        "up": rest > 0,
        "half-up": rest >= 5_000,
        "half-even": (rest, cents % 2) >= (5_000, 1) or rest > 5_000,
    }
    return (cents + up[rule]) * 10_000 * (-1 if micros < 0 else 1)


def test_a_journal_gets_every_event_with_its_arrival_as_append_time(tmp_path: Path, arrivals: list[Arrival]) -> None:
    report = generate(SMALL, to_journal(tmp_path / "journal"))
    events = list(FileLog(tmp_path / "journal").events())
    assert events == [arrival.event for arrival in arrivals]
    assert [event.appended_us for event in events] == [arrival.arrival_us for arrival in arrivals]
    assert report.journalled == len(events)


def test_a_journal_that_has_events_is_refused(tmp_path: Path) -> None:
    tiny = Generator(1, 2, 1, 1)
    generate(tiny, to_journal(tmp_path))
    with pytest.raises(RequestInvalid, match="events already"):
        generate(tiny, to_journal(tmp_path))


def test_files_have_every_event_a_line_in_order(tmp_path: Path, arrivals: list[Arrival]) -> None:
    generate(SMALL, to_files(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "events-000001.jsonl").read_text().splitlines()]
    assert [(line["id"], line["appended_us"]) for line in lines] == [(a.event.id, a.arrival_us) for a in arrivals]
    assert lines[-1].keys() == {"id", "entity", "type", "time_us", "payload", "appended_us"}
    with pytest.raises(RequestInvalid, match=r"events-000001.jsonl already"):
        generate(SMALL, to_files(tmp_path))


def test_a_rate_is_kept(tmp_path: Path) -> None:
    began_s = time.monotonic()
    report = generate(Generator(1, 2, 2, 1, Shares(0, 0, 0, 0)), to_journal(tmp_path), rate=200)
    assert time.monotonic() - began_s >= report.journalled / 200


@pytest.mark.parametrize("wrong", [{"customers": 0}, {"periods": 0}, {"events_per_period": 0}])
def test_nothing_at_all_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid, match="Give a number from 1 on"):
        Generator(**wrong)


def test_a_share_beyond_all_is_refused() -> None:
    with pytest.raises(RequestInvalid, match=r"share of late events is 1\.5"):
        Shares(late=1.5)


@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(900)  # the first one with a broker fetches 46 jars
def test_a_topic_gets_every_event_in_its_customers_order_with_its_arrival_as_timestamp(broker: Broker) -> None:
    generator = Generator(1, 7, 3, 1)
    broker.create_topic("generated", partitions=2)
    generate(generator, to_kafka(broker.address, "generated"))
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for message in messages(broker.address, "generated", partitions=2):
        line = json.loads(message.value() or b"")
        assert (message.key() or b"").decode() == line["entity"]
        found[line["entity"]].append((line["id"], message.timestamp()[1]))
    expected: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for arrival in generator.arrivals():
        expected[arrival.event.entity].append((arrival.event.id, arrival.arrival_us // 1_000))
    assert found == expected


def messages(servers: str, topic: str, partitions: int) -> list[Message]:
    """All that a topic has."""
    consumer = Consumer({"bootstrap.servers": servers, "enable.partition.eof": True, "group.id": "test"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        message = consumer.poll(30)
        assert message is not None, "the broker is silent"
        error = message.error()
        assert error is None or error.code() == KafkaError._PARTITION_EOF
        found += [message] if error is None else []
        ended += error is not None
    consumer.close()
    return found


def test_a_broker_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_FLUSH_S_MAX", 0.5)
    with pytest.raises(SinkAway, match=r"events did not get into the topic t: no answer \(127"):
        generate(Generator(1, 1, 1, 1), to_kafka(f"127.0.0.1:{free_port()}", "t"))
