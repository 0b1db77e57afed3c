"""The course of a period: its days add up to the bill, and the forecast is priced like it."""

from __future__ import annotations

from stateside.billing.answers.explain import FORECAST_FROM, PeriodTrend
from stateside.billing.model import DAY_US, GRACE_US, HOUR_US, usage
from stateside.billing.model import assignment as assigned
from tests.billing.test_answers import FEBRUARY, JANUARY, Folder, folder

__all__ = ["folder"]  # a fixture


def course(folder: Folder) -> PeriodTrend:
    period, stamp = folder.period()
    return PeriodTrend.of(period, folder.explained(), folder.plans, stamp.watermark_us)


def used(folder: Folder, id_: str, type_: str, quantity: int, day: int, **named: str) -> None:
    folder.clock.time_us = max(folder.clock.time_us, JANUARY.start_us + (day + 1) * DAY_US)
    folder.append(usage(id_, "emma", type_, JANUARY.start_us + day * DAY_US + HOUR_US, quantity, **named))


def test_the_days_add_up_to_the_bill_and_reach_to_the_newest_event(folder: Folder) -> None:
    used(folder, "c-1", "call", 121, 0)
    used(folder, "m-1", "message", 8, 2)
    used(folder, "m-2", "message", 4, 14)
    folder.batch()
    found = course(folder)
    assert sum(micros for _, micros, _ in found.days) == found.period.amount_micros == 90_000 + 1_500 + 1_100_000
    assert [(day.day, micros) for day, micros, events in found.days if events] == [
        (1, 91_500),
        (3, 800_000),
        (15, 300_000),
    ]
    assert len(found.days) == 15
    assert found.as_dict()["days_in_period"] == 31


def test_an_event_counts_on_the_day_that_it_happened_not_when_it_came(folder: Folder) -> None:
    used(folder, "m-1", "message", 1, 9)
    used(folder, "m-2", "message", 1, 2)
    folder.batch()
    assert [day.day for day, _, events in course(folder).days if events] == [3, 10]


def test_the_forecast_goes_on_with_usage_and_leaves_fees_and_credits_as_they_are(folder: Folder) -> None:
    used(folder, "f-1", "fee", 1, 0, name="base")
    used(folder, "k-1", "credit", 1_000_000, 1)
    used(folder, "m-1", "message", 6, 14)
    folder.batch()
    found = course(folder)
    passed_us = 14 * DAY_US + HOUR_US
    messages = 6 * (31 * DAY_US) // passed_us
    assert messages > 10, "beyond the tenth message each costs half"
    assert found.forecast_micros == 9_990_000 - 1_000_000 + 1_000_000 + (messages - 10) * 50_000


def test_at_a_period_s_beginning_there_is_no_forecast(folder: Folder) -> None:
    used(folder, "m-1", "message", 6, 1)
    folder.batch()
    assert 31 * FORECAST_FROM > 2
    assert course(folder).forecast_micros is None


def test_what_is_closed_has_all_of_its_days_and_no_forecast(folder: Folder) -> None:
    used(folder, "m-1", "message", 6, 1)
    folder.clock.time_us = FEBRUARY.start_us + GRACE_US
    folder.append(assigned("a-x", "x", "basic", FEBRUARY.start_us, folder.clock.now_us()))
    folder.batch(JANUARY.end_us)
    found = course(folder)
    assert (len(found.days), found.forecast_micros) == (31, None)
