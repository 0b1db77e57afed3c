"""Group commit: threads that share a writer share its syncs, and nothing else."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stateside.errors import EventRefused, JournalAway
from stateside.journal import Event, Journal, JournalWriter, group
from stateside.journal.group import Group, Receipts


def event(id_: str) -> Event:
    return Event(id_, "emma", "call", 0, {})


class Disk:
    """Stores what it is given once it is let, and notes what came together."""

    def __init__(self) -> None:
        self.stored: list[list[str]] = []
        self.free = threading.Event()
        self.busy = threading.Event()
        self.error: BaseException | None = None

    def store(self, events: Sequence[Event]) -> Receipts[int]:
        self.busy.set()
        assert self.free.wait(10)
        if self.error is not None:
            raise self.error
        if any(event.id == "bad" for event in events):
            raise EventRefused("bad")
        self.stored.append([event.id for event in events])
        first = sum(map(len, self.stored[:-1]))
        return lambda low, high: first + high


def appended(disk: Disk, appends: list[list[str]]) -> list[int | BaseException]:
    """What each append is answered, when the first one is being stored while the others come, in this order."""
    together = Group(disk.store)

    def append(ids: list[str]) -> int | BaseException:
        try:
            return together.append([event(id_) for id_ in ids])
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(appends)) as pool:
        answers = []
        for number, ids in enumerate(appends):
            answers.append(pool.submit(append, ids))
            assert disk.busy.wait(10)
            while len(together._line) < number:
                time.sleep(0.001)
        disk.free.set()
        return [answer.result(10) for answer in answers]


def test_what_comes_while_the_disk_is_busy_is_stored_together_and_each_is_told_its_own_end() -> None:
    disk = Disk()
    assert appended(disk, [["a"], ["b", "c"], ["d"], ["e", "f", "g"]]) == [1, 3, 4, 7]
    assert disk.stored == [["a"], ["b", "c", "d", "e", "f", "g"]]


def test_a_bad_event_refuses_its_own_append_and_no_other() -> None:
    disk = Disk()
    first, second, bad, third = appended(disk, [["a"], ["b"], ["c", "bad"], ["d"]])
    assert (first, second, third) == (1, 2, 3)
    assert isinstance(bad, EventRefused)
    assert [id_ for ids in disk.stored for id_ in ids] == ["a", "b", "d"]


def test_not_more_are_stored_together_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "EVENTS_TOGETHER_MAX", 3)
    disk = Disk()
    assert appended(disk, [["a"], ["b", "c"], ["d"], ["e"], ["f", "g", "h", "i"], ["j"]]) == [1, 3, 4, 5, 9, 10]
    assert disk.stored == [["a"], ["b", "c", "d"], ["e"], ["f", "g", "h", "i"], ["j"]]


def test_whoever_waits_is_told_when_the_journal_is_away() -> None:
    disk = Disk()
    disk.error = JournalAway("the disk is full")
    assert {str(answer) for answer in appended(disk, [["a"], ["b"], ["c"]])} == {"the disk is full."}


def test_an_interrupt_reaches_its_own_thread_and_the_others_are_told_of_it() -> None:
    disk = Disk()
    disk.error = KeyboardInterrupt()
    first, second, third = appended(disk, [["a"], ["b"], ["c"]])
    assert isinstance(first, KeyboardInterrupt)
    assert isinstance(second, KeyboardInterrupt)  # it leads for the third
    assert isinstance(third, JournalAway)


def test_threads_that_share_a_writer_need_fewer_syncs_than_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = []
    with JournalWriter(tmp_path) as writer, ThreadPoolExecutor(16) as pool:
        store = writer._store

        def slow(batch: object) -> None:
            frames.append(batch)
            time.sleep(0.002)
            store(batch)

        monkeypatch.setattr(writer, "_store", slow)
        receipts = list(pool.map(lambda number: writer.append([event(f"{number}")])["0"], range(160)))
    found = list(Journal(tmp_path).events())
    assert [found[receipt - 1].id for receipt in receipts] == [f"{number}" for number in range(160)]
    assert [each.sequence for each in found] == list(range(1, 161))
    assert len(frames) < 80
