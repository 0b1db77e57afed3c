"""The book: all plans and assignments up to an offset of the journal, ready to be looked up for many events at once.

Reference data are events of the journal like any other; `folding` has the rules by which they are accepted. A book that
covers more than an event needs gives the same answer for it: what stands behind the event is not looked at.

A `BookKeeper` has the newest book of a journal. It begins with the newest snapshot in its folder, and reads on in the
journal from there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book import book_file
from stateside.billing.book.accounts import NONE, Accounts, newest
from stateside.billing.book.book_file import Pages
from stateside.billing.book.folding import Assignment, Fold, Reference, Refused
from stateside.billing.book.newcomers import newcomers_accounts, split_newcomers
from stateside.billing.book.texts import Longs, Texts, text_hashes
from stateside.billing.model import ASSIGN, PLAN
from stateside.billing.plans.version import PlanVersion
from stateside.journal import Journal
from stateside.journal.segment import DurableEnd

_TAIL_SHARE = 16  # accounts that changed lie apart until they are more than this part of all: few are copied at a time
_TAIL_MIN = 4_096
_LOOKUP_ROWS = 65_536  # looked up at a time: what is reckoned on the way stays in the processor's cache
_BULK_ROWS = 1_000  # reference events at once, from which on newcomers are worth a look
_FOLD_ROWS = 100_000  # reference events folded at a time
_AHEAD_EVENTS_MAX = 1_000_000  # read beyond what was asked for, to be at the journal's end, where the next read begins
_SAVE_EVENTS = 10_000_000  # events behind a snapshot that a start reads over in about a second
_SAVE_SHARE = 16  # and accounts changed, of all
_SAVE_ACCOUNTS_MIN = 10_000


@dataclass(frozen=True)
class Book:
    """Plans and assignments of the journal's events before the offset `covers`."""

    pages: Pages
    base: Accounts
    tail: Accounts  # those that changed since the base was made, whole

    @classmethod
    def empty(cls) -> Book:
        """The book of an empty journal."""
        return cls(Pages(), _NO_ACCOUNTS, _NO_ACCOUNTS)

    @property
    def covers(self) -> int:
        """It has the reference events before this offset."""
        return self.pages.covers

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The reference events that were refused, in order."""
        return self.pages.refused

    @cached_property
    def refused_offsets(self) -> Longs:
        """Where these stand in the journal."""
        return np.array([one.offset for one in self.refused], np.int64)

    @cached_property
    def plans(self) -> Mapping[str, PlanVersion]:
        """All versions by their ids."""
        return {version.id: version for _, version in self.pages.versions}

    @cached_property
    def versions(self) -> list[PlanVersion]:
        """All versions, plan by plan: what `rated_by` gives numbers of."""
        return [version for _, version in self._versions.entries]

    def rated_by(self, customers: pa.Array, times_us: Longs, offsets: Longs) -> tuple[Longs, Longs]:
        """By which version each event is rated: its number in `versions`, or NONE; and its plan's number, or NONE.

        No plan: the customer is unknown, or was not assigned yet. A plan but no version: that has none in effect.
        """
        plans = np.full(len(times_us), NONE)
        names = Texts.of(customers)
        for start in range(0, len(names), _LOOKUP_ROWS):
            rows = slice(start, start + _LOOKUP_ROWS)
            plans[rows] = self._plans(names.taken(rows), times_us[rows], offsets[rows])
        return self._versions.newest(plans, times_us, offsets), plans

    def plan_at(self, customer: str, time_us: int, offset: int) -> PlanVersion | None:
        """The version that an event of the customer at this time and offset is rated by; None if there is none."""
        found, _ = self.rated_by(pa.array([customer]), np.array([time_us]), np.array([offset]))
        return None if found[0] == NONE else self.versions[found[0]]

    def assignments(self, customer: str) -> list[Assignment]:
        """All accepted assignments of a customer, in the journal's order; none if it is unknown."""
        return next(self._histories([customer]), [])

    def folded(self, references: pa.Table, covers: int) -> Book:
        """The book with these reference events too, which are all between what it covers and a later offset."""
        if not references.num_rows:
            return Book(self.pages.covering(covers), self.base, self.tail)
        if references.num_rows < _BULK_ROWS:
            return self._folded(references, covers)
        newcomers, others = split_newcomers(references, (self.tail, self.base))
        book = self._folded(others, covers)
        pages = book.pages.naming(pc.unique(newcomers["plan"]).to_pylist())
        return Book(pages, book.base, book.tail.merged(newcomers_accounts(newcomers, pages.numbers)))._levelled()

    def _folded(self, references: pa.Table, covers: int) -> Book:
        """As `folded`, one by one."""
        rows = [Reference(*row) for row in zip(*(column.to_pylist() for column in references.columns), strict=True)]
        customers = list(dict.fromkeys(row.entity for row in rows if row.type == ASSIGN))
        histories = dict(zip(customers, self._histories(customers), strict=True))
        fold = Fold(
            {version.plan: version for _, version in self.pages.versions},
            {customer: history[-1].effective_us for customer, history in histories.items() if history},
        )
        fold.add(rows)
        pages = self.pages.extended(fold, covers)
        changed = {customer: [*histories[customer], *new] for customer, new in fold.assignments.items()}
        return Book(pages, self.base, self.tail.merged(Accounts.of(changed, pages.numbers)))._levelled()

    def whole(self) -> Book:
        """The same book with all accounts in one."""
        return Book(self.pages, self.base.merged(self.tail), _NO_ACCOUNTS) if len(self.tail) else self

    def _plans(self, names: Texts, times_us: Longs, offsets: Longs) -> Longs:
        """The number of the plan that each customer was assigned to, or NONE."""
        plans = np.full(len(names), NONE)
        hashes = text_hashes(names)
        rows = np.arange(len(names))
        for accounts in (self.tail, self.base):
            if len(accounts) and len(rows):
                found = accounts.find(names.taken(rows), hashes[rows])
                known = found != NONE
                here = rows[known]
                at = accounts.newest(found[known], times_us[here], offsets[here])
                plans[here] = np.where(at == NONE, NONE, accounts.plans[at])
                rows = rows[~known]
        return plans

    def _levelled(self) -> Book:
        return self.whole() if len(self.tail) > max(_TAIL_MIN, len(self.base) // _TAIL_SHARE) else self

    def _histories(self, customers: list[str]) -> Iterator[list[Assignment]]:
        """Each customer's assignments."""
        names = Texts.of(pa.array(customers, pa.large_string()))
        hashes = text_hashes(names)
        changed, known = self.tail.find(names, hashes), self.base.find(names, hashes)
        for in_tail, in_base in zip(changed.tolist(), known.tolist(), strict=True):
            accounts, at = (self.tail, in_tail) if in_tail != NONE else (self.base, in_base)
            yield [] if at == NONE else accounts.assignments(at, self.pages.plan_names)

    @cached_property
    def _versions(self) -> _Versions:
        return _Versions.of(self.pages)


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions of each plan side by side, in the order of the plans' numbers."""

    entries: list[tuple[int, PlanVersion]]
    firsts: Longs
    effective_us: Longs
    offsets: Longs

    @classmethod
    def of(cls, pages: Pages) -> _Versions:
        by_plan: dict[str, list[tuple[int, PlanVersion]]] = {plan: [] for plan in pages.plan_names}
        for offset, version in pages.versions:
            by_plan[version.plan].append((offset, version))
        entries = [entry for several in by_plan.values() for entry in several]
        return cls(
            entries,
            np.cumsum([0, *map(len, by_plan.values())], dtype=np.int64),
            np.array([version.effective_us for _, version in entries], np.int64),
            np.array([offset for offset, _ in entries], np.int64),
        )

    def newest(self, plans: Longs, times_us: Longs, before: Longs) -> Longs:
        if plans.min(initial=0) != NONE:
            return newest(self.firsts, self.effective_us, self.offsets, plans, times_us, before)
        found = np.full(len(plans), NONE)
        rows = np.flatnonzero(plans != NONE)
        found[rows] = newest(self.firsts, self.effective_us, self.offsets, plans[rows], times_us[rows], before[rows])
        return found


_NO_ACCOUNTS = Accounts.of({}, {})


class BookKeeper:
    """Has the newest book of a journal, for one process. With a folder it begins at, and saves, snapshots there."""

    def __init__(self, journal: Journal, folder: Path | None) -> None:
        self._journal = journal
        self._folder = folder
        self._book: Book | None = None
        self._mark: DurableEnd | None = None
        self._saved_covers = 0
        self._unsaved_accounts = 0
        self._turn = threading.Lock()

    def at(self, offset: int) -> Book:
        """A book that covers at least this offset, which must lie in the journal."""
        with self._turn:
            book = self._book if self._book is not None else self._begin()
            if book.covers < offset:
                book = self._read_on(book, offset)
            self._book = book
            return book

    def save(self, *, now: bool = False) -> bool:
        """Write a snapshot, if so much is new that it is worth it, or `now`; whether one was written."""
        with self._turn:
            book = self._book
            if self._folder is None or book is None or book.covers == self._saved_covers:
                return False
            accounts = max(_SAVE_ACCOUNTS_MIN, len(book.base) // _SAVE_SHARE)
            if not now and book.covers - self._saved_covers < _SAVE_EVENTS and self._unsaved_accounts < accounts:
                return False
            whole = self._book = book.whole()
            book_file.save(self._folder, self._journal.id(), whole.pages, whole.base)
            self._saved_covers, self._unsaved_accounts = book.covers, 0
            return True

    def _begin(self) -> Book:
        found = book_file.load_newest(self._folder, self._journal.id()) if self._folder else None
        if found is None:
            return Book.empty()
        self._saved_covers = found[0].covers
        return Book(*found, _NO_ACCOUNTS)

    def _read_on(self, book: Book, offset: int) -> Book:
        """Fold the journal up to the offset, or up to its end if that is near."""
        end = self._journal.durable_end()
        near = offset <= end.offset <= offset + _AHEAD_EVENTS_MAX
        stop = end.offset if near else offset
        for references, covers in _references(self._journal, book.covers, stop, self._mark):
            book = book.folded(references, covers)
            self._unsaved_accounts += references.num_rows
        self._mark = end if near else self._mark
        return book


def _references(journal: Journal, start: int, stop: int, mark: DurableEnd | None) -> Iterator[tuple[pa.Table, int]]:
    """The reference events of a range, some at a time, each time with the offset up to which that are all."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for first, batch in journal.batches(start, stop, mark):
        found = np.flatnonzero(pc.is_in(batch.column("type"), _REFERENCE_TYPES).to_numpy(zero_copy_only=False))
        if len(found):
            waiting.append(_columns(batch.take(pa.array(found)), first + found))
            rows += len(found)
        if rows >= _FOLD_ROWS:
            yield pa.Table.from_batches(waiting), first + batch.num_rows
            waiting, rows = [], 0
    yield pa.Table.from_batches(waiting, _COLUMNS), stop


_REFERENCE_TYPES = pa.array([PLAN, ASSIGN])
_COLUMNS = pa.schema(
    [("offset", pa.int64())]
    + [(name, pa.string()) for name in ("id", "entity", "type")]
    + [("appended", pa.int64()), ("payload", pa.string())]
)


def _columns(batch: pa.RecordBatch, offsets: Longs) -> pa.RecordBatch:
    """What a `Reference` has, in its order."""
    names = [batch.column(name) for name in ("id", "entity", "type")]
    appended, payload = batch.column("appended").cast(pa.int64()), batch.column("payload")
    return pa.RecordBatch.from_arrays([pa.array(offsets), *names, appended, payload], schema=_COLUMNS)
