"""The clockwork: appends the events caused by time alone, recurring fees and clock ticks.

A tick moves the watermark. There is a tick when the grace period of a period has passed, so that the period closes on
time without usage, and a tick for each quarter of an hour without an append: a restarted query needs an event to do
what is due.

How every event is appended exactly once, even if the process is killed, and with any number of clockworks:

1. The journal's end is read, then the time.
2. The book up to that end determines the fees that fell due since the reach's time, and the fees of customers whose
   first assignment stands at or after the reach's position. An id consists of fee, customer and period; or of a tick's
   moment.
3. The events are appended unless their ids stand after the reach's position already (`append_unstored`). Events of a
   killed process, or of another one, stand there: before that reach none of them was due.
4. The reach is moved to that end and that time, in memory, and now and then in its file, `clock.json`.

A crash after step 3 leaves an older reach: the next start finds the same fees, and maybe more, and looks for their ids
from further back. Without a reach the whole journal is searched. So the file may be deleted at any time.

Recurring fees. The fee NAME of a customer falls due in a period at the first moment at which the customer is rated by a
version with the fee: at the period's start, or when an assignment or a version takes effect in mid-period. A fee is not
split. A customer who is assigned for a time in the past pays no fees for periods that were over at the assignment.

The book alone determines the due fees, and neither later publications nor later assignments change them: both take
effect an hour after their append at the earliest. So a second computation, for a time up to now, gives the same fees
with the same ids.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from stateside.billing.book.accounts import NONE
from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.book.plan_rules import Assignment
from stateside.billing.book.texts import Longs
from stateside.billing.calendar import Cycle
from stateside.billing.model import HOUR_US, VIEW, clock_tick, lateness_in_force
from stateside.billing.plans.plan import PlanVersion
from stateside.core import Clock, JsonFile, Layout, Position
from stateside.journal import NAME_CHARS_MAX, Event, Log, open_journal


@dataclass(frozen=True, slots=True, order=True)
class DueFee:
    """A fee of one customer for one period."""

    due_us: int
    customer: str
    name: str
    period: str

    @property
    def id(self) -> str:
        """The event's id, determined by the fee."""
        readable = f"fee/{self.name}/{self.customer}/{self.period}"
        return readable if len(readable) <= NAME_CHARS_MAX else f"fee/{hashlib.sha256(readable.encode()).hexdigest()}"

    def event(self) -> Event:
        """The usage event that puts the fee on the bill."""
        return Event(self.id, self.customer, "fee", self.due_us, {"quantity": 1, "name": self.name})


def due_fees(
    book: Book, after_us: int, until_us: int, since: int, appended: Callable[[Longs], Longs]
) -> Iterator[DueFee]:
    """The fees that fall due after one time and up to another; of newcomers all up to the latter.

    Newcomers are the customers whose first assignment stands at the offset `since` or after: their fees were not
    computed before. `appended` returns the append times, in micros, of ascending offsets.
    """
    fees = _Fees(book.whole(), after_us, until_us)
    return fees.due(fees.newcomers(since, appended))


