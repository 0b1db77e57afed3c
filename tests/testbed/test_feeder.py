"""The feeder: every event once and in order, also after a crash, and late ones only when their period is closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stateside.billing.generator import Generator
from stateside.core.errors import RequestInvalid
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog, JournalWriter
from stateside.testbed import feeder as feeder_module
from stateside.testbed.feeder import Feeder
from tests.sizes import not_in_fast

GENERATOR = Generator(seed=1, customers=20, events_per_period=5, periods=2)
FAR_US = 2**62  # a watermark that has passed everything
WAIT_S_MAX = 60.0


def feed(layout: Layout, until: Callable[[Feeder], bool], watermark_us: Callable[[], int] = lambda: FAR_US) -> Feeder:
    """Let it feed, very fast, until something is so."""
    feeder = Feeder(GENERATOR, layout, 0.5, watermark_us)
    try:
        feeder.start()
        deadline = time.monotonic() + WAIT_S_MAX
        while not until(feeder):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)
        feeder.stop()
    finally:
        feeder.close()
    return feeder


def ids(layout: Layout) -> list[str]:
    return [event.id for event in FileLog(layout.journal).events()]


def test_all_events_are_appended_in_order_each_with_its_arrival_as_append_time(layout: Layout) -> None:
    feeder = feed(layout, lambda feeder: feeder.done)
    events, arrivals = list(FileLog(layout.journal).events()), list(GENERATOR.arrivals())
    assert events == [arrival.event for arrival in arrivals]
    assert [event.appended_us for event in events] == [arrival.arrival_us for arrival in arrivals]
    assert feeder.fates == GENERATOR.report().events
    assert feeder.fed == len(events)
    assert feeder.share_done == pytest.approx(1, abs=0.01)


@not_in_fast("a property; a finished one is started again here")
def test_started_again_it_goes_on_after_the_last_event_whatever_nudges_there_were(layout: Layout) -> None:
    first = feed(layout, lambda feeder: feeder.fed > 50)
    nudged = Feeder(GENERATOR, layout, 0.5, lambda: FAR_US)
    nudged.nudge()
    nudged.nudge()
    nudged.close()
    second = feed(layout, lambda feeder: feeder.done)
    assert first.fed < second.fed == GENERATOR.report().journalled + 2
    assert [id for id in ids(layout) if not id.startswith("nudge/")] == [a.event.id for a in GENERATOR.arrivals()]
    assert second.nudges == 2


def test_a_finished_one_that_is_started_again_has_nothing_left(layout: Layout) -> None:
    feed(layout, lambda feeder: feeder.done)
    again = Feeder(GENERATOR, layout, 0.5, lambda: FAR_US)
    assert again.done
    again.close()


def _constant(pace: float) -> Callable[[float], float]:
    return lambda share_done: pace


@not_in_fast("it waits for a clock")
@pytest.mark.timeout(60)  # without the hurry it takes 100 s
def test_started_again_it_is_as_fast_as_before_and_in_a_hurry_faster(layout: Layout) -> None:
    first = Feeder(GENERATOR, layout, 100.0, lambda: FAR_US, of_all=True)
    first.start()
    time.sleep(0.5)
    first.stop()
    first.close()
    for seconds, faster in ((100.0, 1.0), (10_000.0, 100.0)):
        again = Feeder(GENERATOR, layout, seconds, lambda: FAR_US, of_all=True, pace=_constant(faster))
        before, began_s = again.share_done, time.monotonic()
        again.start()
        while again.share_done < before + 0.01:
            time.sleep(0.01)
        passed_s = time.monotonic() - began_s
        again.stop()
        again.close()
        assert passed_s > 0.7, "a hundredth of a hundred seconds"


@not_in_fast("it waits for a clock")
def test_time_stands_still_before_a_late_event_until_its_period_is_closed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder_module, "NUDGE_S", 0.2)
    watermark_us = 0
    feeder = Feeder(GENERATOR, layout, 0.5, lambda: watermark_us)
    try:
        feeder.start()
        deadline = time.monotonic() + WAIT_S_MAX
        while not feeder.nudges:  # it stands, and nudges the pipeline
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert feeder.fates["note"] == 0
        stood = feeder.fates.total()
        time.sleep(0.3)
        assert feeder.fates.total() == stood
        watermark_us = FAR_US
        while not feeder.done:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        feeder.stop()
    finally:
        feeder.close()
    assert feeder.fates == GENERATOR.report().events
    appended = [event.appended_us for event in FileLog(layout.journal).events()]
    assert appended == sorted(appended, key=lambda time_us: time_us or 0)


def test_the_journal_of_another_demo_is_refused(layout: Layout, tmp_path: Path) -> None:
    with JournalWriter(layout.journal) as writer:
        writer.append([Event("mine", "emma", "call", 0, {})])
    with pytest.raises(RequestInvalid, match="The journal has the event 'mine' where this demo would have 'plan/"):
        Feeder(GENERATOR, layout, 0.5, lambda: FAR_US)
