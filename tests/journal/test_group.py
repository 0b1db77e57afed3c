"""Group commit: threads that share a writer share its syncs, and nothing else."""

import dis
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from stateside.core.errors import EntityElsewhere, EventRefused, IdConflict, JournalAway, StatesideError
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter, group_commit
from stateside.journal.append_batch import Answer, Answers, Appended, AppendRequest, EventPlace
from stateside.journal.group_commit import GroupCommit
from tests.waiting import WAIT_S_MAX, wait_until


def event(id_: str) -> Event:
    return Event(id_, "emma", "call", 0, {})


@pytest.fixture(autouse=True)
def plain_interrupts() -> Iterator[None]:
    """A Spark session of an earlier test leaves a handler of its own, which first asks its JVM."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Disk:
    """Stores what it is given once it is let, and notes what came together."""

    def __init__(self) -> None:
        self.stored: list[list[str]] = []
        self.free = threading.Event()
        self.busy = threading.Event()
        self.error: BaseException | None = None
        self.refusal: StatesideError = EventRefused("bad")

    def store(self, requests: Sequence[AppendRequest]) -> Answers:
        self.busy.set()
        assert self.free.wait(10)
        if self.error is not None:
            raise self.error
        ids = [event.id for request in requests for event in request.events]
        if "bad" in ids:
            raise self.refusal
        first = sum(map(len, self.stored))
        self.stored.append(ids)
        ends = accumulate((len(request.events) for request in requests), initial=first)
        return [Appended(Position.of({"0": end}), lambda number: EventPlace("0", number)) for end in list(ends)[1:]]


def offset(together: GroupCommit, *ids: str) -> int:
    """Append these; the offset behind them."""
    answer = together.append(AppendRequest([event(id_) for id_ in ids]))
    assert isinstance(answer, Appended)
    return answer.position["0"]


def appended(disk: Disk, appends: list[list[str]]) -> list[int | BaseException]:
    """What each append is answered, when the first one is being stored while the others come, in this order."""
    together = GroupCommit(disk.store)

    def append(ids: list[str]) -> int | BaseException:
        try:
            return offset(together, *ids)
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
        return [answer.result(WAIT_S_MAX) for answer in answers]


def test_what_comes_while_the_disk_is_busy_is_stored_together_and_each_is_told_its_own_end() -> None:
    disk = Disk()
    assert appended(disk, [["a"], ["b", "c"], ["d"], ["e", "f", "g"]]) == [1, 3, 4, 7]
    assert disk.stored == [["a"], ["b", "c", "d", "e", "f", "g"]]


@pytest.mark.parametrize("refusal", [EventRefused("bad"), EntityElsewhere("it moved while it stood in line")])
def test_a_bad_event_refuses_its_own_append_and_no_other(refusal: StatesideError) -> None:
    disk = Disk()
    disk.refusal = refusal
    first, second, bad, third = appended(disk, [["a"], ["b"], ["c", "bad"], ["d"]])
    assert (first, second, third) == (1, 2, 3)
    assert bad is refusal
    assert [id_ for ids in disk.stored for id_ in ids] == ["a", "b", "d"]


def test_not_more_are_stored_together_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "EVENTS_TOGETHER_MAX", 3)
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


def test_who_is_interrupted_in_line_goes_and_nothing_of_it_is_stored() -> None:
    disk = Disk()
    first, interrupted, third = interrupted_second(disk, until_taken=False)
    assert (first, third) == (1, 2)
    assert isinstance(interrupted, KeyboardInterrupt)
    assert disk.stored == [["a"], ["c"]]


def test_who_is_interrupted_while_others_store_for_it_goes_and_they_are_told_and_woken() -> None:
    disk = Disk()
    first, interrupted, third = interrupted_second(disk, until_taken=True)
    assert (first, third) == (1, 4)
    assert isinstance(interrupted, KeyboardInterrupt)
    assert disk.stored == [["a"], ["z", "b", "c"]]


def interrupted_second(disk: Disk, *, until_taken: bool) -> list[int | BaseException]:
    """The answers to a, b and c, when b comes from the main thread, which is interrupted.

    It stands in line then, or (`until_taken`) z, which came before it, is storing it.
    """
    together = GroupCommit(disk.store)
    answers: dict[str, Future[int]] = {}

    def others() -> None:
        until(lambda: len(together._line) == (2 if until_taken else 1))  # b is there
        answers["c"] = pool.submit(offset, together, "c")
        until(lambda: len(together._line) == (3 if until_taken else 2))
        if until_taken:
            disk.busy.clear()
            disk.free.set()
            disk.free.clear()
            assert disk.busy.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(4) as pool:
        answers["a"] = pool.submit(offset, together, "a")
        assert disk.busy.wait(10)
        if until_taken:
            answers["z"] = pool.submit(offset, together, "z")
            until(lambda: len(together._line) == 1)
        interrupting = pool.submit(others)
        interrupt: BaseException | None = None
        try:
            offset(together, "b")
        except KeyboardInterrupt as error:
            interrupt = error
        disk.free.set()
        interrupting.result(WAIT_S_MAX)
        assert interrupt is not None
        return [answers["a"].result(WAIT_S_MAX), interrupt, answers["c"].result(WAIT_S_MAX)]


def test_events_that_cannot_be_counted_are_told_to_their_own_thread_and_nobody_sleeps_for_ever() -> None:
    disk = Disk()
    together = GroupCommit(disk.store)
    first = started(lambda: offset(together, "a"))
    assert disk.busy.wait(10)
    others = [started(lambda: offset(together, "b"))]
    until(lambda: len(together._line) == 1)
    culprit = started(lambda: together.append(AppendRequest(event(id_) for id_ in "c")))  # type: ignore[arg-type]
    until(lambda: culprit.done() or len(together._line) == 2)
    others.append(started(lambda: offset(together, "d")))
    disk.free.set()
    assert [each.result(WAIT_S_MAX) for each in (first, *others)] == [1, 2, 3]
    assert isinstance(culprit.exception(10), TypeError)


@pytest.mark.parametrize("refused", [False, True])
def test_whoever_is_interrupted_at_any_moment_leaves_nobody_asleep(refused: bool) -> None:
    moment = 1
    while interrupted_at(moment, refused=refused):
        moment += 1
    assert moment > 50


def interrupted_at(moment: int, *, refused: bool) -> bool:
    """Interrupt one of several appends at the nth moment in which a signal may come; whether there is such a moment.

    It is the first in line: while another one is stored it comes, then two more, and a last one while it stores these
    itself. `refused`: one of them is bad, so that it stores each by itself.
    """
    disk, interrupt = Disk(), Interrupt(moment)
    calls: list[str] = []
    answers: dict[str, Future[object]] = {}

    def store(requests: Sequence[AppendRequest]) -> Answers:
        calls.append("")
        if len(calls) == 2:
            answers["last"] = started(lambda: offset(together, "last"))
            until(lambda: len(together._line) > 0)
        return disk.store(requests)

    together = GroupCommit(store)
    answers["first"] = started(lambda: offset(together, "first"))
    assert disk.busy.wait(10)

    def waiting(number: int) -> bool:
        return len(together._line) == number or answers["own"].done()

    for number, id_ in enumerate(("own", "bad" if refused else "good", "other"), 1):
        act = partial(offset, together, id_)
        answers[id_] = started(interrupt.around(act) if id_ == "own" else act)
        until(partial(waiting, number))
    disk.free.set()
    for id_, answer in list(answers.items()):
        assert isinstance(answer.exception(10), KeyboardInterrupt | EventRefused | JournalAway | None), (moment, id_)
    assert started(lambda: offset(together, "afterwards")).result(WAIT_S_MAX), moment
    if "last" in answers:
        assert answers["last"].result(WAIT_S_MAX), moment
    return interrupt.came


class Interrupt:
    """A signal to a thread at the nth moment in which Python looks for one, in `group`: after calls, and in loops."""

    def __init__(self, moment: int) -> None:
        self.came = False
        self._left = moment
        self._before: dict[FrameType, str] = {}

    def around(self, act: Callable[[], object]) -> Callable[[], object]:
        def interrupted() -> object:
            sys.settrace(self._trace)
            try:
                return act()
            finally:
                sys.settrace(None)

        return interrupted

    def _trace(self, frame: FrameType, what: str, _: Any) -> Any:
        if frame.f_code.co_filename != group_commit.__file__ or self.came:
            return None
        frame.f_trace_opcodes = True
        if what == "opcode":
            looks = self._before.get(frame, "").startswith(("CALL", "JUMP_BACKWARD", "RESUME"))
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._left -= looks
            if looks and not self._left:
                self.came = True
                raise KeyboardInterrupt
        return self._trace


def started(act: Callable[[], object]) -> Future[object]:
    """What a thread of its own comes to; if it sleeps for ever nobody waits for it."""
    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_threads_that_share_a_writer_need_fewer_syncs_than_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = []
    with JournalWriter(tmp_path) as writer, ThreadPoolExecutor(16) as pool:
        store = writer._store_frame

        def slow(batch: pa.RecordBatch) -> int:
            frames.append(batch)
            time.sleep(0.002)
            return store(batch)

        monkeypatch.setattr(writer, "_store_frame", slow)
        receipts = list(pool.map(lambda number: writer.append([event(f"{number}")])["0"], range(160)))
    found = list(FileLog(tmp_path).events())
    assert [found[receipt - 1].id for receipt in receipts] == [f"{number}" for number in range(160)]
    assert [each.sequence for each in found] == list(range(1, 161))
    assert len(frames) < 80


def test_submitted_appends_share_frames_with_threads_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    answers: dict[str, Answer] = {}
    with JournalWriter(tmp_path) as writer, ThreadPoolExecutor(8) as pool:
        writer.append([event("stored")])
        other = Event("stored", "emma", "another type", 0, {})
        for number in range(400):
            wanted = other if number == 7 else event(f"s{number}")
            writer.submit([wanted], partial(answers.__setitem__, wanted.id))
            if number % 40 == 0:
                list(pool.map(writer.append, [[event(f"t{number}-{n}")] for n in range(8)]))
        wait_until(lambda: len(answers) == 400)
    found = [each.id for each in FileLog(tmp_path).events()]
    assert isinstance(answers.pop("stored"), IdConflict)
    for id_, answer in answers.items():
        assert isinstance(answer, Appended)
        assert found[answer.receipt(0).one() - 1] == id_
    assert len(found) == len(set(found)) == 1 + 399 + 80
    assert len(list(FileLog(tmp_path).batches(0, len(found)))) < 300, "one sync for several appends"


def test_a_writer_takes_submitted_appends_again_after_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "IDLE_S", 0.01)
    answers: list[Answer] = []
    with JournalWriter(tmp_path) as writer:
        for number in range(3):
            writer.submit([event(f"{number}")], answers.append)
            wait_until(lambda: len(answers) == number + 1)  # noqa: B023
            wait_until(lambda: writer._group._helper is None)
    assert [answer.position["0"] for answer in answers if isinstance(answer, Appended)] == [1, 2, 3]


def test_an_append_that_gets_no_thread_is_refused_and_the_writer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, answers = Disk(), list[Answer]()
    together = GroupCommit(disk.store)
    monkeypatch.setattr(group_commit, "IDLE_S", 0.01)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk.free.set()
    for led in (False, True):
        with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
            waiting = None
            if led:  # the refused append would have led after this thread
                disk.free.clear()
                disk.busy.clear()
                waiting = pool.submit(offset, together, "thread")
                assert disk.busy.wait(WAIT_S_MAX)
            patched.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError, match="new thread"):
                together.submit(AppendRequest([event("refused")]), answers.append)
            disk.free.set()
            assert waiting is None or waiting.result(WAIT_S_MAX)
        together.submit(AppendRequest([event(f"{led}")]), answers.append)
        wait_until(lambda: len(answers) == 1 + led)  # noqa: B023
        wait_until(lambda: together._helper is None)
    assert disk.stored == [["False"], ["thread"], ["True"]]


FORKED = """
import os, threading
from stateside.journal.group_commit import GroupCommit
from stateside.journal import Event
from stateside.journal.append_batch import AppendRequest

together = GroupCommit(lambda requests: [RuntimeError("answer")] * len(requests))

def append():
    told = threading.Event()
    together.submit(AppendRequest([Event("a", "emma", "call", 0, {})]), lambda answer: told.set())
    assert told.wait(2), "no answer"

append()
child = os.fork()
append()
append()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""


def test_a_child_forked_while_a_helper_waits_has_one_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
