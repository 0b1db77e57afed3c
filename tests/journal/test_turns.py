"""Several writers of one journal: they append in turns, and whatever one leaves behind, the next one settles."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stateside.core.errors import JournalLocked, OperatingError
from stateside.journal import Event, FileLog, JournalWriter, index
from stateside.journal.backends.files.segment import DurableEnd, segment_offsets
from tests.sizes import examples, sized

MakeEvents = Callable[..., list[Event]]

HEAD = """
import os, signal, sys, time, types
sys.modules["pandas"] = types.SimpleNamespace(__version__="0")  # the real one, which pyarrow imports, takes a second
from pathlib import Path
from stateside.journal import Event, JournalWriter
"""


@contextmanager
def process(script: str, *arguments: object) -> Iterator[Any]:
    command = [sys.executable, "-c", HEAD + script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def ids(folder: Path) -> list[str]:
    return [event.id for event in FileLog(folder).events()]


def sequences_of(folder: Path, entity: str) -> list[int | None]:
    return [event.sequence for event in FileLog(folder).events() if event.entity == entity]


def test_two_writers_append_in_turns_and_each_goes_on_behind_the_other(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as one, JournalWriter(tmp_path) as other:
        for number in range(0, 12, 3):
            assert one.append(make_events(2, number))["0"] == number + 2
            assert other.append(make_events(1, number + 2))["0"] == number + 3
    assert list(FileLog(tmp_path).events()) == make_events(12)


def test_a_writer_finds_the_segments_that_another_one_began(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as one, JournalWriter(tmp_path, segment_bytes_max=3_000) as other:
        for number in range(0, 40, 2):
            one.append(make_events(1, number))
            other.append(make_events(1, number + 1))
    assert list(FileLog(tmp_path).events()) == make_events(40)
    assert len(segment_offsets(tmp_path)) > 10


def test_the_end_that_a_writer_tells_is_that_of_its_last_turn(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as one, JournalWriter(tmp_path) as other:
        other.append(make_events(3))
        assert one.end["0"] == 0
        assert one.append(make_events(1, first=3)) == one.end == FileLog(tmp_path).end()


def test_repeats_of_the_same_events_by_two_writers_are_stored_once(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as one, JournalWriter(tmp_path) as other:
        receipt = one.append(make_events(2))
        one.append(make_events(1, first=2))
        for writer in (other, one):
            assert writer.append_unstored(make_events(3, first=2), since=receipt)["0"] == 5
    assert list(FileLog(tmp_path).events()) == make_events(5)


# What one leaves behind


class Killed(BaseException):
    """Stands for SIGKILL where the moment must be exact: nothing of ours catches it."""


@contextmanager
def killed_at(name: str, call: int = 1) -> Iterator[None]:
    """Let the process 'die' at the nth call of this function of `os` from now on."""
    real, calls = getattr(os, name), 0

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return real(*arguments, **options)

    with patch.object(os, name, count):
        yield


@pytest.mark.parametrize(
    ("function", "call", "kept"),
    [("pwrite", 2, False), ("pwrite", 3, False), ("fdatasync", 1, True), ("pwrite", 4, True)],
    ids=["before the frame", "inside the frame", "before its sync", "before the mark"],
)
def test_a_writer_that_dies_in_its_turn_leaves_its_frame_to_the_one_that_waits(
    tmp_path: Path, make_events: MakeEvents, function: str, call: int, kept: bool
) -> None:
    """The first write of a turn after another writer's is the note in the lock; a frame is two writes."""
    with JournalWriter(tmp_path) as dying, JournalWriter(tmp_path) as waiting:
        waiting.append(make_events(2))
        with killed_at(function, call), pytest.raises(Killed):
            dying.append(make_events(2, first=2))
        assert list(FileLog(tmp_path).events()) == make_events(2)
        waiting.append(make_events(1, first=4))
        assert ids(tmp_path) == ["e0", "e1", *(["e2", "e3"] if kept else []), "e4"]
        torn = [path.name for path in tmp_path.glob("*.torn-*")]
        assert bool(torn) == (function == "pwrite" and call == 3)


