"""The auditor's calendar: where periods begin and end, with every jump of the clocks."""

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.audit.fold import AuditCycle, AuditPeriod, periods
from tests.billing.audit.books import us

BERLIN = AuditCycle("month", "Europe/Berlin", 1)
DAY_US = 86_400_000_000


def shown(cycle: AuditCycle, first: str, last: str) -> list[tuple[str, str, str]]:
    found = periods(cycle, us(first), us(last))
    return [(each.label, utc(each.start_us), utc(each.end_us)) for each in found]


def utc(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M")


def test_months_of_berlin_begin_an_hour_or_two_before_those_of_utc() -> None:
    assert shown(BERLIN, "2026-02-28T22:59", "2026-03-31T22:00") == [
        ("2026-02", "2026-01-31T23:00", "2026-02-28T23:00"),
        ("2026-03", "2026-02-28T23:00", "2026-03-31T22:00"),
        ("2026-04", "2026-03-31T22:00", "2026-04-30T22:00"),
    ]


def test_an_anchor_on_the_31st_is_the_last_day_of_a_shorter_month() -> None:
    assert shown(AuditCycle("month", "UTC", 31), "2028-01-31T00:00", "2028-03-31T00:00") == [
        ("2028-01@31", "2028-01-31T00:00", "2028-02-29T00:00"),
        ("2028-02@31", "2028-02-29T00:00", "2028-03-31T00:00"),
        ("2028-03@31", "2028-03-31T00:00", "2028-04-30T00:00"),
    ]


def test_days_on_which_the_clocks_change_have_23_or_25_hours() -> None:
    day = AuditCycle("day", "Europe/Berlin", 1)
    assert shown(day, "2026-03-29T12:00", "2026-03-29T12:00") == [
        ("2026-03-29", "2026-03-28T23:00", "2026-03-29T22:00")
    ]
    assert shown(day, "2026-10-25T12:00", "2026-10-25T12:00") == [
        ("2026-10-25", "2026-10-24T22:00", "2026-10-25T23:00")
    ]


def test_weeks_are_named_by_iso_8601() -> None:
    assert shown(AuditCycle("week", "UTC", 1), "2027-01-03T23:59", "2027-01-04T00:00") == [
        ("2026-W53", "2026-12-28T00:00", "2027-01-04T00:00"),
        ("2027-W01", "2027-01-04T00:00", "2027-01-11T00:00"),
    ]


def test_a_day_without_midnight_begins_when_the_clocks_are_moved() -> None:
    assert shown(AuditCycle("day", "Asia/Beirut", 1), "2022-03-27T12:00", "2022-03-27T12:00") == [
        ("2022-03-27", "2022-03-26T22:00", "2022-03-27T21:00")
    ]


def test_months_with_an_anchor_below_ten_are_named_with_two_digits() -> None:
    assert shown(AuditCycle("month", "UTC", 5), "2026-01-05T00:00", "2026-01-05T00:00")[0][0] == "2026-01@05"


CYCLES = st.builds(
    lambda kind, zone, day: AuditCycle(kind, zone, day if kind == "month" else 1),
    st.sampled_from(["month", "week", "day"]),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Asia/Tokyo", "Pacific/Apia", "America/Sao_Paulo", "UTC"]),
    st.integers(1, 31),
)
TIMES = st.integers(0, us("2100-01-01T00:00"))


@given(CYCLES, TIMES, st.integers(0, 400 * DAY_US))
def test_periods_join_without_a_gap_and_cover_what_was_asked_for(
    cycle: AuditCycle, first_us: int, span_us: int
) -> None:
    found = periods(cycle, first_us, first_us + span_us)
    assert found[0].start_us <= first_us < found[0].end_us
    assert found[-1].start_us <= first_us + span_us < found[-1].end_us
    for one, other in pairwise(found):
        assert one.end_us == other.start_us
    assert len({period.label for period in found}) == len(found)


@given(CYCLES, TIMES)
def test_a_period_is_the_same_whatever_is_asked_for_with_it(cycle: AuditCycle, time_us: int) -> None:
    (alone,) = periods(cycle, time_us, time_us)
    assert alone in periods(cycle, max(0, time_us - 90 * DAY_US), time_us + 90 * DAY_US)
    assert isinstance(alone, AuditPeriod)
