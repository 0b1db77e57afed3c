"""The book: all plans and assignments up to an offset of the journal, with vectorised lookup for many events at once.

Reference data are events of the journal like any other; `plan_rules` decides which are accepted. A lookup ignores
everything after the event, so a book that covers more than an event needs gives the same result for the event.

**Newcomers.** No rule refuses a well-formed first assignment, so first assignments are added in bulk: a million
customers loaded into a journal are added in seconds. All other reference events go through `plan_rules` one by one.

**Snapshots.** A `BookKeeper` starts from the newest snapshot in its folder and reads the journal from there. Snapshots
are memory-mapped Arrow files, so a million accounts are available at once.

    FOLDER/book-00000000000012345678.arrow     named by the offset up to which it covers the journal

The one record batch holds the accounts; the schema's metadata holds, as JSON under `book`, the journal's id, the
offset, the plans and the refused events. A snapshot only saves reading the journal: all snapshots may be deleted. The
newest two are kept, because a reader may be about to open the older one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.accounts import NONE, SCHEMA, Accounts, newest
from stateside.billing.book.plan_rules import Assignment, Fold, Reference, Refused
from stateside.billing.book.texts import Bools, Hashes, Longs, Texts, text_hashes
from stateside.billing.model import ASSIGN, PLAN, VIEW
from stateside.billing.plans.plan import PlanVersion
from stateside.core import Layout, write_atomically
from stateside.core.errors import StateError
from stateside.journal import DurableEnd, Log, open_journal, payload_columns

_PAYLOAD = pa.schema([("plan", pa.string()), ("effective_us", pa.int64()), ("holder", pa.string())])


def split_newcomers(references: pa.Table, known: tuple[Accounts, ...]) -> tuple[pa.Table, pa.Table]:
    """Split reference events into newcomers, with payload fields as columns, and all others, unchanged."""
    references = references.combine_chunks()
    assigned = references.filter(pc.equal(references["type"], ASSIGN)).combine_chunks()
    if not assigned.num_rows:
        return _table(assigned, _PAYLOAD.empty_table()), references
    fields = payload_columns(assigned["payload"].chunk(0), _PAYLOAD)
    sure = pc.and_(pc.greater(pc.binary_length(fields["plan"]), 0), pc.greater_equal(fields["effective_us"], 0))
    sure = pa.array(np.asarray(pc.fill_null(sure, False)) & _new(Texts.of(assigned["entity"]), known))
    newcomers = _table(assigned, fields).filter(sure)
    others = pc.invert(pc.is_in(references["offset"], newcomers["offset"].combine_chunks()))
    return newcomers, references.filter(others)


def newcomers_accounts(newcomers: pa.Table, plans: dict[str, int]) -> Accounts:
    """Accounts of newcomers, one assignment each; `plans` maps each plan to its number."""
    names = pa.concat_arrays([pa.array([], pa.large_string()), *newcomers["entity"].cast(pa.large_string()).chunks])
    holders = newcomers["holder"].cast(pa.large_string())
    known = pa.array(plans, pa.string())
    numbers = pc.index_in(newcomers["plan"], known).cast(pa.int64())
    return Accounts.of_one_each(
        names,
        np.asarray(newcomers["effective_us"]),
        np.asarray(newcomers["offset"]),
        np.array([*plans.values(), NONE])[np.asarray(numbers)],
        pa.concat_arrays([pa.array([], pa.large_string()), *holders.chunks]),
    )


def _table(assigned: pa.Table, fields: pa.Table) -> pa.Table:
    columns = {name: fields[name] for name in _PAYLOAD.names}
    return pa.table({"offset": assigned["offset"], "entity": assigned["entity"], **columns})


def _new(names: Texts, known: tuple[Accounts, ...]) -> Bools:
    """Whether a customer is unknown and has exactly one assignment here; False for any hash that occurs twice."""
    hashes = text_hashes(names)
    new = _once(hashes)
    for accounts in known:
        new &= accounts.find(names, hashes) == NONE
    return new


def _once(hashes: Hashes) -> Bools:
    order = np.argsort(hashes)
    twice = np.diff(hashes[order]) == 0
    once = np.ones(len(hashes), np.bool_)
    once[order[1:][twice]] = once[order[:-1][twice]] = False
    return once


VERSION = 1
_KEPT = 2
_PREFIX, _SUFFIX = "book-", ".arrow"
_METADATA = b"book"


@dataclass(frozen=True, slots=True)
class BookTables:
    """The contents of a book beside its accounts. `plan_names` numbers the plans for the accounts, and only grows."""

    covers: int = 0
    plan_names: tuple[str, ...] = ()
    versions: tuple[tuple[int, PlanVersion], ...] = ()  # with their offsets, in order
    refused: tuple[Refused, ...] = ()

    def covering(self, covers: int) -> BookTables:
        return replace(self, covers=covers)

    def extended(self, fold: Fold, covers: int) -> BookTables:
        """The tables plus everything that a fold accepted and refused."""
        published = [version.plan for _, version in fold.versions]
        assigned = [one.plan for several in fold.assignments.values() for one in several]
        more = (*self.versions, *fold.versions), (*self.refused, *fold.refused)
        return BookTables(covers, self.plan_names, *more).naming([*published, *assigned])

    def naming(self, plans: Iterable[str]) -> BookTables:
        """The tables with numbers for these plans too."""
        return replace(self, plan_names=tuple(dict.fromkeys([*self.plan_names, *plans])))

    @property
    def numbers(self) -> dict[str, int]:
        return {plan: number for number, plan in enumerate(self.plan_names)}

    def as_json(self) -> dict[str, Any]:
        return {
            "covers": self.covers,
            "plan_names": self.plan_names,
            "versions": [[offset, version.as_payload()] for offset, version in self.versions],
            "refused": [[one.offset, one.id, one.reason, one.detail] for one in self.refused],
        }

    @classmethod
    def parse(cls, content: dict[str, Any]) -> BookTables:
        return cls(
            content["covers"],
            tuple(content["plan_names"]),
            tuple((offset, PlanVersion.from_payload(payload)) for offset, payload in content["versions"]),
            tuple(Refused(*fields) for fields in content["refused"]),
        )


def save(folder: Path, journal_id: str | None, pages: BookTables, accounts: Accounts) -> None:
    """Write a snapshot atomically and durably, and delete all but the newest two."""
    content = json.dumps({"version": VERSION, "journal": journal_id, **pages.as_json()})
    batch = accounts.as_batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA.with_metadata({_METADATA: content.encode()})) as writer:
        writer.write_batch(batch)
    write_atomically(folder / f"{_PREFIX}{pages.covers:020d}{_SUFFIX}", sink.getvalue().to_pybytes())
    for path in list(_newest_first(folder))[_KEPT:]:
        path.unlink(missing_ok=True)


def load_newest(folder: Path, journal_id: str | None) -> tuple[BookTables, Accounts] | None:
    """The newest snapshot, or None. StateError if the snapshot is damaged, or of another journal."""
    for path in _newest_first(folder):
        try:
            return _load(path, journal_id)
        except FileNotFoundError:
            continue  # deleted in the meantime by a writer that saved a newer snapshot
        except (pa.ArrowInvalid, OSError, ValueError, LookupError, TypeError) as error:
            raise _unusable(path, f"it is damaged: {error}") from error
    return None


def _load(path: Path, journal_id: str | None) -> tuple[BookTables, Accounts]:
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    content = json.loads(file.schema.metadata[_METADATA])
    if content["version"] != VERSION:
        raise _unusable(path, f"it has the format version {content['version']}, not {VERSION}")
    if content["journal"] != journal_id:
        raise _unusable(path, f"it is of the journal {content['journal']}, this one is {journal_id}")
    return BookTables.parse(content), Accounts.from_batch(file.get_batch(0))


def _newest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"), reverse=True)


def _unusable(path: Path, reason: str) -> StateError:
    return StateError(
        f"The snapshot of the book cannot be used: {reason}",
        where=str(path),
        next_step="Delete it: the book is then read from the journal",
    )


_TAIL_SHARE = 16  # changed accounts stay in the tail up to 1/16 of all: a fold copies only the tail
_TAIL_MIN = 4_096
_LOOKUP_ROWS = 65_536  # looked up at a time: intermediate arrays stay in the processor's cache
_BULK_ROWS = 1_000  # reference events at once from which on the bulk path for newcomers pays
_FOLD_ROWS = 100_000  # reference events folded at a time
_AHEAD_EVENTS_MAX = (
    1_000_000  # read ahead of the requested offset to reach the journal's end, where the next read begins
)
_SAVE_EVENTS = 10_000_000  # events after the snapshot; a start reads them in about a second
_SAVE_SHARE = 16  # or 1/16 of all accounts changed
_SAVE_ACCOUNTS_MIN = 10_000


@dataclass(frozen=True)
class Book:
    """Plans and assignments from the journal's events before the offset `covers`."""

    pages: BookTables
    base: Accounts
    tail: Accounts  # complete accounts of the customers changed since the base was made

    @classmethod
    def empty(cls) -> Book:
        return cls(BookTables(), _NO_ACCOUNTS, _NO_ACCOUNTS)

    @property
    def covers(self) -> int:
        """The offset before which the book has all reference events."""
        return self.pages.covers

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The refused reference events, in order."""
        return self.pages.refused

    @cached_property
    def refused_offsets(self) -> Longs:
        return np.array([one.offset for one in self.refused], np.int64)

    @cached_property
    def plans(self) -> Mapping[str, PlanVersion]:
        """All versions by id."""
        return {version.id: version for _, version in self.pages.versions}

    @cached_property
    def versions(self) -> list[PlanVersion]:
        """All versions, plan by plan, as numbered by `rated_by`."""
        return [version for _, version in self._versions.entries]

    def rated_by(self, customers: pa.Array, times_us: Longs, offsets: Longs) -> tuple[Longs, Longs]:
        """For each event: the number of its plan version in `versions`, or NONE; and its plan's number, or NONE.

        No plan: the customer is unknown, or was not assigned yet. A plan but no version: no version of the plan is in
        effect.
        """
        plans = np.full(len(times_us), NONE)
        names = Texts.of(customers)
        for start in range(0, len(names), _LOOKUP_ROWS):
            rows = slice(start, start + _LOOKUP_ROWS)
            plans[rows] = self._plans(names.taken(rows), times_us[rows], offsets[rows])
        return self._versions.newest(plans, times_us, offsets), plans

    def plan_at(self, customer: str, time_us: int, offset: int) -> PlanVersion | None:
        """The version that rates an event of the customer at this time and offset, or None."""
        found, _ = self.rated_by(pa.array([customer]), np.array([time_us]), np.array([offset]))
        return None if found[0] == NONE else self.versions[found[0]]

    def assignments(self, customer: str) -> list[Assignment]:
        """All accepted assignments of a customer, in the journal's order; an empty list for an unknown customer."""
        return next(self._histories([customer]), [])

    def folded(self, references: pa.Table, covers: int) -> Book:
        """The book extended by `references`: all reference events from its own `covers` up to a later offset."""
        if not references.num_rows:
            return Book(self.pages.covering(covers), self.base, self.tail)
        if references.num_rows < _BULK_ROWS:
            return self._folded(references, covers)
        newcomers, others = split_newcomers(references, (self.tail, self.base))
        book = self._folded(others, covers)
        pages = book.pages.naming(pc.unique(newcomers["plan"]).to_pylist())
        return Book(pages, book.base, book.tail.merged(newcomers_accounts(newcomers, pages.numbers)))._levelled()

    def _folded(self, references: pa.Table, covers: int) -> Book:
        """`folded` without the bulk path for newcomers."""
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
        """The book with tail and base merged."""
        return Book(self.pages, self.base.merged(self.tail), _NO_ACCOUNTS) if len(self.tail) else self

    def _plans(self, names: Texts, times_us: Longs, offsets: Longs) -> Longs:
        """The number of the plan that each customer is assigned to, or NONE."""
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
    """The versions grouped by plan, in the order of the plans' numbers."""

    entries: list[tuple[int, PlanVersion]]
    firsts: Longs
    effective_us: Longs
    offsets: Longs

    @classmethod
    def of(cls, pages: BookTables) -> _Versions:
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
    """Keeps the newest book of a journal for one process. With a folder, loads and saves snapshots there."""

    def __init__(self, journal: Log, folder: Path | None) -> None:
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
        """Write a snapshot if enough has changed, or if `now`; return whether one was written."""
        with self._turn:
            book = self._book
            if self._folder is None or book is None or book.covers == self._saved_covers:
                return False
            accounts = max(_SAVE_ACCOUNTS_MIN, len(book.base) // _SAVE_SHARE)
            if not now and book.covers - self._saved_covers < _SAVE_EVENTS and self._unsaved_accounts < accounts:
                return False
            whole = self._book = book.whole()
            save(self._folder, self._journal.id(), whole.pages, whole.base)
            self._saved_covers, self._unsaved_accounts = book.covers, 0
            return True

    def _begin(self) -> Book:
        found = load_newest(self._folder, self._journal.id()) if self._folder else None
        if found is None:
            return Book.empty()
        self._saved_covers = found[0].covers
        return Book(*found, _NO_ACCOUNTS)

    def _read_on(self, book: Book, offset: int) -> Book:
        """Fold the journal up to the offset, or up to the journal's end if the end is near."""
        end = self._journal.durable_end()
        near = offset <= end.offset <= offset + _AHEAD_EVENTS_MAX
        stop = end.offset if near else offset
        for references, covers in _references(self._journal, book.covers, stop, self._mark):
            book = book.folded(references, covers)
            self._unsaved_accounts += references.num_rows
        self._mark = end if near else self._mark
        return book


def _references(journal: Log, start: int, stop: int, mark: DurableEnd | None) -> Iterator[tuple[pa.Table, int]]:
    """The reference events of a range in chunks, each with the offset up to which all events were read."""
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
    """The fields of a `Reference`, in their order."""
    names = [batch.column(name) for name in ("id", "entity", "type")]
    appended, payload = batch.column("appended").cast(pa.int64()), batch.column("payload")
    return pa.RecordBatch.from_arrays([pa.array(offsets), *names, appended, payload], schema=_COLUMNS)


def current_book(layout: Layout) -> Book:
    """Plans and assignments as of the journal's end."""
    journal = open_journal(layout.journal).log()
    return BookKeeper(journal, layout.view(VIEW).root / "book").at(journal.end().one())
