"""Publication of plan versions, assignment of customers, allowed lateness: checked before the append as by the fold.

All are events of the journal, and only the journal counts. If two processes publish at the same moment, the fold
refuses the second event after all, as a dead letter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from stateside.billing.book.book import Book, current_book
from stateside.billing.book.plan_rules import Fold, Reference
from stateside.billing.model import ASSIGN, FUTURE_US_MAX, PLAN, VIEW, assignment, days, lateness, lateness_in_force
from stateside.billing.plans.plan import PlanVersion, plan_event
from stateside.core import Clock, Layout, Position, SystemClock
from stateside.core.errors import PlanInvalid, SettingInvalid
from stateside.journal import Event, open_journal
from stateside.serving import iso_time

MARGIN_US: Final = 10_000_000  # safety margin for the time between check and append


@dataclass(frozen=True, slots=True)
class Published:
    """The receipt of the append; None if the journal already had the same version."""

    receipt: Position | None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The receipt, and the time from which the plan rates the customer."""

    receipt: Position
    effective_us: int


def publish(layout: Layout, version: PlanVersion, clock: Clock | None = None) -> Published:
    """Append the version to the journal; PlanInvalid if the fold would refuse the version."""
    now_us = (clock or SystemClock()).now_us()
    book = current_book(layout)
    known = book.plans.get(version.id)
    if known == version:
        return Published(None)
    newest = _newest(book, version.plan)
    if known is not None or (newest is not None and version.version <= newest.version):
        assert newest is not None, "or the version is not known"
        raise PlanInvalid(
            f"{newest.id} is published already, and versions never change",
            next_step=f"Publish this as version {newest.version + 1}, with a later effective time",
        )
    earliest_us = max(now_us + FUTURE_US_MAX + MARGIN_US, newest.effective_us + 1 if newest else 0)
    _check_effective(f"{version.id} takes effect", version.effective_us, earliest_us)
    event = plan_event(version, f"plan/{version.id}", now_us)
    _check(book, event, now_us)
    return Published(_append(layout, event, clock))


def set_lateness(layout: Layout, allowed_us: int, clock: Clock | None = None) -> Position | None:
    """Set the allowed lateness of a new folder by its journal's first event; None if it is in force already.

    SettingInvalid in a folder with events, or whose view has started: bills were made with another lateness.
    """
    event = lateness(allowed_us, (clock or SystemClock()).now_us())
    places, journal = layout.view(VIEW), open_journal(layout.journal)
    if journal.log().end().one() or places.checkpoint.exists():
        present_us = lateness_in_force(layout)
        if present_us == allowed_us:
            return None
        raise SettingInvalid(
            f"The allowed lateness is {days(present_us)} here, and cannot be changed any more: the journal's first "
            "event sets it, before the first run",
            where=str(layout.root),
            next_step="Begin in a new folder, and set it there first",
        )
    return _append(layout, event, clock)


def assign(
    layout: Layout,
    customer: str,
    plan: str,
    effective_us: int | None = None,
    *,
    holder: str | None = None,
    clock: Clock | None = None,
) -> Assigned:
    """Append the assignment; PlanInvalid if the fold would refuse the assignment, or for an unknown plan.

    Without a time the first assignment takes effect now, any other as soon as possible.
    """
    now_us = (clock or SystemClock()).now_us()
    book = current_book(layout)
    if _newest(book, plan) is None:
        plans = sorted({version.plan for version in book.plans.values()})
        raise PlanInvalid(
            f"There is no plan {plan!r}",
            next_step=f"There are: {', '.join(plans)}" if plans else "Publish one: stateside billing plan publish FILE",
        )
    before = book.assignments(customer)
    earliest_us = max(now_us + FUTURE_US_MAX + MARGIN_US, before[-1].effective_us + 1) if before else 0
    effective_us = max(now_us, earliest_us) if effective_us is None else effective_us
    _check_effective(f"{customer!r} was assigned before; the new plan takes effect", effective_us, earliest_us)
    event = assignment(f"assign/{uuid4()}", customer, plan, effective_us, now_us, holder=holder)
    _check(book, event, now_us)
    return Assigned(_append(layout, event, clock), effective_us)


def _newest(book: Book, plan: str) -> PlanVersion | None:
    versions = [version for version in book.plans.values() if version.plan == plan]
    return max(versions, key=lambda version: version.version, default=None)


def _check_effective(what: str, effective_us: int, earliest_us: int) -> None:
    if effective_us < earliest_us:
        raise PlanInvalid(
            f"{what} at {iso_time(effective_us)}, which is too early",
            next_step=f"{iso_time(earliest_us)} is the earliest: an hour from now, and after the one before it",
        )


def _check(book: Book, event: Event, now_us: int) -> None:
    """Raise PlanInvalid, with the fold's own text, if the fold would refuse the event."""
    newest = {version.plan: version for version in sorted(book.plans.values(), key=lambda one: one.version)}
    before = book.assignments(event.entity) if event.type == ASSIGN else []
    fold = Fold(newest, {event.entity: before[-1].effective_us} if before else {})
    assert event.type in (PLAN, ASSIGN)
    payload = json.dumps(dict(event.payload))
    fold.add([Reference(book.covers, event.id, event.entity, event.type, now_us + MARGIN_US, payload)])
    if fold.refused:
        raise PlanInvalid(fold.refused[0].detail)


def _append(layout: Layout, event: Event, clock: Clock | None) -> Position:
    with open_journal(layout.journal).writer(clock=clock) as writer:
        return writer.append([event])
