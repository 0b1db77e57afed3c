"""What Spark makes of random plans and events is what plain Python makes of them, an event at a time.

The recomputation below goes through the journal with Python's calendar and the batches' watermarks; it knows nothing of
the book, of rating, of Spark's expressions, and of the state.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

from stateside.billing.calendar import Cycle
from stateside.billing.model import ASSIGN, DAY_US, FUTURE_US_MAX, PLAN, assignment, clock_tick, usage
from stateside.billing.pipeline import app
from stateside.billing.plans.file import PlanVersion, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog
from stateside.serving.stamp import parse_time
from stateside.testing import run_to
from tests.sizes import sized

from .staged import Stage, at_us, version

pytestmark = pytest.mark.spark

BEGIN_US = at_us("2026-03-20T00:00:00+00:00")
DAYS = sized(15, 25)  # clocks change meanwhile: in Berlin at two, in Beirut at midnight
RESTARTS = sized(0.15, 0.3)  # after how many of the appends
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Asia/Beirut")
CYCLES = [Cycle("month", ZONES[0], 31), Cycle("month", ZONES[1], 28)]
CYCLES += [Cycle("week", ZONES[2]), Cycle("day", ZONES[3]), Cycle("day", ZONES[0])]
TYPES = ("call", "message", "data", "credit")
CUSTOMERS = ("ann", "ben", "cem", "dora", "eve", "nobody")

Row = tuple[str, int, str, str]  # customer, period_end_us, type, plan
Sums = dict[Row, tuple[int, int]]  # quantity, events


@pytest.mark.parametrize("seed", sized((5,), tuple(range(1, 13))))
def test_random_plans_and_events_give_the_same_rows_in_spark_and_in_plain_python(
    spark: SparkSession, layout: Layout, seed: int
) -> None:
    """Open rows with their amounts, and what was sealed or corrected, from journals with late, future-dated, doubled
    and unknown events, in several batches and over restarts.
    """
    drawn = Drawn(random.Random(seed))
    stage = Stage(layout)
    for appended_us, events in drawn.appends():
        stage.append(appended_us, events)
        if drawn.chance.random() < RESTARTS:
            run_to(app, layout, spark, events_per_batch=drawn.chance.choice((20, 100)))
    run_to(app, layout, spark, events_per_batch=50)
    open_, closed = drawn.recomputed(stage)

    found = {
        (row["customer"], parse_time(row["period_end"]), row["type"], row["plan"]): (
            (row["quantity"], row["events"]),
            row["amount_micros"],
        )
        for row in stage.open_rows()
    }
    assert found == {row: (sums, drawn.price(row).value(sums[0])) for row, sums in open_.items()}
    sealed: dict[Row, list[int]] = defaultdict(lambda: [0, 0])
    for document in stage.documents():
        for line in document["lines"]:
            end_us = round(document["period_end"].timestamp() * 1_000_000)
            sums = sealed[document["customer"], end_us, line["type"], line["plan"]]
            sums[0] += line["quantity"]
            sums[1] += line["events"]
    assert {row: tuple(sums) for row, sums in sealed.items()} == closed
    assert open_ and closed, "the journal was to have both"


@dataclass
class Drawn:
    """Random plans, customers and events."""

    chance: random.Random
    versions: list[PlanVersion] = field(default_factory=list)
    assigned: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))

    def appends(self) -> Iterator[tuple[int, list[Event]]]:
        """Everything in the journal's order: plans a day ahead, then usage as it happens, with a plan's change."""
        plans = [f"plan-{number}" for number in range(3)]
        for plan in plans:
            yield self._publish(plan, 1, BEGIN_US)
        for customer in CUSTOMERS[:-1]:
            yield self._assign(customer, self.chance.choice(plans), BEGIN_US - DAY_US, BEGIN_US)
        for day in range(DAYS):
            now_us = BEGIN_US + day * DAY_US
            if self.chance.random() < 0.2:
                plan = self.chance.choice(plans)
                yield self._publish(plan, 1 + len([v for v in self.versions if v.plan == plan]), now_us + 2 * DAY_US)
            if self.chance.random() < 0.3:
                customer, effective_us = self.chance.choice(CUSTOMERS[:-1]), now_us + FUTURE_US_MAX
                if self.assigned[customer][-1][0] < effective_us:
                    yield self._assign(customer, self.chance.choice(plans), now_us, effective_us)
            yield now_us + DAY_US, list(self._usage(now_us))
        yield now_us + DAY_US, [clock_tick(now_us + DAY_US, "last")]

    def _publish(self, plan: str, number: int, effective_us: int) -> tuple[int, list[Event]]:
        drawn = version(plan, number, effective_us, self.chance.choice(CYCLES), {})
        prices = {type_: self._steps() for type_ in TYPES if type_ != "credit"} | dict(drawn.prices)
        drawn = PlanVersion(plan, number, effective_us, "EUR", drawn.cycle, "half-even", prices)
        self.versions.append(drawn)
        time_us = effective_us - 2 * DAY_US
        return time_us, [plan_event(drawn, f"{plan}-{number}", time_us)]

    def _assign(self, customer: str, plan: str, now_us: int, effective_us: int) -> tuple[int, list[Event]]:
        self.assigned[customer].append((effective_us, plan))
        return now_us, [assignment(f"{customer}-{effective_us}", customer, plan, effective_us, now_us)]

    def _steps(self) -> Tiers:
        edges = [0, *sorted(self.chance.sample(range(1, 200), self.chance.randint(0, 3)))]
        return Tiers(tuple(Tier(e, self.chance.randrange(100), self.chance.choice((1, 7, 60))) for e in edges))

    def _usage(self, now_us: int) -> Iterator[Event]:
        for _ in range(self.chance.randint(3, 12)):
            late_us = self.chance.choice((0, 0, 0, 2 * DAY_US, 6 * DAY_US))
            time_us = max(0, now_us + self.chance.randrange(DAY_US) - late_us)
            if self.chance.random() < 0.1:
                time_us = now_us + DAY_US + FUTURE_US_MAX + self.chance.choice((0, 1, 400 * DAY_US))
            type_ = self.chance.choice(TYPES)
            event = usage(
                f"e{self.chance.randrange(300)}",
                self.chance.choice(CUSTOMERS),
                type_,
                time_us,
                self.chance.randrange(90),
            )
            yield from [event] * self.chance.choice((1, 1, 1, 2))

    def price(self, row: Row) -> Tiers:
        """The tiers of a row."""
        return next(each.prices[row[2]] for each in self.versions if each.id == row[3])

    def recomputed(self, stage: Stage) -> tuple[Sums, Sums]:
        """The open rows and the closed ones, late events included."""
        watermarks_us, ends = stage.watermarks_us(), stage.ends()
        counted: dict[Row, list[int]] = defaultdict(lambda: [0, 0])
        seen: set[tuple[str, int]] = set()
        late: set[tuple[str, str, int]] = set()
        before = Before()
        for offset, event in enumerate(FileLog(stage.layout.journal).events()):
            row = before.row(event)
            if row is None:
                continue
            batch = next(number for number, end in enumerate(ends) if offset < end)
            is_late = batch > 0 and row[1] <= watermarks_us[batch - 1]
            known = (event.id, row[0], row[1]) in late if is_late else (event.id, row[1]) in seen
            if is_late:
                late.add((event.id, row[0], row[1]))
            else:
                seen.add((event.id, row[1]))
            if not known:
                counted[row][0] += event.payload["quantity"]
                counted[row][1] += 1
        sums = {row: (quantity, events) for row, (quantity, events) in counted.items()}
        open_ = {row: each for row, each in sums.items() if row[1] > watermarks_us[-1]}
        return open_, {row: each for row, each in sums.items() if row not in open_}


class Before:
    """The plans and assignments that stand before an event in the journal, which has none that breaks a rule."""

    def __init__(self) -> None:
        self._versions: dict[str, list[PlanVersion]] = defaultdict(list)
        self._assigned: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def row(self, event: Event) -> Row | None:
        """Where an event belongs; None if it does not count. Has it from then on."""
        if event.type == PLAN:
            self._versions[event.entity].append(PlanVersion.from_payload(event.payload))
        if event.type == ASSIGN:
            self._assigned[event.entity].append((event.payload["effective_us"], event.payload["plan"]))
        assert event.appended_us is not None
        if event.type not in TYPES or event.time_us > event.appended_us + FUTURE_US_MAX:
            return None
        plans = [plan for effective_us, plan in self._assigned[event.entity] if effective_us <= event.time_us]
        versions = self._versions[plans[-1]] if plans else []
        rated_by = [each for each in versions if each.effective_us <= event.time_us]
        if not rated_by:
            return None
        end_us = rated_by[-1].cycle.containing(event.time_us).end_us
        return event.entity, end_us, event.type, rated_by[-1].id
