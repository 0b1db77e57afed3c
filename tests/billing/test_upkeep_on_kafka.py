"""What billing appends besides usage where the journal is a topic: plans, assignments, fees, ticks, replays."""

from __future__ import annotations

import json

import pytest

from stateside.billing.answers.letters import DeadLetter, replay
from stateside.billing.book.book import current_book
from stateside.billing.model import DAY_US, HOUR_US
from stateside.billing.operations.clock_events import IDLE_US, Clockwork
from stateside.billing.operations.publication import assign, publish
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.journal.backends.kafka.topic import Topic
from stateside.journal.backends.kafka.topic_folder import place
from stateside.journal.location import open_journal
from stateside.testbed.broker import Broker
from tests.billing.written_bills import plan
from tests.journal.kafka.topics import new_topic, real

pytestmark = real
NOW_US = 1_767_000_000_000_000 // HOUR_US * HOUR_US  # in December 2025; the plan takes effect in January


@pytest.fixture
def topic(broker: Broker, layout: Layout) -> Topic:
    """That is the journal of the folder."""
    return place(layout.journal, f"kafka://{broker.address}/{new_topic(broker).name}")


def ids(layout: Layout, *types: str) -> list[str]:
    return [event.id for event in open_journal(layout.journal).log().events() if event.type in types]


def test_plans_are_published_and_customers_assigned_once(topic: Topic, layout: Layout) -> None:
    clock = ManualClock(NOW_US)
    published = publish(layout, plan(), clock)
    assert str(published.receipt) == f"{topic.name}-0:1"
    assert publish(layout, plan(), clock).receipt is None
    assert str(assign(layout, "emma", "basic", clock=clock).receipt) == f"{topic.name}-0:3"  # a mark stands between
    assert [each.plan for each in current_book(layout).assignments("emma")] == ["basic"]


def test_fees_and_ticks_come_once_however_often_the_clockwork_is_started_beside_other_writers(
    topic: Topic, layout: Layout
) -> None:
    clock = ManualClock(NOW_US)
    publish(layout, plan(), clock)
    assign(layout, "emma", "basic", clock=clock)
    clock.time_us += 40 * DAY_US
    with open_journal(layout.journal).writer(clock=clock) as writer:
        for _ in range(2):
            layout.clock.unlink(missing_ok=True)  # as a crash does that comes before it is written
            clockwork = Clockwork(layout, clock)
            clockwork.step()
            clockwork.close()
            writer.append_once([])
    fees, ticks = ids(layout, "fee"), ids(layout, "clock")
    assert len(fees) == len(set(fees)) == len(plan().fees) * 2 > 0  # of January and February
    assert len(ticks) == len(set(ticks))
    assert f"clock/{clock.time_us // IDLE_US * IDLE_US}" in ticks


def test_a_clockwork_that_is_the_only_writer_goes_on_step_by_step(topic: Topic, layout: Layout) -> None:
    clock = ManualClock(NOW_US)
    publish(layout, plan(), clock)
    assign(layout, "emma", "basic", clock=clock)
    clockwork = Clockwork(layout, clock)
    for _ in range(3):
        clock.time_us += IDLE_US
        assert clockwork.step() > 0
        assert clockwork.step() == 0
    clockwork.close()
    ticks = ids(layout, "clock")
    assert ticks[-1] == f"clock/{clock.time_us // IDLE_US * IDLE_US}"
    assert len(ticks) == len(set(ticks))


def test_a_dead_letter_is_replayed_once(topic: Topic, layout: Layout) -> None:
    clock = ManualClock(NOW_US)
    publish(layout, plan(), clock)
    assign(layout, "emma", "basic", clock=clock)
    time_us = clock.time_us = NOW_US + 10 * DAY_US
    letter = DeadLetter(
        1, "c", "nobody", "call", time_us, time_us, json.dumps({"quantity": 60}), "unknown-customer", ""
    )
    done = [replay(layout, [letter], {"customer": "emma"}, clock) for _ in range(2)]
    assert [(each.appended, each.already) for each in done] == [(1, 0), (0, 1)]
    assert ids(layout, "call") == ["replay/1"]
    assert all(open_journal(layout.journal).log().end().covers(each.receipt) for each in done)
