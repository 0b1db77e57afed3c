"""How soon a tail learns of something new, where files are told of and where they are not."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from stateside.core.layout import Layout
from stateside.replica import tail as tail_module
from stateside.replica.tail import Tail, Waking
from tests.waiting import wait_until

from .spark_job import Job, answered, has

pytestmark = pytest.mark.e2e


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def rename_in(folder: Path, name: str) -> None:
    """As Spark does, but from where nobody watches: one thing is told of, once the file is there."""
    outside = folder.parents[1] / f".{folder.name}-{name}.tmp"
    outside.touch()
    outside.rename(folder / name)


def waited_s(each: Waking, stop: threading.Event, *, found: bool = False) -> float:
    begun_s = time.monotonic()
    each.wait(stop, found=found)
    return time.monotonic() - begun_s


def grown(each: Waking, stop: threading.Event) -> None:
    """Let the pauses grow as long as they get."""
    for _ in range(8):
        each.wait(stop, found=False)


def drain(each: Waking, stop: threading.Event) -> None:
    """Until nothing is told any more of what was done before."""
    each.wait(stop, found=True)
    while each._told:
        each.wait(stop, found=True)


def trusting(folder: Path, stop: threading.Event) -> Waking:
    """One that found a batch after it was told of it."""
    each = Waking([folder])
    each.wait(stop, found=False)
    rename_in(folder, "0")
    while not each._told:
        each.wait(stop, found=False)
    each.wait(stop, found=True)
    return each


def wait_for(file: Path, each: Waking, stop: threading.Event) -> None:
    """Wait in the longest pauses until the file is there; what is told of others may end some of them before."""
    while not file.exists():
        each._trusted, each._pause_s = True, 10.0
        each.wait(stop, found=False)


def test_a_file_that_is_renamed_in_ends_a_long_pause(
    tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "TOLD_PAUSE_S_MAX", 10.0)
    each = trusting(tmp_path, stop)
    drain(each, stop)
    threading.Timer(0.3, rename_in, (tmp_path, "1")).start()
    wait_for(tmp_path / "1", each, stop)
    assert each._told
    each.close()


def test_pauses_stay_short_until_a_batch_was_found_that_had_been_told_of(tmp_path: Path, stop: threading.Event) -> None:
    untold = Waking([tmp_path / "nothing is told here"])
    grown(untold, stop)
    assert untold._pause_s == tail_module.PAUSE_S_MAX
    told = trusting(tmp_path, stop)
    grown(told, stop)
    assert told._pause_s == tail_module.TOLD_PAUSE_S_MAX
    told.wait(stop, found=True)  # and one that nobody told of
    grown(told, stop)
    assert told._pause_s == tail_module.PAUSE_S_MAX
    told.close()


def test_a_folder_that_comes_later_or_is_replaced_is_watched_from_then_on(
    tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "TOLD_PAUSE_S_MAX", 10.0)
    root, commits = tmp_path / "checkpoint", tmp_path / "checkpoint" / "commits"
    root.mkdir()
    each = Waking([root, commits])
    each.wait(stop, found=False)
    for number in range(3):
        if commits.exists():
            shutil.rmtree(commits)
        commits.mkdir()
        drain(each, stop)
        threading.Timer(0.2, rename_in, (commits, str(number))).start()
        wait_for(commits / str(number), each, stop)
        assert each._told
    each.close()


@pytest.mark.timeout(60)
def test_a_pause_ends_when_the_tail_is_to_stop(
    tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "PAUSE_S_MAX", 600.0)
    stop.set()
    for folders in ([tmp_path], []):
        each = Waking(folders)
        each._pause_s = 600.0
        each.wait(stop, found=False)
        each.close()


def test_batches_are_visible_soon_after_their_commit_with_and_without_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is asked than that polling would be slower: figures are for `make bench`."""
    for told in (True, False):
        job = Job(Layout(tmp_path / str(told)).view("spending"))
        tail, stop = Tail(job.view), threading.Event()
        monkeypatch.setattr(tail, "_folders", tail._folders if told else list)
        thread = threading.Thread(target=tail.run, args=(stop,))
        thread.start()
        for number in range(5):
            job.run({("emma", "de"): (number, number)})
            wait_until(lambda number=number, tail=tail: has(tail)[0] == number)  # type: ignore[misc]
        stop.set()
        thread.join()
        assert answered(job.view) == (4, job.rows, None)


def test_a_tail_that_waits_takes_hardly_any_time_of_the_processor(tmp_path: Path) -> None:
    job = Job(Layout(tmp_path).view("spending"))
    job.run({("emma", "de"): (1, 1)})
    tail, stop = Tail(job.view), threading.Event()
    thread = threading.Thread(target=tail.run, args=(stop,))
    thread.start()
    job.run({("emma", "de"): (2, 2)})
    wait_until(lambda: has(tail)[0] == 1)
    time.sleep(1.5)  # until its pauses are as long as they get
    before = os.times()
    time.sleep(2)
    after = os.times()
    stop.set()
    thread.join()
    assert (after.user + after.system) - (before.user + before.system) < 0.2
