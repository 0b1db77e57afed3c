"""Rating and its reference data as simply as can be said: one event after the other, in plain Python.

What the vectorised book and rating are compared with. And random journals to compare them on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from stateside.billing.calendar import Cycle
from stateside.billing.model import QUANTITY_MAX, assignment, clock_tick
from stateside.billing.money import Rounding
from stateside.billing.plans.file import CREDIT, PlanVersion, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import PlanInvalid
from stateside.journal import Event

HOUR_US = 3_600_000_000


@dataclass
class SimpleBook:
    """Everything in lists, in order."""

    versions: dict[str, list[tuple[int, PlanVersion]]] = field(default_factory=dict)
    assignments: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)  # offset, effective_us, plan
    refused: list[tuple[int, str, str]] = field(default_factory=list)  # offset, id, reason

    def add(self, offset: int, event: Event) -> None:
        """Take one event of the journal in; other than reference events are passed over."""
        assert event.appended_us is not None
        if event.type == "plan":
            accepted = self._publish(offset, event, event.appended_us + HOUR_US)
        elif event.type == "assign":
            accepted = self._assign(offset, event, event.appended_us + HOUR_US)
        else:
            return
        if not accepted:
            self.refused.append((offset, event.id, f"{event.type}-refused"))

    def _publish(self, offset: int, event: Event, least_us: int) -> bool:
        try:
            version = PlanVersion.from_payload(event.payload)
        except PlanInvalid:
            return False
        versions = self.versions.setdefault(event.entity, [])
        last = versions[-1][1] if versions else None
        fits = version.plan == event.entity and version.effective_us >= least_us
        if not fits or (last and (version.version <= last.version or version.effective_us <= last.effective_us)):
            return False
        versions.append((offset, version))
        return True

    def _assign(self, offset: int, event: Event, least_us: int) -> bool:
        plan, effective_us = event.payload.get("plan"), event.payload.get("effective_us")
        if not isinstance(plan, str) or type(effective_us) is not int or effective_us < 0:
            return False
        assignments = self.assignments.setdefault(event.entity, [])
        if assignments and (effective_us < least_us or effective_us <= assignments[-1][1]):
            return False
        assignments.append((offset, effective_us, plan))
        return True

    def plan_name(self, customer: str, time_us: int, offset: int) -> str | None:
        fitting = [a for a in self.assignments.get(customer, []) if a[0] < offset and a[1] <= time_us]
        return fitting[-1][2] if fitting else None

    def version(self, plan: str, time_us: int, offset: int) -> PlanVersion | None:
        fitting = [v for at, v in self.versions.get(plan, []) if at < offset and v.effective_us <= time_us]
        return fitting[-1] if fitting else None

    def plan_at(self, customer: str, time_us: int, offset: int) -> PlanVersion | None:
        plan = self.plan_name(customer, time_us, offset)
        return None if plan is None else self.version(plan, time_us, offset)


def rate_one(book: SimpleBook, offset: int, event: Event) -> tuple[str | None, str, PlanVersion | None]:
    """Why the event does not count (None if it does), its type on the bill, and the version that it is rated by."""
    assert event.appended_us is not None
    if event.type in ("plan", "assign"):
        refusals = [reason for at, _, reason in book.refused if at == offset]
        return (refusals[0] if refusals else "reference"), event.type, None
    future = event.time_us > event.appended_us + HOUR_US
    if event.type == "clock":
        return ("future-dated" if future else None), "clock", None
    if event.type not in QUANTITY_MAX:
        return "unknown-type", event.type, None
    quantity, name, currency = (event.payload.get(field) for field in ("quantity", "name", "currency"))
    typed = quantity is None or (type(quantity) is int and -(2**63) <= quantity < 2**63)
    if not typed or not all(text is None or isinstance(text, str) for text in (name, currency)):
        return "malformed", event.type, None  # of a payload with a wrong type nothing is read, its name neither
    named = event.type in ("package", "fee")
    bill_type = f"{event.type}:{name}" if named and name else event.type
    if quantity is None or (named and not name):
        return "malformed", bill_type, None
    if future:
        return "future-dated", bill_type, None
    if quantity < 0:
        return "negative-quantity", bill_type, None
    if quantity > QUANTITY_MAX[event.type]:
        return "absurd-quantity", bill_type, None
    if book.plan_name(event.entity, event.time_us, offset) is None:
        return "unknown-customer", bill_type, None
    version = book.plan_at(event.entity, event.time_us, offset)
    if version is None:
        return "unknown-plan", bill_type, None
    if bill_type not in version.prices:
        return "not-in-plan", bill_type, version
    if currency is not None and currency != version.currency:
        return "wrong-currency", bill_type, version
    return None, bill_type, version


ROUNDINGS: list[Rounding] = ["half-even", "up"]

# Random journals: times in hours, few customers and plans, so that everything meets.

hours = st.integers(0, 30)
times = st.builds(lambda hour, us: max(0, hour * HOUR_US + us), hours, st.sampled_from([-1, 0, 0, 1]))
customers = st.sampled_from(["emma", "omar", "lena", "ö", "a customer with quite a long name", "a customer with quite"])
plan_names = st.sampled_from(["basic", "plus", "gold"])
cycles = st.sampled_from([Cycle("month", "Europe/Berlin", 31), Cycle("week", "UTC"), Cycle("day", "America/Sao_Paulo")])
prices = st.lists(st.sampled_from(["call", "data", "package:weekend", "package:night", "fee:base"]), unique=True)


@st.composite
def publications(draw: st.DrawFn) -> Event:
    tiers = {type_: Tiers((Tier(0, 5, 1),)) for type_ in draw(prices)} | {"credit": CREDIT}
    currency, rounding = draw(st.sampled_from(["EUR", "JPY"])), draw(st.sampled_from(ROUNDINGS))
    version = PlanVersion(
        draw(plan_names), draw(st.integers(1, 4)), draw(times), currency, draw(cycles), rounding, tiers
    )
    event = plan_event(version, "p", draw(times))
    if draw(st.integers(0, 9)) == 0:
        changes: list[dict[str, Any]] = [{"currency": "mark"}, {"plan": "other"}, {"prices": 5}, {"version": None}]
        return Event(event.id, event.entity, "plan", event.time_us, {**event.payload, **draw(st.sampled_from(changes))})
    return event


@st.composite
def assignments(draw: st.DrawFn) -> Event:
    if draw(st.integers(0, 9)) == 0:
        payloads: list[dict[str, Any]] = [{}, {"plan": 5, "effective_us": 1}, {"plan": "basic", "effective_us": "1"}]
        return Event("a", draw(customers), "assign", draw(times), draw(st.sampled_from(payloads)))
    holder = draw(st.sampled_from([None, "Emma E."]))
    return assignment("a", draw(customers), draw(plan_names), draw(times), draw(times), holder=holder)


quantities = st.one_of(
    st.integers(0, 5), st.sampled_from([-1, 10**12, 10**12 + 1, 10**13 + 1, 2**63, None, "5", 1.5, True])
)
usages = st.builds(
    lambda customer, type_, time_us, quantity, name, currency: Event(
        "u", customer, type_, time_us, {"quantity": quantity, **name, **currency}
    ),
    st.one_of(customers, st.just("nobody")),
    st.sampled_from(["call", "message", "data", "package", "fee", "credit", "fax"]),
    times,
    quantities,
    st.sampled_from([{}, {"name": "weekend"}, {"name": "base"}, {"name": ""}, {"name": None}, {"name": 5}]),
    st.sampled_from([{}, {}, {"currency": "EUR"}, {"currency": None}, {"currency": []}]),
)
ticks = st.builds(clock_tick, times, st.just("t"))
references = st.one_of(publications(), assignments(), assignments())
events = st.one_of(references, references, usages, usages, usages, ticks)

Appends = list[tuple[int, list[Event]]]  # the time of each append, and its events


def appends(of: st.SearchStrategy[Event]) -> st.SearchStrategy[Appends]:
    """A journal: appends at times that mostly go on."""
    frames = st.lists(st.tuples(st.integers(0, 3), st.lists(of, min_size=1, max_size=6)), max_size=8)
    return frames.map(_later_and_later)


def _later_and_later(frames: list[tuple[int, list[Event]]]) -> Appends:
    hour, found = 0, []
    for number, (more, several) in enumerate(frames):
        hour += more
        renamed = [
            Event(f"{one.id}{number}-{at}", one.entity, one.type, one.time_us, json.loads(json.dumps(one.payload)))
            for at, one in enumerate(several)
        ]
        found.append((hour * HOUR_US, renamed))
    return found
