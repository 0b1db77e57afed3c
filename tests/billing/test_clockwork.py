"""The clockwork: the right fees and ticks, each once, whenever it is killed and however many of it run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.generator import Generator, generate
from stateside.billing.generator.output import to_journal
from stateside.billing.model import assignment, clock_tick
from stateside.billing.operations.clock_events import IDLE_US, Clockwork, run_clock
from stateside.billing.plans.file import parse_plan, plan_event
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog, JournalWriter
from tests.sizes import examples

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def at(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )


def plan(name: str, effective: str, *, version: int = 1, anchor_day: int = 1, fees: Sequence[str] = ("base",)) -> Event:
    prices = "\n".join(f'[fees.{fee}]\nprice = "9.99"' for fee in fees)
    content = f"""
        plan = "{name}"
        version = {version}
        effective = {effective}T00:00:00Z
        currency = "EUR"
        time_zone = "Etc/UTC"
        cycle = "month"
        anchor_day = {anchor_day}
        {prices}
    """
    return plan_event(parse_plan(content.encode(), "test"), f"plan/{name}@{version}", 0)


def assign(customer: str, plan: str, effective: str) -> Event:
    return assignment(f"assign/{customer}/{plan}/{effective}", customer, plan, at(effective), 0)


class World:
    """A folder, its clock, and what is appended there at which times."""

    def __init__(self, root: Path, now: str) -> None:
        self.layout = Layout(root)
        self.clock = ManualClock(at(now))

    def append(self, *events: Event) -> None:
        with JournalWriter(self.layout.journal, clock=self.clock) as writer:
            writer.append(events)

    def step(self, now: str) -> list[str]:
        """Let one step be done at a time by a newly started clockwork; returns the fees that it appended."""
        self.clock.time_us = at(now)
        before = len(self.fees())
        clockwork = Clockwork(self.layout, self.clock)
        clockwork.step()
        clockwork.close()
        return self.fees()[before:]

    def events(self) -> list[Event]:
        return list(FileLog(self.layout.journal).events())

    def fees(self) -> list[str]:
        return [f"{event.id} {iso(event.time_us)}" for event in self.events() if event.type == "fee"]

    def ticks(self) -> list[str]:
        return [iso(event.time_us) for event in self.events() if event.type == "clock"]


def iso(time_us: int) -> str:
    text = (datetime(1970, 1, 1) + timedelta(microseconds=time_us)).isoformat(timespec="minutes")
    return text.removesuffix("T00:00")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Emma and Ben on a plan with a fee from January on."""
    world = World(tmp_path, "2025-12-20")
    world.append(
        plan("basic", "2025-12-30"), assign("emma", "basic", "2026-01-01"), assign("ben", "basic", "2026-01-01")
    )
    return world


def test_every_customer_has_the_fee_once_a_period_at_its_start(world: World) -> None:
    assert world.step("2025-12-31") == []
    assert sorted(world.step("2026-01-01")) == ["fee/base/ben/2026-01 2026-01-01", "fee/base/emma/2026-01 2026-01-01"]
    assert world.step("2026-01-20") == []
    assert len(world.step("2026-02-01T00:05")) == 2
    assert sorted(world.step("2026-04-15"))[-2:] == [
        "fee/base/emma/2026-03 2026-03-01",
        "fee/base/emma/2026-04 2026-04-01",
    ]


def test_a_fee_is_a_usage_event_that_rating_knows(world: World) -> None:
    world.step("2026-01-01")
    fee = next(event for event in world.events() if event.type == "fee")
    assert (fee.entity, dict(fee.payload)) in [(who, {"quantity": 1, "name": "base"}) for who in ("emma", "ben")]


def test_who_comes_or_changes_in_mid_period_has_the_fee_from_then_on(world: World) -> None:
    world.step("2026-01-02")
    world.append(plan("plus", "2026-01-05", fees=["base", "extra"]))
    world.append(assign("emma", "plus", "2026-01-10"), assign("zoe", "basic", "2026-01-12"))
    assert world.step("2026-01-09") == []
    assert sorted(world.step("2026-01-13")) == ["fee/base/zoe/2026-01 2026-01-12", "fee/extra/emma/2026-01 2026-01-10"]
    assert len(world.step("2026-02-01")) == 4


def test_a_new_version_brings_its_new_fee_in_mid_period_and_not_the_old_one_again(world: World) -> None:
    world.step("2026-01-02")
    world.append(plan("basic", "2026-01-15", version=2, fees=["base", "insurance"]))
    assert sorted(world.step("2026-01-20")) == [
        "fee/insurance/ben/2026-01 2026-01-15",
        "fee/insurance/emma/2026-01 2026-01-15",
    ]