def test_a_segment_that_a_dying_writer_began_is_gone_on_with_whatever_one_s_own_limit_is(
    tmp_path: Path, make_events: MakeEvents
) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as dying, JournalWriter(tmp_path) as waiting:
        dying.append(make_events(1))
        waiting.append(make_events(1, first=1))
        with patch.object(JournalWriter, "_publish", side_effect=Killed), pytest.raises(Killed):
            dying.append(make_events(1, first=2))
        assert segment_offsets(tmp_path) == [0, 2]
        assert DurableEnd.read(tmp_path) == waiting._end
        waiting.append(make_events(1, first=2))
        assert list(FileLog(tmp_path).events()) == make_events(3)


def test_a_writer_s_own_accident_is_settled_at_its_next_turn(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as writer:
        receipt = writer.append(make_events(2))
        with killed_at("fdatasync"), pytest.raises(Killed):
            writer.append(make_events(2, first=2))
        writer.append_unstored(make_events(3, first=2), since=receipt)
    assert list(FileLog(tmp_path).events()) == make_events(5)


def test_what_a_failed_sync_left_is_written_again_by_the_next_one_and_the_failed_writer_takes_nothing_more(
    tmp_path: Path, make_events: MakeEvents
) -> None:
    with JournalWriter(tmp_path) as broken, JournalWriter(tmp_path) as other:
        broken.append(make_events(1))
        begin = broken._end.segment_bytes
        failing = patch.object(os, "fdatasync", side_effect=OSError(5, "Input/output error"))
        with failing, pytest.raises(OperatingError, match="failed to sync"):
            broken.append(make_events(1, first=1))
        frame = os.pread(broken._file, 10_000, begin)
        with patch.object(os, "pwrite", wraps=os.pwrite) as writes:
            other.append(make_events(1, first=2))
        assert (other._file, frame, begin) in [
            (call.args[0], bytes(call.args[1]), call.args[2]) for call in writes.mock_calls
        ]
        with pytest.raises(OperatingError, match="Open the journal again"):
            broken.append(make_events(1, first=3))
    assert list(FileLog(tmp_path).events()) == make_events(3)


def test_a_lock_that_was_deleted_is_not_held_by_two(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as one:
        one.append(make_events(1))
        (tmp_path / "lock").unlink()
        with JournalWriter(tmp_path) as other:
            other.append(make_events(1, first=1))
            one.append(make_events(1, first=2))
            with other._turns.take(), pytest.raises(JournalLocked), JournalWriter(tmp_path, wait_s_max=0):
                pass
            one._turns._wait_s_max = 0
            with other._turns.take(), pytest.raises(JournalLocked):
                one.append(make_events(1, first=3))
    assert list(FileLog(tmp_path).events()) == make_events(3)


def test_an_end_mark_that_was_deleted_is_made_again_and_used_by_all(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as one:
        one.append(make_events(1))
        (tmp_path / "end").unlink()
        with JournalWriter(tmp_path) as other:
            other.append(make_events(1, first=1))
            one.append(make_events(1, first=2))
            other.append(make_events(1, first=3))
            assert list(FileLog(tmp_path).events()) == make_events(4)


@pytest.mark.e2e
def test_a_fork_takes_turns_with_its_parent(tmp_path: Path, make_events: MakeEvents) -> None:
    script = """
writer = JournalWriter(Path(sys.argv[1]))
writer.append([Event("first", "emma", "call", 0, {})])
name = "child" if os.fork() == 0 else "parent"
for number in range(100):
    writer.append([Event(f"{name}-{number}", "emma", "call", 0, {})])
if name == "parent":
    os.wait()
    print("done", flush=True)
"""
    with process(script, tmp_path) as parent:
        assert parent.stdout.readline() == "done\n"
    found = ids(tmp_path)
    assert len(found) == 201
    for name in ("child", "parent"):
        assert [id_ for id_ in found if id_.startswith(name)] == [f"{name}-{number}" for number in range(100)]


@pytest.mark.e2e
def test_a_child_forked_in_the_middle_of_an_append_appends_once_its_parent_has_finished(tmp_path: Path) -> None:
    """The thread that leads the group commit, and holds its locks, does not exist in the child."""
    script = """
import threading
writer = JournalWriter(Path(sys.argv[1]))
parent, sync, syncing, forked = os.getpid(), os.fdatasync, threading.Event(), threading.Event()
def fdatasync(handle):
    if os.getpid() == parent:
        syncing.set()
        assert forked.wait(10)
    sync(handle)
os.fdatasync = fdatasync
def append(name):
    writer.append([Event(name, "emma", "call", 0, {})])
leader = threading.Thread(target=append, args=["leader"])
follower = threading.Thread(target=append, args=["follower"])
leader.start()
assert syncing.wait(10)
follower.start()
while not writer._group._line:
    pass
child = os.fork()
if child == 0:
    signal.alarm(20)
    append("child")
    done = threading.Event()
    writer.submit([Event("submitted", "emma", "call", 0, {})], lambda answer: done.set())
    os._exit(0 if done.wait(10) else 1)
forked.set()
leader.join()
follower.join()
append("parent")
assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
"""
    with process(script, tmp_path) as parent:
        assert parent.stdout.readline() == "done\n"
    assert sorted(ids(tmp_path)) == ["child", "follower", "leader", "parent", "submitted"]


# Waiting

PAUSED = """
writer = JournalWriter(Path(sys.argv[1]))
pause = os.fdatasync
def fdatasync(handle):
    print("in its turn", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    pause(handle)
os.fdatasync = fdatasync
writer.append([Event("paused", "emma", "call", 0, {})])
print("done", flush=True)
"""


@pytest.mark.e2e
def test_who_waits_for_a_paused_writer_gives_up_in_time_and_says_for_whom_it_waited(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, wait_s_max=0.3) as writer, process(PAUSED, tmp_path) as paused:
        assert paused.stdout.readline() == "in its turn\n"
        began = time.monotonic()
        with pytest.raises(JournalLocked) as locked:
            writer.append([Event("mine", "emma", "call", 0, {})])
        assert time.monotonic() - began >= 0.3
        assert f"Process {paused.pid} is appending to this journal" in str(locked.value)
        assert str(tmp_path) in str(locked.value)
        assert "Nothing was stored" in str(locked.value)
        with pytest.raises(JournalLocked):
            JournalWriter(tmp_path, wait_s_max=0)
        assert ids(tmp_path) == []
        os.kill(paused.pid, signal.SIGCONT)
        assert paused.stdout.readline() == "done\n"
        writer.append([Event("mine", "emma", "call", 0, {})])
    assert ids(tmp_path) == ["paused", "mine"]


@pytest.mark.e2e
def test_a_paused_writer_that_is_killed_leaves_the_turn_to_who_waits(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer, process(PAUSED, tmp_path) as paused:
        assert paused.stdout.readline() == "in its turn\n"
        paused.kill()
        writer.append([Event("mine", "emma", "call", 0, {})])
    assert ids(tmp_path) == ["paused", "mine"]


# Killed at any moment

PRODUCER = """
name, first, segment_bytes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with JournalWriter(Path(sys.argv[1]), segment_bytes_max=segment_bytes) as writer:
    while True:
        numbers = range(first, first + 1 + first % 3)
        receipt = writer.append([Event(f"{name}.{n}", name, "call", n, {"n": n}) for n in numbers])
        first = numbers.stop
        print(first, receipt["0"], flush=True)
"""


@pytest.mark.parametrize("producers", sized([3], [2, 3]))
@pytest.mark.e2e
def test_producers_killed_at_any_moment_lose_no_acknowledged_event_double_none_and_keep_their_order(
    tmp_path: Path, producers: int
) -> None:
    """One is killed after the other, at seeded moments, while the others go on; a killed one asks where it stands."""
    moments, acknowledged, seen = random.Random(producers), defaultdict[str, int](int), list[Any]()
    with ExitStack() as running:
        for kill in range(6):
            name = f"p{kill % producers}-{kill}"
            child = running.enter_context(process(PRODUCER, tmp_path, name, 0, 3_000 + 3_000 * (kill % 2)))
            acknowledged[name] = int(child.stdout.readline().split()[0])
            time.sleep(moments.uniform(0.01, 0.15))
            if kill >= producers - 1:
                child.kill()
                lines = [line for line in child.stdout if line.endswith("\n")]
                acknowledged[name] = int(lines[-1].split()[0]) if lines else acknowledged[name]
            prefix = ids(tmp_path)
            assert prefix[: len(seen)] == seen, "an offset that a reader saw has another event now"
            seen = prefix
    JournalWriter(tmp_path).close()
    found = ids(tmp_path)
    assert found[: len(seen)] == seen
    for name, count in acknowledged.items():
        numbers = [int(id_.partition(".")[2]) for id_ in found if id_.startswith(f"{name}.")]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count > 0
        assert sequences_of(tmp_path, name) == list(range(1, len(numbers) + 1))
    assert len(segment_offsets(tmp_path)) > 2


@pytest.mark.e2e
def test_every_receipt_is_the_position_just_after_its_own_events(tmp_path: Path) -> None:
    receipts: dict[str, int] = {}
    with ExitStack() as running:
        children = [running.enter_context(process(PRODUCER, tmp_path, f"p{n}", 0, 15_000)) for n in range(2)]
        for _ in range(40):
            for name, child in enumerate(children):
                first, receipt = child.stdout.readline().split()
                receipts[f"p{name}.{int(first) - 1}"] = int(receipt)
    found = ids(tmp_path)
    assert {id_: found.index(id_) + 1 for id_ in receipts} == receipts


# Any order of appends, deaths and openings


class Writers(RuleBasedStateMachine):
    """Three writers that append, die at any call to the operating system, and are opened again; a reader looks on."""

    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        patched = self.stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("ENTITIES_UNWRITTEN_MAX", "EVENTS_UNWRITTEN_MAX", "EVENTS_READ_MAX"):
            patched.setattr(index, name, 2)
        self.folder = Path(self.stack.enter_context(TemporaryDirectory(prefix="stateside-turns-")))
        self.writers: dict[int, JournalWriter] = {}
        self.acknowledged: list[list[str]] = []
        self.tried: set[str] = set()
        self.seen: list[str] = []
        self.number = 0

    @rule(who=st.integers(0, 2), count=st.integers(1, 3))
    def append(self, who: int, count: int) -> None:
        events = self._events(who, count)
        receipt = self._writer(who).append(events)["0"]
        self.acknowledged.append([event.id for event in events])
        assert ids(self.folder)[receipt - count : receipt] == self.acknowledged[-1]

    @rule(
        who=st.integers(0, 2),
        count=st.integers(1, 3),
        function=st.sampled_from(["pwrite", "fdatasync", "fsync", "open", "truncate", "pread"]),
        call=st.integers(1, 5),
    )
    def die(self, who: int, count: int, function: str, call: int) -> None:
        """A death at the nth such call, if the append comes so far."""
        events = self._events(who, count)
        try:
            with killed_at(function, call):
                self._writer(who).append(events)
        except Killed:
            self.writers.pop(who, None)
        else:
            self.acknowledged.append([event.id for event in events])

    @rule(who=st.integers(0, 2))
    def close(self, who: int) -> None:
        if who in self.writers:
            self.writers.pop(who).close()

    @rule()
    def tidy_up(self) -> None:
        """Somebody takes the lock for a forgotten file."""
        (self.folder / "lock").unlink(missing_ok=True)

    @rule()
    def lose_the_index(self) -> None:
        shutil.rmtree(self.folder / "sequences", ignore_errors=True)

    @invariant()
    def nothing_is_lost_doubled_or_changed(self) -> None:
        found = ids(self.folder)
        assert found[: len(self.seen)] == self.seen
        self.seen = found
        assert len(set(found)) == len(found)
        assert set(found) <= self.tried
        assert {id_ for append in self.acknowledged for id_ in append} <= set(found)
        for entity in ("emma", "ben"):
            assert sequences_of(self.folder, entity) == list(range(1, len(sequences_of(self.folder, entity)) + 1))

    def teardown(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.stack.close()

    def _writer(self, who: int) -> JournalWriter:
        if who not in self.writers:
            self.writers[who] = JournalWriter(self.folder, segment_bytes_max=(1, 2_500, 4_000)[who], wait_s_max=0)
        return self.writers[who]

    def _events(self, who: int, count: int) -> list[Event]:
        numbers = range(self.number, self.number + count)
        events = [Event(f"{who}.{number}", ("emma", "ben")[number % 2], "call", 0, {}) for number in numbers]
        self.number += count
        self.tried.update(event.id for event in events)
        return events


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=examples(8, 60), stateful_step_count=30, deadline=None)
