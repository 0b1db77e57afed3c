"""The pace of a period: its hours add up to the totals, and it is compared with the same hour of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.answers.document_store import Gate, followed
from stateside.billing.answers.pace import Hours, hour_numbers, hours, label_before, pace
from stateside.billing.answers.period_names import Ends
from stateside.billing.answers.totals import ROLLUP, ArchiveSums, period_totals
from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.model import HOUR_US, usage
from stateside.core.layout import Layout
from stateside.journal import FileLog
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.serving.stamp import Stamp
from tests.sizes import examples

from .test_answers import BERLIN, FEBRUARY, JANUARY, Folder
from .written_bills import plan

TYPES = ("call", "message", "data")
MARCH = BERLIN.containing(FEBRUARY.end_us)


def at(text: str, zone: str = "Europe/Berlin") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


class Months:
    """January and February of a folder's customers."""

    def __init__(self, layout: Layout, *, deduplicates: bool = True) -> None:
        self.folder, self.once = Folder(layout, deduplicates=deduplicates), deduplicates

    def used(self, id_: str, customer: str, type_: str, quantity: int, time_us: int, **named: str) -> None:
        self.folder.clock.time_us = max(self.folder.clock.time_us, time_us)
        self.folder.append(usage(id_, customer, type_, time_us, quantity, **named))

    def hours(self, *labels: str) -> Hours:
        journal = FileLog(self.folder.layout.journal)
        stop = journal.end()["0"]
        return hours(journal, BookKeeper(journal, None).at(stop), labels, stop, once=self.once)

    def totals(self, label: str) -> tuple[Stamp, dict[str, Any]]:
        reader = ViewReader(self.folder.layout.view("bill"))
        live = asyncio.run(reader.rollup(ROLLUP, [], Floor(wait_ms=0)))
        reader.close()
        ends = Ends.of(label, {name: one.cycle for name, one in self.folder.plans.all().items()})
        sealed = ArchiveSums(followed(self.folder.layout)).of(ends.ends_us, Gate.of(live.stamp))
        return live.stamp, period_totals(ends, live.rows, sealed, self.folder.plans)

    def pace(self, label: str, before: str) -> dict[str, Any]:
        stamp, totals = self.totals(label)
        found = self.hours(label, before)
        return pace(totals, self.totals(before)[1], found, self.folder.plans.all(), stamp.watermark_us)


@pytest.fixture
def months(layout: Layout) -> Months:
    return Months(layout)


def of(found: dict[str, Any], currency: str = "EUR") -> dict[str, Any]:
    return next(one for one in found["currencies"] if one["currency"] == currency)


def test_a_period_is_compared_with_the_one_before_at_the_same_hour(months: Months) -> None:
    months.used("m-1", "emma", "message", 4, at("2026-01-10T09:00"))
    months.used("m-2", "emma", "message", 8, at("2026-01-15T13:59"))
    months.used("m-3", "emma", "message", 100, at("2026-01-15T14:01"))
    months.used("m-4", "emma", "message", 6, at("2026-02-03T12:00"))
    months.used("m-5", "ben", "message", 2, at("2026-02-15T14:30"))
    months.folder.batch()
    found = months.pace("2026-02", "2026-01")
    euros = of(found)
    assert (found["over"], found["now"]) == (False, "2026-02-15T13:30:00Z")
    assert euros["hours"] == 14 * 24 + 14
    assert euros["amount_before_micros"] == 10 * 100_000 + 2 * 50_000, "the price of what emma had used then, in tiers"
    assert euros["amount_micros"] == 600_000, "ben's message is of an hour that is not over"
    assert (euros["unplaced_micros"], euros["unplaced_before_micros"]) == (0, 0)


def test_the_days_of_both_are_told_up_to_today_and_all_of_the_one_before(months: Months) -> None:
    months.used("m-1", "emma", "message", 1, at("2026-01-31T23:59"))
    months.used("m-2", "emma", "message", 2, at("2026-02-01T00:00"))
    months.used("m-3", "emma", "message", 3, at("2026-02-03T23:00"))
    months.folder.batch()
    euros = of(months.pace("2026-02", "2026-01"))
    assert euros["days"] == [200_000, 0, 300_000]
    assert euros["days_before"] == [0] * 30 + [100_000]
    assert (euros["first_day"], euros["first_day_before"]) == ("2026-02-01", "2026-01-01")
    assert euros["days_in_period"] == 28


def test_a_period_that_is_over_is_compared_as_a_whole(months: Months) -> None:
    months.used("m-1", "emma", "message", 5, at("2026-01-31T12:00"))
    months.used("m-2", "emma", "message", 1, at("2026-02-28T12:00"))
    months.used("m-3", "emma", "message", 1, at("2026-03-02T12:00"))
    months.folder.batch(JANUARY.end_us, FEBRUARY.end_us)
    found = months.pace("2026-02", "2026-01")
    assert found["over"]
    assert (of(found)["amount_micros"], of(found)["amount_before_micros"]) == (100_000, 500_000)