def test_a_change_of_cycle_begins_a_period_of_its_own(world: World) -> None:
    world.step("2026-01-02")
    world.append(plan("late", "2026-01-03", anchor_day=15), assign("emma", "late", "2026-01-20"))
    assert world.step("2026-01-21") == ["fee/base/emma/2026-01@15 2026-01-20"]
    assert world.step("2026-02-14") == ["fee/base/ben/2026-02 2026-02-01"]
    assert world.step("2026-02-15") == ["fee/base/emma/2026-02@15 2026-02-15"]


def test_who_is_assigned_for_the_past_has_no_fees_for_periods_that_were_over(world: World) -> None:
    world.step("2026-01-02")
    world.clock.time_us = at("2026-03-10")
    world.append(assign("zoe", "basic", "2025-06-01"))
    assert [fee for fee in world.step("2026-03-11") if "zoe" in fee] == ["fee/base/zoe/2026-03 2026-03-01"]
    assert [fee for fee in world.step("2026-05-11") if "zoe" in fee][-1] == "fee/base/zoe/2026-05 2026-05-01"


def test_that_holds_too_if_the_clockwork_was_down_meanwhile(world: World) -> None:
    world.clock.time_us = at("2026-03-10")
    world.append(assign("zoe", "basic", "2025-06-01"))
    found = world.step("2026-04-02")
    assert [fee for fee in found if "zoe" in fee] == [
        "fee/base/zoe/2026-03 2026-03-01",
        "fee/base/zoe/2026-04 2026-04-01",
    ]
    assert len([fee for fee in found if "emma" in fee]) == 4


def test_a_refused_assignment_brings_no_fee(world: World) -> None:
    world.step("2026-01-02")
    world.append(plan("plus", "2026-01-05", fees=["extra"]), assign("emma", "plus", "2026-01-02"))
    assert world.step("2026-01-20") == []


def test_an_id_of_a_very_long_name_is_still_an_id(world: World) -> None:
    world.append(assignment("long", "z" * 200, "basic", at("2026-01-01"), 0))
    world.step("2026-01-02")
    world.step("2026-01-03")
    assert len(world.fees()) == 3


def test_a_period_closes_on_time_in_an_idle_system(world: World) -> None:
    world.step("2026-02-03T23:59")
    assert world.ticks()[-1] == "2026-02-03T23:45"
    world.step("2026-02-04T00:00")
    assert world.ticks()[-1] == "2026-02-04"
    world.step("2026-02-04T00:10")
    assert world.ticks()[-1] == "2026-02-04"


def test_it_ticks_at_the_end_of_a_grace_time_also_where_the_journal_is_busy(world: World) -> None:
    world.step("2026-02-03T23:59")
    world.clock.time_us = at("2026-02-04T00:00")
    world.append(clock_tick(0, "something"))
    world.step("2026-02-04T00:01")
    assert world.ticks()[-1] == "2026-02-04"


def test_it_does_not_tick_while_the_journal_is_busy(world: World) -> None:
    world.step("2026-01-20T12:20")
    ticks = len(world.ticks())
    world.clock.time_us = at("2026-01-20T12:46")
    world.append(clock_tick(0, "something"))
    world.step("2026-01-20T12:47")
    assert len(world.ticks()) == ticks + 1  # the one that was appended by hand
    world.step("2026-01-20T13:01")
    assert world.ticks()[-1] == "2026-01-20T13:00"
    assert IDLE_US == 15 * 60_000_000


def test_an_empty_journal_stays_empty(tmp_path: Path) -> None:
    world = World(tmp_path, "2026-01-01")
    assert world.step("2026-02-01") == []
    assert world.events() == []


@pytest.mark.parametrize("content", [b"", b"{}", b'{"journal": "another", "position": "0:99", "time_us": 5}'])
def test_a_reach_that_is_damaged_or_anothers_is_no_reach(world: World, content: bytes) -> None:
    world.step("2026-01-02")
    (world.layout.root / "clock.json").write_bytes(content)
    assert world.step("2026-01-03") == []
    assert len(world.fees()) == 2


def test_without_its_reach_it_finds_what_is_there_in_the_journal(world: World) -> None:
    world.step("2026-03-02")
    (world.layout.root / "clock.json").unlink()
    assert world.step("2026-03-03") == []


