"""Views: one process follows, any number read; made again when they are gone, damaged or of another journal."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stateside.core.errors import SetupError, ViewsBusy
from stateside.core.positions import Position
from stateside.core.storage import try_lock
from stateside.journal import Event, JournalWriter
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.queries import Queries, QueryViews, query_views
from stateside.journal.queries import generation as generations
from stateside.journal.queries.format import DATABASES
from tests.sizes import not_in_fast, sized
from tests.waiting import wait_until


def event(number: int) -> Event:
    return Event(f"e{number}", f"c{number % 50}", "call", number, {"n": number}, (f"t{number % 3}",))


def append(folder: Path, numbers: range) -> None:
    with JournalWriter(folder / "journal", durability="written") as writer:
        writer.append([event(number) for number in numbers])


def opened(folder: Path) -> QueryViews:
    return QueryViews(FileJournal(folder / "journal"), folder / "views")


def tagged(views: QueryViews, tag: str = "t1") -> list[int]:
    return [found.event.payload["n"] for found in Queries(views.stream, views).tagged(tag).current()]


def test_while_another_process_follows_nobody_else_does_and_everybody_reads(tmp_path: Path) -> None:
    append(tmp_path, range(30))
    with opened(tmp_path) as views:
        views.follow()
        append(tmp_path, range(30, 60))
        lock = try_lock(tmp_path / "views" / "lock")
        assert lock is not None
        for call in (views.follow, views.rebuild):
            with pytest.raises(ViewsBusy):
                call()
        assert tagged(views) == list(range(1, 60, 3))
        os.close(lock)
        assert views.follow() == Position.parse("0:60")


@pytest.mark.parametrize("size", [0, 4_096, 8_192, 12_000])
def test_views_that_are_cut_short_under_who_reads_end_no_process(tmp_path: Path, size: int) -> None:
    append(tmp_path, range(30))
    with opened(tmp_path) as views:
        views.follow()
        generation = generations.current(tmp_path / "views")
        assert generation is not None
        os.truncate(generation / "data.mdb", size)
        assert tagged(views) == list(range(1, 30, 3))
        assert views.follow() == Position.parse("0:30")
        assert tagged(views) == list(range(1, 30, 3))


@not_in_fast("whole processes")
def test_who_follows_for_good_takes_over_when_the_other_process_ends(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    with opened(tmp_path) as views:
        (tmp_path / "views").mkdir()
        lock, stop = try_lock(tmp_path / "views" / "lock"), threading.Event()
        assert lock is not None
        follower = threading.Thread(target=views.keep_following, args=[stop])
        follower.start()
        time.sleep(0.1)
        assert views.position() == Position.start()
        os.close(lock)
        wait_until(lambda: views.position() == Position.parse("0:10"))
        append(tmp_path, range(10, 20))
        wait_until(lambda: views.position() == Position.parse("0:20"))
        stop.set()
        follower.join()


def test_who_follows_for_good_begins_anew_when_the_views_or_the_journal_are_replaced(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    with opened(tmp_path) as views:
        stop = threading.Event()
        follower = threading.Thread(target=views.keep_following, args=[stop])
        follower.start()
        try:
            wait_until(lambda: views.position() == Position.parse("0:10"))
            generation = generations.current(tmp_path / "views")
            assert generation is not None
            shutil.rmtree(generation)
            wait_until(lambda: views.position() == Position.parse("0:10"))
            shutil.rmtree(tmp_path / "journal")
            append(tmp_path, range(40))
            wait_until(lambda: views.position() == Position.parse("0:40"))
            assert tagged(views) == list(range(1, 40, 3))
        finally:
            stop.set()
            follower.join()


def test_a_rebuild_tells_how_far_it_is_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_views, "TRANSACTION_EVENTS", 10)
    append(tmp_path, range(35))
    told: list[tuple[int, int]] = []
    with opened(tmp_path) as views:
        assert views.rebuild(lambda done, total: told.append((done, total))) == Position.parse("0:35")
        assert told == [(10, 35), (20, 35), (30, 35), (35, 35)]
        stop = threading.Event()
        assert views.rebuild(lambda *_: stop.set(), stop) == Position.parse("0:10")
        assert tagged(views) == list(range(1, 35, 3))
        assert views.follow() == Position.parse("0:35")


def test_views_of_another_journal_are_neither_read_nor_kept(tmp_path: Path) -> None:
    append(tmp_path, range(30))
    with opened(tmp_path) as views:
        views.follow()
    shutil.rmtree(tmp_path / "journal")
    append(tmp_path, range(60, 100))
    with opened(tmp_path) as views:
        assert views.position() == Position.start()
        assert tagged(views) == list(range(61, 100, 3))
        views.follow()
        assert tagged(views) == list(range(61, 100, 3))


def test_views_of_another_life_of_the_same_journal_are_made_anew(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    shutil.copytree(tmp_path / "journal", tmp_path / "copy")
    append(tmp_path, range(10, 20))
    with opened(tmp_path) as views:
        views.follow()
    shutil.rmtree(tmp_path / "journal")
    shutil.copytree(tmp_path / "copy", tmp_path / "journal")
    with opened(tmp_path) as views:
        assert tagged(views) == [1, 4, 7]  # the views end behind the journal
        append(tmp_path, range(100, 130))
        views.follow()
        assert tagged(views) == [1, 4, 7, *range(100, 130, 3)]


@pytest.mark.parametrize("following", [False, True])
def test_what_another_life_of_the_journal_has_where_the_views_know_of_nothing_is_not_left_out(
    tmp_path: Path, following: bool
) -> None:
    """The journal was put back from a copy, and went on beyond where the views were."""
    append(tmp_path, range(10))
    shutil.copytree(tmp_path / "journal", tmp_path / "copy")
    append(tmp_path, range(12, 42, 3))  # none with the tag that is asked for
    with opened(tmp_path) as views:
        views.follow()
    shutil.rmtree(tmp_path / "journal")
    shutil.copytree(tmp_path / "copy", tmp_path / "journal")
    append(tmp_path, range(100, 130))
    with opened(tmp_path) as views:
        if following:
            views.follow()
        assert tagged(views) == [1, 4, 7, *range(100, 130, 3)]


@pytest.mark.parametrize("content", [b"", b"no environment", b"\0" * 40_000])
def test_a_file_that_is_no_environment_is_replaced(tmp_path: Path, content: bytes) -> None:
    append(tmp_path, range(10))
    with opened(tmp_path) as views:
        views.follow()
    path = generations.current(tmp_path / "views")
    assert path is not None
    (path / "data.mdb").write_bytes(content)
    with opened(tmp_path) as views:
        assert tagged(views) == [1, 4, 7]
        assert views.follow() == Position.parse("0:10")
        assert tagged(views) == [1, 4, 7]
        assert not path.exists()


def test_a_pointer_that_names_nothing_is_replaced(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    with opened(tmp_path) as views:
        views.follow()
    for text in ("99", "../x", ""):
        (tmp_path / "views" / "current").write_text(text)
        with opened(tmp_path) as views:
            assert tagged(views) == [1, 4, 7]
            assert views.follow() == Position.parse("0:10")


def test_a_folder_that_cannot_be_written_is_told_and_queries_go_on(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "1").write_text("a file where the first environment would go")
    (tmp_path / "views" / "2").mkdir()
    with opened(tmp_path) as views, pytest.MonkeyPatch.context() as patch:
        patch.setattr(generations, "MAP_BYTES", (1 << 16,))  # as a disk that is full after 64 KiB
        append(tmp_path, range(10, 5_000))
        with pytest.raises(SetupError, match=r"cannot be written.*Queries go on"):
            views.follow()
        assert tagged(views) == list(range(1, 5_000, 3))


def test_a_second_views_object_in_one_process_is_told_to_share(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    with opened(tmp_path) as views, opened(tmp_path) as second:
        views.follow()
        with pytest.raises(ViewsBusy, match="Share"):
            second.position()


CHILD = """
import sys, threading
from pathlib import Path
from stateside.journal.queries import QueryViews, query_views, query_views
from stateside.journal.queries.format import DATABASES
from stateside.journal.backends.files.file_journal import FileJournal
query_views.TRANSACTION_EVENTS, query_views.TRANSACTION_S_MIN = 500, 0.01
folder = Path(sys.argv[1])
opened = QueryViews(FileJournal(folder / "journal"), folder / "views")
print("ready", flush=True)
opened.keep_following(threading.Event())
"""


@pytest.mark.e2e
def test_a_follower_that_is_killed_at_any_moment_leaves_views_that_are_right(tmp_path: Path) -> None:
    chosen, count = random.Random(7), 0
    with opened(tmp_path) as views:
        for _ in range(sized(4, 40)):
            child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                deadline = time.monotonic() + chosen.uniform(0.02, 0.4)
                while time.monotonic() < deadline:
                    append(tmp_path, range(count, count + 700))
                    count += 700
                    assert tagged(views) == list(range(1, count, 3))
            finally:
                child.send_signal(signal.SIGKILL)
                child.wait()
                assert child.stdout is not None
                child.stdout.close()
            before = views.position()
            assert tagged(views, "t2") == list(range(2, count, 3))
            assert views.position() == before
        assert views.follow() == Position.of({"0": count})
        for entity in range(50):
            found = [each.event for each in Queries(views.stream, views).entity(f"c{entity}").current()]
            assert found == [event(number) for number in range(entity, count, 50)]


@not_in_fast("every value of the views; some damages of them are tried in test_bad_input")
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "changed"])
def test_whichever_value_is_lost_or_changed_no_answer_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(query_views, "TRANSACTION_EVENTS", 30)
    append(tmp_path, range(100))
    with opened(tmp_path) as views:
        views.follow()
        for name in DATABASES:
            for at in range(0, 60, sized(20, 1)):
                _damage(views, name, at, lost=lost)
                _check_all(views, 100)
                views.follow()


def _damage(views: QueryViews, name: str, at: int, *, lost: bool) -> None:
    generation = views._current()
    assert generation is not None
    with generation.environment.begin(write=True) as transaction:
        database = generation.databases[name]
        keys = list(transaction.cursor(database).iternext(values=False))
        key = keys[at % len(keys)]
        value = bytes(transaction.get(key, db=database) or b"")
        if lost:
            transaction.delete(key, db=database)
        else:
            transaction.put(key, value[:at] + bytes([value[at % len(value)] ^ 1]) + value[at + 1 :], db=database)


def _check_all(views: QueryViews, count: int) -> None:
    queries = Queries(views.stream, views)
    for tag in range(3):
        assert tagged(views, f"t{tag}") == list(range(tag, count, 3))
    for entity in range(50):
        found = [each.event for each in queries.entity(f"c{entity}").current()]
        assert found == [event(number) for number in range(entity, count, 50)]
    assert [each.event for each in queries.between(20, 70).current()] == [event(number) for number in range(20, 70)]
    assert [born.entity for born in queries.born().current()] == [f"c{number}" for number in range(50)]
    assert list(queries.entities().current()) == sorted(f"c{number}" for number in range(50))
