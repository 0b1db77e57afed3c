"""The book against its simple counterpart: lookup, snapshots, refusals, equal hashes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from stateside.billing.book import accounts, book
from stateside.billing.book import book as book_module
from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.book.texts import Texts, text_hashes
from stateside.billing.calendar import Cycle
from stateside.billing.model import assignment
from stateside.billing.plans.file import CREDIT, PlanVersion, plan_event
from stateside.core.clock import ManualClock
from stateside.core.errors import StateError
from stateside.journal import Event, FileLog, JournalWriter
from tests.billing.simple_rating import HOUR_US, Appends, SimpleBook, appends, references
from tests.sizes import examples

EXAMPLES = examples(10, 400)


def write(folder: Path, frames: Appends) -> FileLog:
    clock = ManualClock()
    with JournalWriter(folder, clock=clock) as writer:
        for time_us, several in frames:
            clock.time_us = time_us
            writer.append(several)
    return FileLog(folder)


@contextmanager
def journal_of(frames: Appends) -> Iterator[FileLog]:
    with TemporaryDirectory() as folder:
        yield write(Path(folder) / "journal", frames)


def simple_book(journal: FileLog) -> SimpleBook:
    found = SimpleBook()
    for offset, event in enumerate(journal.events()):
        found.add(offset, event)
    return found


def same_hash(_texts: Texts) -> np.ndarray:
    """The worst of all hashes."""
    return np.full(len(_texts), 7, np.uint64)


def few_hashes(texts: Texts) -> np.ndarray:
    return text_hashes(texts) % np.uint64(3) << np.uint64(62)


def version(plan: str = "basic", number: int = 1, effective_us: int = HOUR_US, currency: str = "EUR") -> PlanVersion:
    return PlanVersion(plan, number, effective_us, currency, Cycle("month", "UTC"), "up", {"credit": CREDIT})


def check_same(found: Book, simple: SimpleBook, covers: int) -> None:
    assert [(one.offset, one.id, one.reason) for one in found.refused] == simple.refused
    assert list(found.plans.values()) == [v for _, v in sorted(
        (entry for several in simple.versions.values() for entry in several), key=lambda entry: entry[0]
    )]  # fmt: skip
    names = ["emma", "omar", "lena", "ö", "a customer with quite a long name", "a customer with quite", "nobody"]
    for customer in names:
        accepted = [(one.offset, one.effective_us, one.plan) for one in found.assignments(customer)]
        assert accepted == simple.assignments.get(customer, [])
    asked = [(customer, hour * HOUR_US + us, offset) for customer in names for hour in range(0, 34, 3) for us in (-1, 0)
             for offset in {0, 1, covers // 2, covers}]  # fmt: skip
    columns = [pa.array([one[0] for one in asked]), *(np.array([one[at] for one in asked]) for at in (1, 2))]
    numbers, plans = found.rated_by(*columns)
    for one, number, plan in zip(asked, numbers.tolist(), plans.tolist(), strict=True):
        assert (None if number == -1 else found.versions[number]) == simple.plan_at(*one), one
        assert (None if plan == -1 else found.pages.plan_names[plan]) == simple.plan_name(*one), one


@pytest.mark.parametrize("bulk_rows", [0, 1_000])
@settings(max_examples=EXAMPLES)
@given(frames=appends(references))
def test_a_book_is_the_fold_of_its_journal(bulk_rows: int, frames: Appends) -> None:
    with journal_of(frames) as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(book, "_BULK_ROWS", bulk_rows)
        end = journal.end()["0"]
        found = BookKeeper(journal, None).at(end)
        assert found.covers == end
        check_same(found, simple_book(journal), end)


@pytest.mark.parametrize("hashes", [same_hash, few_hashes])
@settings(max_examples=examples(5, 200))
@given(frames=appends(references))
def test_names_with_the_same_hash_are_told_apart(hashes: object, frames: Appends) -> None:
    with pytest.MonkeyPatch.context() as patch, journal_of(frames) as journal:
        patch.setattr(accounts, "text_hashes", hashes)
        patch.setattr(book, "text_hashes", hashes)
        patch.setattr(book_module, "text_hashes", hashes)
        patch.setattr(book, "_BULK_ROWS", 0)
        end = journal.end()["0"]
        check_same(BookKeeper(journal, None).at(end), simple_book(journal), end)


@settings(max_examples=EXAMPLES)
@given(appends(references))
def test_a_snapshot_and_what_follows_are_the_fold_of_all(frames: Appends) -> None:
    with (
        TemporaryDirectory() as folder,
        journal_of(frames) as journal,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(book, "_AHEAD_EVENTS_MAX", -1)  # read no further than asked for
        patch.setattr(book, "_TAIL_MIN", 2)
        end = journal.end()["0"]
        for offset in range(0, end + 1, 2):
            before = BookKeeper(journal, Path(folder))  # each begins with the snapshot of the one before
            assert before.at(offset).covers == offset
            before.save(now=True)
        check_same(BookKeeper(journal, Path(folder)).at(end), simple_book(journal), end)
        assert len(list(Path(folder).iterdir())) <= 2


@settings(max_examples=EXAMPLES)
@given(appends(references))
def test_a_book_read_bit_by_bit_is_that_read_at_once(frames: Appends) -> None:
    with journal_of(frames) as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(book, "_AHEAD_EVENTS_MAX", -1)
        patch.setattr(book, "_TAIL_MIN", 1)
        patch.setattr(book, "_FOLD_ROWS", 1)
        patch.setattr(book, "_BULK_ROWS", 0)
        keeper = BookKeeper(journal, None)
        end = journal.end()["0"]
        for offset in range(end + 1):
            found = keeper.at(offset)
        check_same(found, simple_book(journal), end)


def test_a_keeper_follows_a_journal_that_grows(tmp_path: Path) -> None:
    clock = ManualClock()
    with JournalWriter(tmp_path / "journal", clock=clock) as writer:
        writer.append([plan_event(version(), "p1", 0), assignment("a1", "emma", "basic", 0, 0)])
        keeper = BookKeeper(FileLog(tmp_path / "journal"), None)
        assert keeper.at(1).covers == 2  # the end is near
        assert keeper.at(2).plan_at("emma", HOUR_US, 2) == version()
        writer.append([assignment("a2", "omar", "basic", 0, 0)])
        assert keeper.at(2).plan_at("omar", HOUR_US, 3) is None
        assert keeper.at(3).plan_at("omar", HOUR_US, 3) == version()
        assert keeper.at(3) is keeper.at(1)


def test_a_change_of_plan_holds_from_its_time_on_and_not_before(tmp_path: Path) -> None:
    day_us = 24 * HOUR_US
    frames = [
        (0, [plan_event(version("basic"), "p1", 0), plan_event(version("plus"), "p2", 0)]),
        (0, [assignment("a1", "emma", "basic", HOUR_US, 0, holder="Emma E.")]),
        (day_us, [assignment("a2", "emma", "plus", 2 * day_us, 0)]),
        (day_us, [plan_event(version("plus", 2, 3 * day_us), "p3", 0)]),
    ]
    found = BookKeeper(write(tmp_path, frames), None).at(5)
    by_time = [found.plan_at("emma", time_us, 9) for time_us in (HOUR_US - 1, HOUR_US, 2 * day_us - 1, 2 * day_us)]
    assert [plan and plan.id for plan in by_time] == [None, "basic@1", "basic@1", "plus@1"]
    assert found.plan_at("emma", 3 * day_us, 9) == version("plus", 2, 3 * day_us)
    assert found.plan_at("emma", 3 * day_us, 4) == version("plus")  # before the second version was published
    assert found.plan_at("emma", 3 * day_us, 3) == version("basic")  # and before the second assignment
    assert [one.holder for one in found.assignments("emma")] == ["Emma E.", None]


@pytest.mark.parametrize(
    ("second", "detail"),
    [
        (version(number=1, effective_us=9 * HOUR_US), "There is already version 1 of 'basic'; 1 is not higher"),
        (version(number=2, effective_us=7 * HOUR_US - 1), f"{7 * HOUR_US} is the earliest allowed"),
        (version(number=2, effective_us=8 * HOUR_US), f"{8 * HOUR_US + 1} is the earliest allowed"),
    ],
)
def test_a_version_that_breaks_a_rule_is_refused_and_changes_nothing(
    tmp_path: Path, second: PlanVersion, detail: str
) -> None:
    first = version(effective_us=(8 if second.effective_us == 8 * HOUR_US else 5) * HOUR_US)
    frames = [(0, [plan_event(first, "p1", 0)]), (6 * HOUR_US, [plan_event(second, "p2", 0)])]
    found = BookKeeper(write(tmp_path, frames), None).at(2)
    assert list(found.plans.values()) == [first]
    (refused,) = found.refused
    assert (refused.offset, refused.id, refused.reason) == (1, "p2", "plan-refused")
    assert detail in refused.detail


def test_an_assignment_that_breaks_a_rule_is_refused_but_the_first_may_be_of_any_time(tmp_path: Path) -> None:
    frames = [
        (5 * HOUR_US, [assignment("a1", "emma", "basic", 0, 0)]),
        (5 * HOUR_US, [assignment("a2", "emma", "plus", 6 * HOUR_US - 1, 0)]),
        (5 * HOUR_US, [assignment("a3", "emma", "gold", 6 * HOUR_US, 0)]),
        (5 * HOUR_US, [assignment("a4", "emma", "plus", 6 * HOUR_US, 0)]),
        (5 * HOUR_US, [Event("a5", "emma", "assign", 0, {"plan": "plus"})]),
    ]
    found = BookKeeper(write(tmp_path, frames), None).at(5)
    assert [one.plan for one in found.assignments("emma")] == ["basic", "gold"]
    assert [(one.id, one.reason) for one in found.refused] == [(id_, "assign-refused") for id_ in ("a2", "a4", "a5")]


def test_many_newcomers_are_taken_in_at_once_and_the_others_by_the_rules(tmp_path: Path) -> None:
    events = [assignment(f"a{n}", f"c{n}", f"plan{n % 3}", n, 0, holder=f"holder {n}") for n in range(1_500)]
    events[7:7] = [Event("x1", "c3000", "assign", 0, {"plan": 5}), assignment("x2", "c1", "gold", 9 * HOUR_US, 0)]
    events += [
        assignment("x3", "c2", "gold", 5, 0),  # too early
        Event("x4", "c4000", "assign", 0, {"plan": "basic", "effective_us": 3, "holder": 5}),  # a holder without a name
        plan_event(version("plan1"), "p1", 0),
    ]
    found = BookKeeper(write(tmp_path, [(0, events)]), None).at(len(events))
    assert [one.id for one in found.refused] == ["x1", "x3"]
    assert [(one.plan, one.effective_us, one.holder) for one in found.assignments("c1499")] == [
        ("plan2", 1_499, "holder 1499")
    ]
    assert [one.plan for one in found.assignments("c1")] == ["plan1", "gold"]
    assert [(one.plan, one.holder) for one in found.assignments("c4000")] == [("basic", None)]
    assert found.plan_at("c4", HOUR_US, 9_999) == version("plan1")
    assert found.plan_at("c4", HOUR_US, 6) is None  # the version was published behind


def test_snapshots_are_written_when_it_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = write(tmp_path / "journal", [(0, [assignment(f"a{n}", f"c{n}", "basic", 0, 0) for n in range(5)])])
    keeper = BookKeeper(journal, tmp_path / "book")
    assert not keeper.save(now=True)  # nothing was read yet
    keeper.at(5)
    assert not keeper.save()
    monkeypatch.setattr(book, "_SAVE_ACCOUNTS_MIN", 5)
    assert keeper.save()
    assert not keeper.save(now=True)
    assert not BookKeeper(journal, None).save(now=True)


def test_a_snapshot_of_another_journal_is_not_used(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, [(0, [assignment("a", "emma", "basic", 0, 0)])])
    keeper = BookKeeper(FileLog(tmp_path / "one"), tmp_path / "book")
    keeper.at(1)
    keeper.save(now=True)
    with pytest.raises(StateError, match=r"it is of the journal .* Delete it: the book is then read from the journal"):
        BookKeeper(FileLog(tmp_path / "other"), tmp_path / "book").at(1)


@pytest.mark.parametrize("content", [b"", b"nonsense", "half"])
def test_a_damaged_snapshot_is_told(tmp_path: Path, content: bytes | str) -> None:
    journal = write(tmp_path / "journal", [(0, [assignment("a", "emma", "basic", 0, 0)])])
    keeper = BookKeeper(journal, tmp_path / "book")
    keeper.at(1)
    keeper.save(now=True)
    (path,) = (tmp_path / "book").iterdir()
    path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StateError, match="The snapshot of the book cannot be used: it is damaged"):
        BookKeeper(journal, tmp_path / "book").at(1)
