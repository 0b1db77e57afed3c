"""Billing cycles: by hand where the calendar is odd, and as a whole by their laws."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.calendar import Cycle
from stateside.core.errors import PlanInvalid
from tests.sizes import examples

HOUR_US = 3_600_000_000
ZONES = [
    "Europe/Berlin",
    "UTC",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "America/New_York",
    "America/Havana",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
]
cycles = st.one_of(
    st.builds(Cycle, st.sampled_from(["week", "day"]), st.sampled_from(ZONES)),
    st.builds(Cycle, st.just("month"), st.sampled_from(ZONES), st.integers(1, 31)),
)
times = st.integers(0, 7_258_118_400_000_000 - 1)
recent_times = st.integers(946_684_800_000_000, 1_893_456_000_000_000)  # 2000 to 2029: most changes of rules


def us(text: str) -> int:
    """The moment of a text like 2026-03-29T01:00Z, in microseconds since 1970."""
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


def utc(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us // 1_000_000, ZoneInfo('UTC')):%Y-%m-%dT%H:%MZ}"


def found(cycle: Cycle, text: str) -> tuple[str, str, str]:
    period = cycle.containing(us(text))
    return period.label, utc(period.start_us), utc(period.end_us)


@settings(max_examples=examples(100, 3_000))
@given(cycles, st.one_of(times, recent_times))
def test_every_moment_lies_in_exactly_one_period_and_periods_join(cycle: Cycle, time_us: int) -> None:
    period = cycle.containing(time_us)
    assert period.start_us <= time_us < period.end_us
    assert cycle.containing(period.start_us) == period
    assert cycle.containing(period.end_us - 1) == period == cycle.ending(period.end_us)
    assert cycle.containing(period.end_us).start_us == period.end_us
    assert cycle.containing(period.end_us).label > period.label
    assert cycle.containing(period.start_us - 1).end_us == period.start_us


@settings(max_examples=examples(100, 1_000))
@given(cycles, st.lists(recent_times, max_size=20))
def test_many_at_once_have_the_ends_that_each_has(cycle: Cycle, times_us: list[int]) -> None:
    ends = cycle.ends(np.array(times_us, np.int64))
    assert ends.tolist() == [cycle.containing(time_us).end_us for time_us in times_us]


@settings(max_examples=examples(50, 250))
@given(cycles, st.lists(times, min_size=1, max_size=3))
def test_many_at_once_may_lie_centuries_apart(cycle: Cycle, times_us: list[int]) -> None:
    assert cycle.ends(np.array(times_us)).tolist() == [cycle.containing(time_us).end_us for time_us in times_us]


@settings(max_examples=examples(80, 2_000))
@given(cycles, recent_times)
def test_a_period_begins_on_its_first_day_as_the_clocks_there_show_it(cycle: Cycle, time_us: int) -> None:
    start_us = cycle.containing(time_us).start_us
    zone = ZoneInfo(cycle.time_zone)
    local = datetime.fromtimestamp(start_us // 1_000_000, zone)
    before = datetime.fromtimestamp(start_us // 1_000_000 - 1, zone)
    assert before.date() < local.date()
    if cycle.kind == "week":
        assert local.weekday() == 0
    if cycle.kind == "month":
        last = (local.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
        assert local.day == min(cycle.anchor_day, last.day)


def test_months_of_the_31st_begin_on_the_last_day_of_short_months() -> None:
    cycle = Cycle("month", "Europe/Berlin", 31)
    assert found(cycle, "2026-01-30T12:00Z") == ("2025-12@31", "2025-12-30T23:00Z", "2026-01-30T23:00Z")
    assert found(cycle, "2026-02-27T12:00Z") == ("2026-01@31", "2026-01-30T23:00Z", "2026-02-27T23:00Z")
    assert found(cycle, "2026-02-28T12:00Z") == ("2026-02@31", "2026-02-27T23:00Z", "2026-03-30T22:00Z")
    assert found(cycle, "2026-03-31T12:00Z") == ("2026-03@31", "2026-03-30T22:00Z", "2026-04-29T22:00Z")


def test_in_a_leap_year_february_has_its_29th() -> None:
    assert found(Cycle("month", "UTC", 31), "2028-02-28T12:00Z") == (
        "2028-01@31",
        "2028-01-31T00:00Z",
        "2028-02-29T00:00Z",
    )
    assert found(Cycle("month", "UTC", 29), "2028-02-29T12:00Z") == (
        "2028-02@29",
        "2028-02-29T00:00Z",
        "2028-03-29T00:00Z",
    )
    assert found(Cycle("month", "UTC", 29), "2026-02-28T12:00Z") == (
        "2026-02@29",
        "2026-02-28T00:00Z",
        "2026-03-29T00:00Z",
    )
    assert found(Cycle("month", "UTC", 30), "2100-02-28T12:00Z")[0] == "2100-02@30"


def test_a_month_is_known_by_the_month_it_begins_in() -> None:
    assert found(Cycle("month", "UTC", 15), "2026-02-14T23:59Z")[0] == "2026-01@15"
    assert found(Cycle("month", "UTC", 5), "2026-01-05T00:00Z")[0] == "2026-01@05"
    assert found(Cycle("month", "UTC"), "2026-01-31T23:59Z") == ("2026-01", "2026-01-01T00:00Z", "2026-02-01T00:00Z")


def test_the_same_moment_lies_in_different_months_in_two_time_zones() -> None:
    moment = "2026-01-31T23:30Z"
    assert found(Cycle("month", "Europe/Berlin"), moment) == ("2026-02", "2026-01-31T23:00Z", "2026-02-28T23:00Z")
    assert found(Cycle("month", "America/New_York"), moment) == ("2026-01", "2026-01-01T05:00Z", "2026-02-01T05:00Z")


def test_the_days_of_berlin_have_23_and_25_hours_when_the_clocks_are_moved() -> None:
    cycle = Cycle("day", "Europe/Berlin")
    assert found(cycle, "2026-03-29T12:00Z") == ("2026-03-29", "2026-03-28T23:00Z", "2026-03-29T22:00Z")
    assert found(cycle, "2026-10-25T12:00Z") == ("2026-10-25", "2026-10-24T22:00Z", "2026-10-25T23:00Z")
    lengths_h = [
        (period.end_us - period.start_us) // HOUR_US
        for period in (cycle.containing(us(text)) for text in ("2026-03-29T12:00Z", "2026-10-25T12:00Z"))
    ]
    assert lengths_h == [23, 25]


def test_where_the_clocks_leave_midnight_out_a_day_begins_when_they_are_moved() -> None:
    saint_paul = Cycle("day", "America/Sao_Paulo")  # 2018-11-04: from 00:00 to 01:00
    assert found(saint_paul, "2018-11-04T02:59Z") == ("2018-11-03", "2018-11-03T03:00Z", "2018-11-04T03:00Z")
    assert found(saint_paul, "2018-11-04T03:00Z") == ("2018-11-04", "2018-11-04T03:00Z", "2018-11-05T02:00Z")
    cairo = Cycle("month", "Africa/Cairo", 26)  # 2024-04-26: from 00:00 to 01:00
    assert found(cairo, "2024-04-25T22:00Z") == ("2024-04@26", "2024-04-25T22:00Z", "2024-05-25T21:00Z")
    assert found(cairo, "2024-04-25T21:59Z") == ("2024-03@26", "2024-03-25T22:00Z", "2024-04-25T22:00Z")


def test_where_midnight_comes_twice_a_day_begins_the_first_time() -> None:
    havana = Cycle("day", "America/Havana")  # 2026-11-01: from 01:00 back to 00:00
    assert found(havana, "2026-11-01T05:30Z") == ("2026-11-01", "2026-11-01T04:00Z", "2026-11-02T05:00Z")
    saint_john = Cycle("day", "America/St_Johns")  # 2010-11-07: from 00:01 back to 23:01 of the day before
    assert found(saint_john, "2010-11-07T02:29Z")[0] == "2010-11-06"
    assert found(saint_john, "2010-11-07T02:30Z") == ("2010-11-07", "2010-11-07T02:30Z", "2010-11-08T03:30Z")
    assert found(saint_john, "2010-11-07T03:00Z")[0] == "2010-11-07"  # where the clocks show the 6th again


def test_a_day_that_was_left_out_has_no_moment() -> None:
    apia = Cycle("day", "Pacific/Apia")  # there was no 2011-12-30
    assert found(apia, "2011-12-30T09:59Z") == ("2011-12-29", "2011-12-29T10:00Z", "2011-12-30T10:00Z")
    assert found(apia, "2011-12-30T10:00Z") == ("2011-12-31", "2011-12-30T10:00Z", "2011-12-31T10:00Z")
    assert apia.ending(us("2011-12-30T10:00Z")).label == "2011-12-29"


@pytest.mark.parametrize(
    ("day", "label"),
    [
        ("2024-12-29", "2024-W52"),
        ("2024-12-30", "2025-W01"),
        ("2025-01-05", "2025-W01"),
        ("2020-12-31", "2020-W53"),
        ("2021-01-03", "2020-W53"),
        ("2021-01-04", "2021-W01"),
        ("2027-01-01", "2026-W53"),
    ],
)
def test_weeks_go_over_the_end_of_the_year_as_iso_8601_has_them(day: str, label: str) -> None:
    assert found(Cycle("week", "UTC"), f"{day}T12:00Z")[0] == label


def test_a_week_with_a_change_of_clocks() -> None:
    berlin = Cycle("week", "Europe/Berlin")
    assert found(berlin, "2026-03-29T12:00Z") == ("2026-W13", "2026-03-22T23:00Z", "2026-03-29T22:00Z")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("year", "UTC"), "'year' is no billing cycle"),
        (("month", "UTC", 0), "cannot begin on day 0"),
        (("month", "UTC", 32), "cannot begin on day 32"),
        (("week", "UTC", 2), "A week cannot begin on day 2"),
        (("month", "Europe/Hamburg"), "'Europe/Hamburg' is no time zone"),
        (("month", ""), "'' is no time zone"),
        (("month", "../etc"), "is no time zone"),
        (("month", "localtime"), "is no time zone"),
        (("month", "posix/Europe/Berlin"), "is no time zone"),
        (("month", 5), "5 is no time zone"),
        (("month", "UTC", "1"), "cannot begin on day '1'"),
        (("month", "UTC", True), "cannot begin on day True"),
    ],
)
def test_a_cycle_that_is_none_is_refused(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PlanInvalid, match=message):
        Cycle(*fields)


def test_a_moment_that_ends_no_period_is_a_mistake_of_the_program() -> None:
    with pytest.raises(AssertionError, match="no month in UTC ends at"):
        Cycle("month", "UTC").ending(us("2026-01-15T00:00Z"))
