"""The event stream: all events of a scenario's customers, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.calendar import utc
from stateside.billing.generator import rows
from stateside.billing.generator.expectation import ExpectedTotals, UsageTally
from stateside.billing.generator.quantities import Drawn, draw
from stateside.billing.generator.scenario import FIRST_US, CustomerGroup, Scenario
from stateside.billing.generator.usage import BadEvents, Shares, usage
from stateside.billing.model import DAY_US, GRACE_US, clock_tick
from stateside.billing.plans.file import plan_event
from stateside.core.errors import RequestInvalid
from stateside.journal import Event
from stateside.journal.columns import GIVEN, decode

ROWS_AT_ONCE: Final = 16_384
_SECOND_US: Final = 1_000_000
_BAD: Final = 1_000_000  # seeds a separate random stream; no group has this number


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event, its arrival (its append time), and its fate: one of those in `rows`, or a dead letter's reason."""

    event: Event
    fate: str

    @property
    def arrival_us(self) -> int:
        assert self.event.appended_us is not None
        return self.event.appended_us


@dataclass(frozen=True, slots=True)
class Generator:
    """The stream of `customers` with `events_per_period` usage events each, through `periods` closing periods.

    One more period stays open at the end, and has all its events too: for every customer and period, the counted events
    add up to exactly `EVEN_MICROS`. The same settings give the same stream.
    """

    seed: int = 1
    customers: int = 1_000
    events_per_period: int = 20
    periods: int = 3
    shares: Shares = field(default_factory=Shares)
    first_us: int = FIRST_US

    def __post_init__(self) -> None:
        for name in ("customers", "events_per_period", "periods"):
            if getattr(self, name) < 1:
                raise RequestInvalid(f"{name} is {getattr(self, name)}", next_step="Give a number from 1 on")

    def scenario(self) -> Scenario:
        return Scenario.of(self.customers, self.periods, self.first_us)

    def arrivals(self) -> Iterator[Arrival]:
        for table in self.tables():
            fates = table["fate"].to_pylist()
            events = (event for batch in table.select(GIVEN.names).to_batches() for event in decode(batch))
            yield from (Arrival(event, fate) for event, fate in zip(events, fates, strict=True))

    def tables(self) -> Iterator[pa.Table]:
        """All events as tables of some thousand rows (`rows.ROWS`). Holds one period, and late events of older ones."""
        scenario = self.scenario()
        others = self._others(scenario)
        for part in self._usage_in_order(scenario):
            upto = pc.search_sorted(others["appended"].combine_chunks(), part["appended"][-1], side="right").as_py()
            yield pa.concat_tables([others[:upto], part]).sort_by("appended")
            others = others[upto:]
        yield others

    def report(self) -> ExpectedTotals:
        """The totals that billing must compute."""
        scenario = self.scenario()
        tally = UsageTally()
        for number, group in enumerate(scenario.groups):
            for index in range(len(group.periods)):
                drawn, table = self._period(scenario, group, number, index)
                tally.add(group, index, drawn, table)
        return tally.report(self._others(scenario)["fate"])

    def _usage_in_order(self, scenario: Scenario) -> Iterator[pa.Table]:
        labels = [period.label for group in scenario.groups for period in group.periods]
        waiting = pa.table({})
        for index in range(self.periods + 1):
            drawn = (self._period(scenario, group, number, index)[1] for number, group in enumerate(scenario.groups))
            known = pa.concat_tables([*([waiting] if waiting.num_rows else []), *drawn])
            known = known.sort_by([(name, "ascending") for name in ("arrival_us", "customer", "serial")])
            upto = pc.search_sorted(known["arrival_us"].combine_chunks(), self._next_start_us(scenario, index)).as_py()
            for at in range(0, upto, ROWS_AT_ONCE):
                yield rows.usage_rows(known[at : min(at + ROWS_AT_ONCE, upto)], labels)
            waiting = known[upto:]

    def _next_start_us(self, scenario: Scenario, index: int) -> int:
        """The moment before which no event of a later period can arrive."""
        if index == self.periods:
            return scenario.end_us
        return min(group.periods[index + 1].start_us for group in scenario.groups)

    def _period(self, scenario: Scenario, group: CustomerGroup, number: int, index: int) -> tuple[Drawn, pa.Table]:
        """One group's usage of one period."""
        random = np.random.default_rng([self.seed, number, index])
        period, closes = group.periods[index], index < self.periods
        stop_us = period.end_us if closes else scenario.end_us - GRACE_US
        drawn = draw(random, group, period, stop_us, self.events_per_period)
        name = number * (self.periods + 1) + index
        return drawn, usage(random, group, name, period, drawn, self.shares, closes)

    def _others(self, scenario: Scenario) -> pa.Table:
        """Everything except usage, in order of arrival."""
        found = [rows.event_rows([*_publications(scenario), *_ticks(scenario)]), *_assignments(scenario)]
        if self.shares.bad:
            bad = BadEvents(scenario, np.random.default_rng([self.seed, _BAD]))
            count = round(self.shares.bad * self.customers * self.events_per_period * (self.periods + 1))
            lost = (scenario.opening_us + _SECOND_US, bad.lost(), rows.REFERENCE)
            found.append(rows.event_rows([lost, *bad.draw(count)]))
        return pa.concat_tables(found).sort_by("appended")


def _publications(scenario: Scenario) -> Iterator[tuple[int, Event, str]]:
    for version in scenario.versions:
        published_us = scenario.published_us(version)
        yield published_us, plan_event(version, f"plan/{version.id}", published_us), rows.REFERENCE


def _assignments(scenario: Scenario) -> Iterator[pa.Table]:
    opening_us = scenario.opening_us + _SECOND_US
    for group in scenario.groups:
        yield rows.assignment_rows(group.customers, group.first.plan, group.periods[0].start_us, opening_us)
    yield rows.assignment_rows(scenario.moved, "plus", scenario.move_us, scenario.moved_us)


def _ticks(scenario: Scenario) -> Iterator[tuple[int, Event, str]]:
    """One clock tick a day, the last one at the very end."""
    for time_us in range(scenario.end_us - 1, scenario.begin_us, -DAY_US):
        day = utc(time_us).date()
        yield time_us, clock_tick(time_us, f"clock/{day}"), rows.CLOCK
