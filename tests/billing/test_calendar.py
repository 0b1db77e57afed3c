"""Calendar months in Berlin, against a computation that knows the law on summer time and no time zone database."""

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.calendar import Month

HOUR_US = 3_600_000_000
months = st.builds(Month, st.integers(1970, 2198), st.integers(1, 12))


def start_us(month: Month) -> int:
    """Midnight on the first in Berlin, an hour ahead of UTC and in summer two."""
    midnight = (date(month.year, month.month, 1) - date(1970, 1, 1)).days * 24 * HOUR_US
    return midnight - (2 if summer(month) else 1) * HOUR_US


def summer(month: Month) -> bool:
    """Whether summer time holds on the first of a month: since 1980, since 1996 to the end of October."""
    if month.year < 1980:
        return False
    first = 5 if month.year == 1980 else 4
    return first <= month.month <= (10 if month.year >= 1996 else 9)


@settings(max_examples=300)
@given(months)
def test_a_month_starts_at_midnight_in_berlin_whatever_the_season(month: Month) -> None:
    assert month.start_us == start_us(month)
    assert month.end_us == start_us(month.next())


@settings(max_examples=200)
@given(months, st.integers(0, 31 * 24 * HOUR_US - 1))
def test_every_moment_lies_in_exactly_one_month(month: Month, after_us: int) -> None:
    time_us = max(0, month.start_us) + after_us
    found = Month.containing(time_us)
    assert found in (month, month.next())
    assert found.start_us <= time_us < found.end_us


@settings(max_examples=100)
@given(months)
def test_a_month_holds_its_first_microsecond_and_not_the_first_of_the_next(month: Month) -> None:
    assert Month.containing(month.start_us) == month
    assert Month.containing(month.end_us - 1) == month
    assert Month.containing(month.end_us) == month.next()
    assert Month.ending(month.end_us) == month


@pytest.mark.parametrize(
    ("month", "hours"),
    [
        (Month(2026, 1), 31 * 24),
        (Month(2026, 2), 28 * 24),
        (Month(2028, 2), 29 * 24),
        (Month(2100, 2), 28 * 24),
        (Month(2000, 2), 29 * 24),
        (Month(2026, 3), 31 * 24 - 1),
        (Month(2026, 10), 31 * 24 + 1),
        (Month(2026, 11), 30 * 24),
    ],
    ids=str,
)
def test_months_are_as_long_as_leap_years_and_summer_time_make_them(month: Month, hours: int) -> None:
    assert month.end_us - month.start_us == hours * HOUR_US


def test_the_hour_that_comes_twice_belongs_to_october_both_times() -> None:
    for utc in ("2026-10-25T00:30:00+00:00", "2026-10-25T01:30:00+00:00"):
        time_us = int(datetime.fromisoformat(utc).timestamp()) * 1_000_000
        assert Month.containing(time_us) == Month(2026, 10)


def test_the_last_evening_of_a_month_in_utc_is_the_next_month_in_berlin() -> None:
    for utc, month in (("2026-01-31T23:00:00", Month(2026, 2)), ("2026-06-30T21:59:59", Month(2026, 6))):
        time_us = int((datetime.fromisoformat(utc) - datetime(1970, 1, 1)) / timedelta(microseconds=1))
        assert Month.containing(time_us) == month


def test_months_count_on_over_the_year_and_sort_as_their_texts() -> None:
    assert Month(2026, 12).next() == Month(2027, 1)
    assert str(Month(2026, 3)) == "2026-03"
    assert sorted([Month(2026, 2), Month(2025, 12), Month(2026, 1)]) == [
        Month(2025, 12),
        Month(2026, 1),
        Month(2026, 2),
    ]


def test_a_moment_that_ends_no_month_is_a_mistake_of_the_program() -> None:
    with pytest.raises(AssertionError, match="no month ends at"):
        Month.ending(Month(2026, 1).end_us + 1)
