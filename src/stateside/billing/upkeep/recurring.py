"""Recurring fees: what every customer of a plan pays once a period, and when it falls due.

The fee NAME of a customer falls due in a period at the first moment at which the customer is rated by a version that
has it: at the period's start, or when an assignment or a version takes effect in mid-period. It is not split. Of a
customer who is assigned for a time that has passed already, the periods that were over by then have no fees.

Which fees are due follows from the book alone, and neither later publications nor later assignments change it: they
take effect an hour after they were appended at the earliest. So whoever asks a second time, for a time up to now, gets
the same fees again, with the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from stateside.billing.book.accounts import NONE
from stateside.billing.book.book import Book
from stateside.billing.book.folding import Assignment
from stateside.billing.book.texts import Longs
from stateside.billing.calendar import Cycle
from stateside.billing.plans.version import PlanVersion
from stateside.journal import Event
from stateside.journal.event import NAME_CHARS_MAX


@dataclass(frozen=True, slots=True, order=True)
class DueFee:
    """A fee of one customer for one period."""

    due_us: int
    customer: str
    name: str
    period: str

    @property
    def id(self) -> str:
        """The event's id: the same whenever it is made."""
        readable = f"fee/{self.name}/{self.customer}/{self.period}"
        return readable if len(readable) <= NAME_CHARS_MAX else f"fee/{hashlib.sha256(readable.encode()).hexdigest()}"

    def event(self) -> Event:
        """The usage event that puts it on the bill."""
        return Event(self.id, self.customer, "fee", self.due_us, {"quantity": 1, "name": self.name})


def due_fees(
    book: Book, after_us: int, until_us: int, since: int, appended: Callable[[Longs], Longs]
) -> Iterator[DueFee]:
    """The fees that fall due after one time and up to another; of newcomers all up to the latter.

    Newcomers are the customers whose first assignment stands at the offset `since` or behind it: nobody has asked for
    their fees yet. `appended` gives the append times, in micros, of rising offsets from there on.
    """
    fees = _Fees(book.whole(), after_us, until_us)
    return fees.due(fees.newcomers(since, appended))