def test_what_came_too_late_counts_on_the_day_that_it_happened(months: Months) -> None:
    months.used("m-1", "emma", "message", 10, at("2026-01-20T12:00"))
    months.folder.batch(JANUARY.end_us)
    months.used("m-2", "emma", "message", 1, at("2026-02-10T12:00"))
    months.used("m-3", "emma", "message", 2, at("2026-01-05T12:00"))
    months.folder.batch()
    euros = of(months.pace("2026-02", "2026-01"))
    assert euros["amount_before_micros"] == 200_000
    assert (sum(euros["days_before"]), euros["unplaced_before_micros"]) == (1_100_000, 0)


@pytest.mark.parametrize("deduplicates", [True, False])
def test_an_id_that_comes_twice_counts_as_the_query_counts_it(layout: Layout, deduplicates: bool) -> None:
    months = Months(layout, deduplicates=deduplicates)
    for _ in range(2):
        months.used("m-1", "emma", "message", 1, at("2026-02-10T12:00"))
    months.used("m-2", "emma", "message", 1, at("2026-02-12T12:00"))
    months.folder.batch()
    euros = of(months.pace("2026-02", "2026-01"))
    assert euros["amount_micros"] == (100_000 if deduplicates else 200_000)
    assert euros["unplaced_micros"] == 0


def test_currencies_are_compared_each_with_itself(months: Months) -> None:
    months.used("m-1", "emma", "message", 1, at("2026-01-02T12:00"))
    months.used("m-2", "urs", "message", 2, at("2026-01-02T12:00"))
    months.used("m-3", "emma", "message", 3, at("2026-02-05T12:00"))
    months.used("m-4", "urs", "message", 4, at("2026-02-04T12:00"))
    months.folder.batch()
    found = months.pace("2026-02", "2026-01")
    assert [(one["currency"], one["amount_before_micros"]) for one in found["currencies"]] == [
        ("CHF", 200_000),
        ("EUR", 100_000),
    ]


def test_what_the_journal_has_no_longer_is_told_as_a_difference(months: Months) -> None:
    months.used("m-1", "emma", "message", 1, at("2026-01-02T12:00"))
    months.used("m-2", "emma", "message", 3, at("2026-02-05T12:00"))
    months.folder.batch()
    stamp, totals = months.totals("2026-02")
    found = months.hours("2026-02")  # nothing of January
    shown = pace(totals, months.totals("2026-01")[1], found, months.folder.plans.all(), stamp.watermark_us)
    assert (of(shown)["unplaced_micros"], of(shown)["unplaced_before_micros"]) == (0, 100_000)


used = st.tuples(
    st.sampled_from(["emma", "ben", "urs"]),
    st.sampled_from(TYPES),
    st.integers(1, 200),
    st.integers(JANUARY.start_us // HOUR_US, MARCH.end_us // HOUR_US - 1),
)


@settings(max_examples=examples(12, 200), deadline=None)
@given(st.lists(used, max_size=25), st.integers(0, 31 * 24))
def test_at_every_hour_the_hours_before_it_are_the_price_of_what_was_used_before_it(
    events: Sequence[tuple[str, str, int, int]], hour: int
) -> None:
    with TemporaryDirectory() as name:
        months = Months(Layout(Path(name) / "folder"))
        for number, (customer, type_, quantity, time_h) in enumerate(sorted(events, key=lambda event: event[3])):
            months.used(f"e-{number}", customer, type_, quantity, time_h * HOUR_US)
        found = months.hours("2026-02")
    cut_us = FEBRUARY.start_us + hour * HOUR_US
    quantities: dict[tuple[str, str], int] = {}
    for customer, type_, quantity, time_h in events:
        if FEBRUARY.start_us <= time_h * HOUR_US < min(cut_us, FEBRUARY.end_us):
            quantities[customer, type_] = quantities.get((customer, type_), 0) + quantity
    priced = sum(plan().amount_micros(type_, quantity) for (_, type_), quantity in quantities.items())
    assert sum(one.amount_micros for one in found.hours if one.number < hour) == priced
    assert Hours.parse(found.as_json()) == found


@pytest.mark.parametrize(
    ("zone", "moment", "number"),
    [
        ("Europe/Berlin", "2026-03-29T03:15", 28 * 24 + 3),  # the hour from two to three is left out
        ("Europe/Berlin", "2026-10-25T12:00", 24 * 24 + 12),  # the one from two to three came twice
        ("Asia/Kolkata", "2026-02-01T00:45", 0),
        ("Asia/Kathmandu", "2026-02-02T06:10", 30),
        ("UTC", "2026-02-28T23:59", 27 * 24 + 23),
    ],
)
def test_hours_are_those_of_the_clocks_on_the_wall(zone: str, moment: str, number: int) -> None:
    cycle, time_us = Cycle("month", zone), at(moment, zone)
    ends = np.array([cycle.containing(time_us).end_us])
    assert hour_numbers(cycle, np.array([time_us]), ends).tolist() == [number]


def test_each_kind_of_period_has_one_before() -> None:
    cycles = {"m": BERLIN, "w": Cycle("week", "Asia/Tokyo"), "a": Cycle("month", "UTC", 31), "d": Cycle("day", "UTC")}
    before = {label: label_before(label, cycles) for label in ("2026-01", "2026-W01", "2026-03@31", "2026-03-01")}
    assert before == {
        "2026-01": "2025-12",
        "2026-W01": "2025-W52",
        "2026-03@31": "2026-02@31",
        "2026-03-01": "2026-02-28",
    }
    assert label_before("2026-01@15", cycles) is None
