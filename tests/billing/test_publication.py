"""Publishing plans and assigning customers: what the journal's fold would refuse never gets there."""

from __future__ import annotations

import pytest

from stateside.billing.book.book import current_book
from stateside.billing.model import DAY_US, HOUR_US
from stateside.billing.operations.publication import MARGIN_US, assign, publish
from stateside.billing.plans.plan import PlanVersion
from stateside.core.clock import ManualClock
from stateside.core.errors import EventRefused, PlanInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import FileLog

from .written_bills import BASIC, plan

NOW_US = 1_767_000_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


def version(number: int, effective: str) -> PlanVersion:
    text = BASIC.replace("version = 1", f"version = {number}").replace("2026-01-01", effective)
    return plan(text)


def at(effective_us: int) -> PlanVersion:
    from dataclasses import replace

    return replace(plan(), effective_us=effective_us)


def test_a_version_is_published_once_and_the_same_again_changes_nothing(layout: Layout, clock: ManualClock) -> None:
    assert publish(layout, plan(), clock).receipt == Position.of({"0": 1})
    assert publish(layout, plan(), clock).receipt is None
    clock.time_us += 365 * DAY_US
    assert publish(layout, plan(), clock).receipt is None, "also long after it took effect"
    assert list(current_book(layout).plans) == ["basic@1"]


def test_a_version_takes_effect_an_hour_from_now_at_the_earliest(layout: Layout, clock: ManualClock) -> None:
    earliest_us = NOW_US + HOUR_US + MARGIN_US
    with pytest.raises(PlanInvalid, match=r"too early.*2025-12-29T10:20:10Z"):
        publish(layout, at(earliest_us - 1), clock)
    assert FileLog(layout.journal).end() == Position.start()
    publish(layout, at(earliest_us), clock)
    assert current_book(layout).refused == ()


def test_versions_grow_and_never_change(layout: Layout, clock: ManualClock) -> None:
    publish(layout, version(2, "2026-02-01"), clock)
    for wrong in (version(2, "2026-03-01"), version(1, "2026-03-01")):
        with pytest.raises(PlanInvalid, match=r"basic@2 is published already.* Publish this as version 3"):
            publish(layout, wrong, clock)
    with pytest.raises(PlanInvalid, match="after the one before it"):
        publish(layout, version(3, "2026-01-15"), clock)
    publish(layout, version(3, "2026-03-01"), clock)
    assert [each.version for each in current_book(layout).plans.values()] == [2, 3]
    assert current_book(layout).refused == ()


def test_a_first_assignment_takes_effect_now_or_at_any_time(layout: Layout, clock: ManualClock) -> None:
    publish(layout, plan(), clock)
    assert assign(layout, "emma", "basic", clock=clock).effective_us == NOW_US
    assert assign(layout, "ben", "basic", 7, clock=clock, holder="Ben B.").effective_us == 7
    (accepted,) = current_book(layout).assignments("ben")
    assert (accepted.plan, accepted.holder) == ("basic", "Ben B.")


def test_a_change_of_plan_takes_effect_in_an_hour_at_the_earliest(layout: Layout, clock: ManualClock) -> None:
    publish(layout, plan(), clock)
    assign(layout, "emma", "basic", clock=clock)
    with pytest.raises(PlanInvalid, match=r"assigned before.*too early"):
        assign(layout, "emma", "basic", NOW_US + HOUR_US, clock=clock)
    assert assign(layout, "emma", "basic", clock=clock).effective_us == NOW_US + HOUR_US + MARGIN_US
    assert len(current_book(layout).assignments("emma")) == 2
    assert current_book(layout).refused == ()


def test_a_plan_that_nobody_published_cannot_be_assigned(layout: Layout, clock: ManualClock) -> None:
    with pytest.raises(PlanInvalid, match=r"no plan 'basic'.*plan publish"):
        assign(layout, "emma", "basic", clock=clock)
    publish(layout, plan(), clock)
    with pytest.raises(PlanInvalid, match="There are: basic"):
        assign(layout, "emma", "golden", clock=clock)
    with pytest.raises(EventRefused, match="/"):
        assign(layout, "a/b", "basic", clock=clock)