@dataclass(frozen=True)
class _Fees:
    """Most customers are all alike at a period's start; those with a change in between are looked at one by one."""

    book: Book
    after_us: int
    until_us: int

    def newcomers(self, since: int, appended: Callable[[Longs], Longs]) -> dict[int, int]:
        """The numbers of the newcomers' accounts, with the append times of their first assignments."""
        offsets = self.book.base.offsets[self.book.base.firsts[:-1]]
        accounts = np.flatnonzero(offsets >= since)
        accounts = accounts[np.argsort(offsets[accounts])]
        return dict(zip(accounts.tolist(), appended(offsets[accounts]).tolist(), strict=True))

    def due(self, newcomers: Mapping[int, int]) -> Iterator[DueFee]:
        """All of them, customer by customer where something changed."""
        apart = np.union1d(self._changed(), np.array([*newcomers], np.int64))
        yield from self._at_starts(apart)
        for account in apart.tolist():
            customer = self.book.base.names[account].as_py()
            assignments = self.book.base.assignments(account, self.book.pages.plan_names)
            if account in newcomers:
                yield from self._of(customer, assignments, self._first_us(assignments, newcomers[account]))
            else:
                begin_us = max(self._begin_us, assignments[0].effective_us)
                yield from (fee for fee in self._of(customer, assignments, begin_us) if fee.due_us > self.after_us)

    def _at_starts(self, apart: Longs) -> Iterator[DueFee]:
        """The fees at the starts of periods, of customers whose plan did not change."""
        versions = [version for version in self.book.versions if version.fees]
        starts = {start_us for version in versions for start_us in self._starts(version.cycle)}
        for start_us in sorted(starts):
            numbers = self._rated_at(start_us)
            numbers[apart] = NONE
            for number, version in enumerate(self.book.versions):
                period = version.cycle.containing(start_us)
                if version.fees and period.start_us == start_us:
                    names = self.book.base.names.take(pa.array(np.flatnonzero(numbers == number))).to_pylist()
                    yield from (DueFee(start_us, name, fee, period.label) for name in names for fee in version.fees)

    def _of(self, customer: str, assignments: Sequence[Assignment], begin_us: int) -> Iterator[DueFee]:
        """A customer's fees from a moment on, each once a period."""
        seen: set[tuple[str, str]] = set()
        for start_us, stop_us, version in self._segments(assignments, begin_us):
            period = version.cycle.containing(start_us)
            while (due_us := max(period.start_us, start_us)) < stop_us:
                new = [fee for fee in version.fees if (fee, period.label) not in seen]
                seen.update((fee, period.label) for fee in new)
                yield from (DueFee(due_us, customer, fee, period.label) for fee in new)
                period = version.cycle.containing(period.end_us)

    def _segments(self, assignments: Sequence[Assignment], begin_us: int) -> Iterator[tuple[int, int, PlanVersion]]:
        """From when to when the customer is rated by which version."""
        assigned = [one.effective_us for one in assignments]
        published = [
            one.effective_us for plan in {one.plan for one in assignments} for one in self._by_plan.get(plan, ())
        ]
        changes = {change_us for change_us in (*assigned, *published) if begin_us < change_us <= self.until_us}
        for start_us, stop_us in pairwise([*sorted({begin_us, *changes}), self.until_us + 1]):
            version = self._version(assignments, start_us)
            if version is not None:
                yield start_us, stop_us, version

    def _version(self, assignments: Sequence[Assignment], time_us: int) -> PlanVersion | None:
        plan = next((one.plan for one in reversed(assignments) if one.effective_us <= time_us), None)
        versions = self._by_plan.get(plan, ()) if plan is not None else ()
        return next((one for one in reversed(versions) if one.effective_us <= time_us), None)

    def _first_us(self, assignments: Sequence[Assignment], appended_us: int) -> int:
        """The moment from which on a newcomer has fees: no period that was over before is charged."""
        effective_us = assignments[0].effective_us
        version = self._version(assignments, appended_us)
        return max(effective_us, version.cycle.containing(appended_us).start_us if version else appended_us)

    def _changed(self) -> Longs:
        """The accounts for which something takes effect that may bring a fee in mid-period."""
        accounts = self.book.base
        in_time = (accounts.effective_us > self.after_us) & (accounts.effective_us <= self.until_us)
        changed = [np.searchsorted(accounts.firsts, np.flatnonzero(in_time), side="right") - 1]
        for version in self._new_fees():
            number = self.book.versions.index(version)
            changed.append(np.flatnonzero(self._rated_at(version.effective_us) == number))
        return np.unique(np.concatenate(changed))

    def _new_fees(self) -> Iterator[PlanVersion]:
        """The versions that take effect meanwhile with a fee or a cycle that the one before did not have."""
        for versions in self._by_plan.values():
            for before, version in pairwise([None, *versions]):
                assert version is not None
                known = before is not None and before.cycle == version.cycle and {*version.fees} <= {*before.fees}
                if version.fees and not known and self.after_us < version.effective_us <= self.until_us:
                    yield version

    def _rated_at(self, time_us: int) -> Longs:
        """The number of the version that each customer is rated by at a moment."""
        names = self.book.base.names
        numbers, _ = self.book.rated_by(names, np.full(len(names), time_us), np.full(len(names), self.book.covers))
        return numbers

    def _starts(self, cycle: Cycle) -> Iterator[int]:
        """The starts of a cycle's periods in the time that is asked for."""
        start_us = cycle.containing(self.after_us).end_us
        while start_us <= self.until_us:
            yield start_us
            start_us = cycle.containing(start_us).end_us

    @cached_property
    def _begin_us(self) -> int:
        """Early enough to know what fell due before in the periods that are open after `after_us`."""
        cycles = {version.cycle for version in self.book.versions}
        return min((cycle.containing(self.after_us).start_us for cycle in cycles), default=self.after_us)

    @cached_property
    def _by_plan(self) -> dict[str, list[PlanVersion]]:
        found: dict[str, list[PlanVersion]] = {}
        for version in self.book.versions:
            found.setdefault(version.plan, []).append(version)
        return found