def test_a_clock_that_is_put_back_brings_no_fee_a_second_time(world: World) -> None:
    clockwork = Clockwork(world.layout, world.clock)
    for now in ("2026-02-01T00:05", "2026-01-31T23:55", "2026-02-01T00:02"):
        world.clock.time_us = at(now)
        clockwork.step()
    clockwork.close()
    assert len(world.fees()) == len(set(world.fees())) == 4


class Killed(Exception):
    pass


def killed_at(world: World, step: int) -> None:
    """A clockwork that is gone after this number of its protocol."""

    def kill(number: int) -> None:
        if number == step:
            raise Killed

    clockwork = Clockwork(world.layout, world.clock, kill)
    try:
        with pytest.raises(Killed):
            clockwork.step()
    finally:
        clockwork.close()


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_killed_at_any_step_it_appends_every_fee_and_tick_once(world: World, step: int) -> None:
    for now in ("2026-01-01T00:01", "2026-01-01T00:20", "2026-02-01", "2026-03-01T05:00"):
        world.clock.time_us = at(now)
        killed_at(world, step)
        if now.startswith("2026-02"):
            world.append(assign("zoe", "basic", "2026-01-15"))
    world.step("2026-03-01T05:00")
    fees = Counter(event.id for event in world.events() if event.type == "fee")
    assert set(fees.values()) == {1}
    assert sorted(fees) == sorted(
        [f"fee/base/{who}/2026-0{month}" for who in ("emma", "ben") for month in (1, 2, 3)]
        + [f"fee/base/zoe/2026-0{month}" for month in (2, 3)]
    )
    ticks = [event.id for event in world.events() if event.type == "clock"]
    assert len(ticks) == len(set(ticks))


@settings(max_examples=examples(10, 100))
@given(
    st.lists(
        st.tuples(st.integers(0, 20 * 24), st.sampled_from(["step", "kill 1", "kill 2", "kill 3", "other", "assign"])),
        min_size=1,
        max_size=12,
    )
)
def test_two_of_them_killed_at_random_append_what_one_would(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, str]]
) -> None:
    world = World(tmp_path_factory.mktemp("clock"), "2025-12-20")
    world.append(plan("basic", "2025-12-30"), *(assign(f"c{n}", "basic", "2026-01-01") for n in range(5)))
    other = Clockwork(world.layout, world.clock)
    newcomers = 0
    for hours, what in story:
        world.clock.advance(hours * HOUR_US)
        if what == "assign":
            world.append(assignment(f"new/{newcomers}", f"new{newcomers}", "basic", world.clock.now_us(), 0))
            newcomers += 1
        elif what.startswith("kill") and FileLog(world.layout.journal).end().events():
            kill(world, int(what[-1]))
        else:
            (other if what == "other" else Clockwork(world.layout, world.clock)).step()
    other.step()
    found = Counter(event.id for event in world.events() if event.type in ("fee", "clock"))
    assert set(found.values()) <= {1}
    alone = World(tmp_path_factory.mktemp("alone"), "2025-12-20")
    alone.clock = world.clock
    for event in world.events():
        if event.type in ("plan", "assign"):
            alone.layout.journal.mkdir(parents=True, exist_ok=True)
            with JournalWriter(alone.layout.journal, clock=ManualClock(event.appended_us or 0)) as writer:
                writer.append([event])
    Clockwork(alone.layout, alone.clock).step()
    assert sorted(world.fees()) == sorted(alone.fees())


def kill(world: World, step: int) -> None:
    def at_step(number: int) -> None:
        if number == step:
            raise Killed

    with suppress(Killed):
        Clockwork(world.layout, world.clock, at_step).step()


def test_a_generated_journal_has_all_fees_that_are_due(tmp_path: Path) -> None:
    """The generator and the clockwork agree about when fees fall due, also of customers who change their plan."""
    generator = Generator(seed=1, customers=60, events_per_period=2, periods=3)
    world = World(tmp_path, "2026-01-01")
    generate(generator, to_journal(world.layout.journal))
    world.clock.time_us = generator.scenario().end_us
    before = world.fees()
    clockwork = Clockwork(world.layout, world.clock)
    clockwork.step()
    clockwork.close()
    assert world.fees() == before
    assert sum("/c1/" in fee for fee in before) == 2  # from its move in March on


def test_it_runs_until_it_is_told_to_stop(world: World) -> None:
    stop = threading.Event()
    world.clock.time_us = at("2026-01-02")
    thread = threading.Thread(target=run_clock, args=(world.layout, world.clock, stop, 0.01))
    thread.start()
    try:
        deadline = threading.Event()
        for _ in range(6_000):
            if len(world.fees()) == 2 or deadline.wait(0.01):
                break
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert len(world.fees()) == 2
