"""Events that no bill may have: each must become a dead letter, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Final

import numpy as np

from stateside.billing.generator.scenario import Scenario
from stateside.billing.model import DAY_US, FUTURE_US_MAX, HOUR_US, QUANTITY_MAX, assignment
from stateside.billing.plans.file import plan_event
from stateside.journal import Event

NOWHERE: Final = "nowhere"  # a plan that is never published,
LOST: Final = "lost"  # and the customer who is assigned to it

_FUTURE_US: Final = 400 * DAY_US  # enough to close everybody's periods, if it counted


class BadEvents:
    """Draws bad events of every reason in turn."""

    def __init__(self, scenario: Scenario, random: np.random.Generator) -> None:
        self._scenario = scenario
        self._random = random
        self._makers: dict[str, Callable[[str, str, int], Event]] = {
            "malformed": lambda id, customer, us: Event(id, customer, "call", us, {"quantity": "a few"}),
            "unknown-type": lambda id, customer, us: Event(id, customer, "fax", us, {"quantity": 1}),
            "unknown-customer": lambda id, customer, us: Event(id, "nobody", "call", us, {"quantity": 60}),
            "unknown-plan": lambda id, customer, us: Event(id, LOST, "call", us, {"quantity": 60}),
            "not-in-plan": lambda id, customer, us: Event(id, customer, "package", us, {"quantity": 1, "name": "moon"}),
            "negative-quantity": lambda id, customer, us: Event(id, customer, "data", us, {"quantity": -1}),
            "absurd-quantity": self._absurd,
            "future-dated": self._future_dated,
            "wrong-currency": lambda id, customer, us: Event(
                id, customer, "message", us, {"quantity": 1, "currency": "JPY"}
            ),
            "plan-refused": lambda id, customer, us: plan_event(scenario.versions[0], id, us),
            "assign-refused": lambda id, customer, us: assignment(id, customer, "plus", us - DAY_US, us),
        }

    @property
    def reasons(self) -> list[str]:
        """Every reason that there is, in the order in which they come."""
        return list(self._makers)

    def draw(self, count: int) -> Iterator[tuple[int, Event, str]]:
        """So many bad events, at least one of each reason, with their arrivals and reasons."""
        count = max(count, len(self._makers))
        begin_us, end_us = self._scenario.begin_us + DAY_US, self._scenario.end_us
        arrivals_us = self._random.integers(begin_us, end_us, count).tolist()
        ages_us = self._random.integers(0, HOUR_US, count).tolist()
        customers = self._random.integers(0, self._scenario.customers, count).tolist()
        drawn = zip(arrivals_us, ages_us, customers, cycle(self._makers.items()), strict=False)
        for number, (arrival_us, age_us, customer, (reason, maker)) in enumerate(drawn):
            yield arrival_us, maker(f"bad/{number}", f"c{customer}", arrival_us - age_us), reason

    def lost(self) -> Event:
        """Assigns somebody to a plan that there is not."""
        return assignment("assign/lost", LOST, NOWHERE, self._scenario.opening_us, self._scenario.opening_us)

    @staticmethod
    def _absurd(id: str, customer: str, time_us: int) -> Event:
        return Event(id, customer, "message", time_us, {"quantity": QUANTITY_MAX["message"] + 1})

    def _future_dated(self, id: str, customer: str, time_us: int) -> Event:
        ahead_us = int(self._random.integers(HOUR_US + FUTURE_US_MAX, _FUTURE_US))
        return Event(id, customer, "call", time_us + ahead_us, {"quantity": 60})