@dataclass(frozen=True)
class _Fees:
    """Computes fees: in bulk at a period's start, one by one for customers with a change in between."""

    book: Book
    after_us: int
    until_us: int

    def newcomers(self, since: int, appended: Callable[[Longs], Longs]) -> dict[int, int]:
        """The newcomers' account numbers, with the append times of their first assignments."""
        offsets = self.book.base.offsets[self.book.base.firsts[:-1]]
        accounts = np.flatnonzero(offsets >= since)
        accounts = accounts[np.argsort(offsets[accounts])]
        return dict(zip(accounts.tolist(), appended(offsets[accounts]).tolist(), strict=True))

    def due(self, newcomers: Mapping[int, int]) -> Iterator[DueFee]:
        """All due fees, customer by customer where something changed."""
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
        """The fees at period starts, of customers without a change."""
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
        """The intervals in which the customer is rated by one version."""
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
        """The moment from which a newcomer pays fees: earlier periods that were over are not charged."""
        effective_us = assignments[0].effective_us
        version = self._version(assignments, appended_us)
        return max(effective_us, version.cycle.containing(appended_us).start_us if version else appended_us)

    def _changed(self) -> Longs:
        """The accounts with a change that may cause a fee in mid-period."""
        accounts = self.book.base
        in_time = (accounts.effective_us > self.after_us) & (accounts.effective_us <= self.until_us)
        changed = [np.searchsorted(accounts.firsts, np.flatnonzero(in_time), side="right") - 1]
        for version in self._new_fees():
            number = self.book.versions.index(version)
            changed.append(np.flatnonzero(self._rated_at(version.effective_us) == number))
        return np.unique(np.concatenate(changed))

    def _new_fees(self) -> Iterator[PlanVersion]:
        """The versions that take effect meanwhile with a fee or a cycle that the previous version did not have."""
        for versions in self._by_plan.values():
            for before, version in pairwise([None, *versions]):
                assert version is not None
                known = before is not None and before.cycle == version.cycle and {*version.fees} <= {*before.fees}
                if version.fees and not known and self.after_us < version.effective_us <= self.until_us:
                    yield version

    def _rated_at(self, time_us: int) -> Longs:
        """The number of the version that rates each customer at a moment."""
        names = self.book.base.names
        numbers, _ = self.book.rated_by(names, np.full(len(names), time_us), np.full(len(names), self.book.covers))
        return numbers

    def _starts(self, cycle: Cycle) -> Iterator[int]:
        """The starts of a cycle's periods within the range."""
        start_us = cycle.containing(self.after_us).end_us
        while start_us <= self.until_us:
            yield start_us
            start_us = cycle.containing(start_us).end_us

    @cached_property
    def _begin_us(self) -> int:
        """Early enough to include fees that fell due earlier in the periods open after `after_us`."""
        cycles = {version.cycle for version in self.book.versions}
        return min((cycle.containing(self.after_us).start_us for cycle in cycles), default=self.after_us)

    @cached_property
    def _by_plan(self) -> dict[str, list[PlanVersion]]:
        found: dict[str, list[PlanVersion]] = {}
        for version in self.book.versions:
            found.setdefault(version.plan, []).append(version)
        return found


IDLE_US: Final = HOUR_US // 4
STEP_S: Final = 1.0
EVENTS_AT_ONCE: Final = 50_000
_SAVE_EVENTS: Final = 100_000  # how far the reach's file may lag: read in one go at a start


@dataclass(frozen=True, slots=True)
class Reach:
    """All fees that fell due up to the time, of customers assigned before the position, are in the journal."""

    position: Position
    time_us: int

    @classmethod
    def load(cls, path: Path, journal_id: str | None) -> Reach | None:
        """The reach in a file; None without a readable one of this journal: then the whole journal is searched."""
        try:
            journal, found = _REACH.read_if_valid(path) or (None, None)
        except OSError:
            return None
        return found if journal == journal_id else None

    def save(self, path: Path, journal_id: str | None) -> None:
        _REACH.write(path, (journal_id, self))


_REACH: JsonFile[tuple[str | None, Reach]] = JsonFile(
    "The reach of the clock",
    lambda document: (document["journal"], Reach(Position.parse(document["position"]), int(document["time_us"]))),
    lambda kept: {"journal": kept[0], "position": str(kept[1].position), "time_us": kept[1].time_us},
)


class Clockwork:
    """Appends, at each step, the events due in one application's folder."""

    def __init__(self, layout: Layout, clock: Clock, on_step: Callable[[int], None] = lambda number: None) -> None:
        self._journal = open_journal(layout.journal).log()
        self._writer = open_journal(layout.journal).writer(clock=clock)
        self._keeper = BookKeeper(self._journal, layout.view(VIEW).root / "book")
        self._layout, self._clock = layout, clock
        self._path = layout.clock
        self._reach = self._saved = Reach.load(self._path, self._journal.id())
        self._on_step = on_step
        self._whole = self._book = Book.empty()

    def step(self) -> int:
        """Append the due events; returns their number, including events already stored."""
        end, now_us = self._journal.end(), self._clock.now_us()  # in this order: step 1 of the protocol
        if not end.events():
            return 0
        reach = self._reach or Reach(Position.start(), now_us)
        now_us = max(now_us, reach.time_us)  # a clock set back makes nothing due again
        self._on_step(1)
        book = self._book_at(end.one())
        self._on_step(2)
        count = 0
        for events in _chunks(self._due(book, reach, end, now_us)):
            self._writer.append_unstored(events, since=reach.position)
            self._on_step(3)
            count += len(events)
        self._move(Reach(end, now_us), save=count > 0)
        self._on_step(4)
        return count

    def close(self) -> None:
        self._writer.close()

    def _due(self, book: Book, reach: Reach, end: Position, now_us: int) -> Iterator[Event]:
        since = reach.position.one()
        for fee in due_fees(book, reach.time_us, now_us, since, lambda offsets: _appended(self._journal, offsets)):
            yield fee.event()
        last_us = _last_appended(self._journal, end.one())
        ticked_us = reach.time_us if self._reach else 0
        allowed_us = lateness_in_force(self._layout)
        for moment_us in sorted({*_closings(book, ticked_us, now_us, allowed_us), *_idle(last_us, now_us)}):
            yield clock_tick(moment_us, f"clock/{moment_us}")

    def _book_at(self, offset: int) -> Book:
        """A book with all accounts in one part, merged only when the accounts changed since the last step."""
        book = self._keeper.at(offset)
        if book.base is not self._book.base or book.tail is not self._book.tail:
            self._whole = book.whole()
        self._book = book
        return replace(self._whole, pages=book.pages)

    def _move(self, reach: Reach, save: bool) -> None:
        self._reach = reach
        behind = reach.position.events() - (self._saved.position.events() if self._saved else 0)
        if save or self._saved is None or behind >= _SAVE_EVENTS:
            reach.save(self._path, self._journal.id())
            self._saved = reach


def run_clock(layout: Layout, clock: Clock, stop: threading.Event, step_s: float = STEP_S) -> None:
    """Step until `stop` is set; a begun step is finished."""
    clockwork = Clockwork(layout, clock)
    try:
        while not stop.is_set():
            clockwork.step()
            stop.wait(step_s)
    finally:
        clockwork.close()


def _closings(book: Book, after_us: int, now_us: int, allowed_us: int) -> Iterator[int]:
    """The closing time of each cycle's newest closed period, if after `after_us`."""
    for cycle in {version.cycle for version in book.versions}:
        closed_us = cycle.containing(now_us - allowed_us).start_us + allowed_us
        if after_us < closed_us <= now_us:
            yield closed_us


def _idle(last_us: int, now_us: int) -> Iterator[int]:
    """The newest full quarter of an hour, if nothing was appended since."""
    quarter_us = now_us // IDLE_US * IDLE_US
    if last_us < quarter_us:
        yield quarter_us


def _last_appended(journal: Log, end: int) -> int:
    """The append time of the last event before the end. On Kafka not every offset has an event: searches backwards."""
    begin, back = journal.begin().one(), 1
    while end > begin:
        found = list(journal.batches(max(end - back, begin), end))
        if found:
            return int(found[-1][1].column("appended").cast(pa.int64())[-1].as_py())
        if end - back <= begin:
            break
        back *= 16
    return 0


def _appended(journal: Log, offsets: Longs) -> Longs:
    """The append times of events, by ascending offsets."""
    if not len(offsets):
        return offsets
    found = []
    for first, batch in journal.batches(int(offsets[0]), int(offsets[-1]) + 1):
        here = offsets[(offsets >= first) & (offsets < first + batch.num_rows)] - first
        found.append(batch.column("appended").cast(pa.int64()).to_numpy()[here])
    return np.concatenate(found)


def _chunks(events: Iterator[Event]) -> Iterator[list[Event]]:
    while chunk := list(islice(events, EVENTS_AT_ONCE)):
        yield chunk
