"""What goes wrong below a replica: damaged files, a full disk, a folder that may not be read. Readers are answered."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateside.core.errors import SetupError
from stateside.core.layout import Layout, ViewLayout
from stateside.replica import tail as tail_module
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.rollup_tables import RollupRows
from stateside.replica.snapshot import Snapshot
from stateside.replica.store import ReplicaWriter
from stateside.replica.tail import Tail
from tests.disks import fill, mounted
from tests.sizes import sized
from tests.waiting import wait_until

from .spark_job import Changes, Job, Row, Rows, answered, catalogue, replica_rows

pytestmark = pytest.mark.e2e


WAIT_S_MAX = 90.0


@pytest.fixture(params=[True, False], ids=["ids", "default store"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(Layout(tmp_path / "application").view("spending"), ids=request.param)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "ERROR_PAUSE_S", 0.05)


def change(number: int, rows: int = 20) -> Changes:
    return {(f"customer {row}", "de"): (number, row) for row in range(rows)}


FOLLOW = """
import sys, threading
from pathlib import Path
from stateside.core.layout import ViewLayout
from stateside.replica import tail
tail.ERROR_PAUSE_S = 0.05
followed = tail.Tail(ViewLayout(Path(sys.argv[1])))
stop = threading.Event()
thread = threading.Thread(target=followed.run, args=(stop,))
thread.start()
print("open", flush=True)
sys.stdin.read()
stop.set()
thread.join()
"""


PINS = """
import sys
from pathlib import Path
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.snapshot import Snapshot
from stateside.replica.rollup_tables import RollupRows
reader = ReplicaReader(Path(sys.argv[1]))
with reader.snapshot() as snapshot:
    print("pinned", flush=True)
    sys.stdin.read()
"""


class Followed:
    """A view whose tail runs in another process; this one reads."""

    def __init__(self, view: ViewLayout, start: list[str]) -> None:
        self.view = view
        command = [*start, sys.executable, "-c", FOLLOW, str(view.root)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def until(self, wanted: Callable[[int, Rows, str | None], bool]) -> tuple[int, Rows, str | None]:
        """What readers have, once it is as wanted. It is read all the time."""
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            found = answered(self.view)
            if wanted(*found):
                return found
            assert time.monotonic() < deadline, f"it stays at batch {found[0]}: {found[2]}"
            time.sleep(0.02)

    def at(self, batch: int) -> Rows:
        """The rows of a batch, once the replica has come to it and nothing stands in its way any more."""
        return self.until(lambda found, _, trouble: found == batch and trouble is None)[1]

    def trouble(self, *texts: str) -> tuple[int, Rows]:
        """What readers have while they are told of a trouble with all of these texts."""
        batch, rows, _ = self.until(lambda _, __, trouble: all(text in (trouble or "") for text in texts))
        return batch, rows


@pytest.fixture
def follow() -> Iterator[Callable[..., Followed]]:
    started: list[Followed] = []

    def start(view: ViewLayout, *command: str) -> Followed:
        started.append(Followed(view, list(command)))
        return started[-1]

    yield start
    for each in started:
        each.process.communicate(timeout=WAIT_S_MAX)


# Damaged files


def cut(content: bytes) -> bytes:
    return content[:-40]


def flipped(content: bytes) -> bytes:
    return content[:60] + bytes([content[60] ^ 0x10]) + content[61:]


@pytest.mark.parametrize("damage", [cut, flipped], ids=["cut short", "a bit flipped"])
def test_a_damaged_file_of_a_batch_is_told_with_its_place_and_the_replica_goes_on_once_it_is_restored(
    job: Job, damage: Callable[[bytes], bytes], follow: Callable[..., Followed]
) -> None:
    job.run(change(0))
    followed = follow(job.view)
    assert followed.at(0) == job.rows
    job.plan()
    job.store(change(1, rows=500))
    job.state_ids.append(job._ids)
    file = job.changes_file(1)
    del job.state_ids[-1]
    content = file.read_bytes()
    file.write_bytes(damage(content))
    job.commit()
    assert followed.trouble(str(file), ", byte ") == (0, job.states[0])
    job.run(change(2))
    file.write_bytes(content)
    assert followed.at(2) == job.rows


@pytest.mark.parametrize("name", ["commits/1", "offsets/1"])
@pytest.mark.parametrize("content", [b"", b"v1\n", b"v9\n{}", b"v1\n{\x00", b"\xff\xfe"])
@pytest.mark.parametrize("job", sized([True], [True, False]), ids=str, indirect=True)  # logs are the same in both
def test_a_damaged_log_of_a_batch_is_told_by_name(
    job: Job, name: str, content: bytes, follow: Callable[..., Followed]
) -> None:
    job.run(change(0))
    followed = follow(job.view)
    followed.at(0)
    file = job.view.checkpoint / name
    job.plan()
    job.store(change(1))
    if name.startswith("offsets"):
        whole = file.read_bytes()
        file.write_bytes(content)
        job.commit()
    else:
        file.write_bytes(content)
        followed.trouble(str(file))
        job.commit()
        whole = file.read_bytes()
    if name.startswith("offsets"):
        assert followed.trouble(str(file)) == (0, job.states[0])
    file.write_bytes(whole)
    assert followed.at(1) == job.rows


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small disk") as disk:
        yield disk


def job_with_its_replica_on(disk: Path, tmp_path: Path) -> Job:
    job = Job(Layout(tmp_path / "application").view("spending"))
    job.view.replica.symlink_to(disk, target_is_directory=True)
    return job


NEW = """
import sys
from pathlib import Path
from stateside.core.errors import SetupError
from stateside.replica.store import ReplicaWriter
try:
    ReplicaWriter(Path(sys.argv[1]))
except SetupError as error:
    print(error)
"""


@pytest.mark.parametrize("free_pages", [0, 1, 2, 9, 18, 26])
def test_a_new_replica_for_which_there_is_no_room_is_an_error_and_kills_nobody(
    small_disk: Path, free_pages: int
) -> None:
    ballast = fill(small_disk)
    os.truncate(ballast, ballast.stat().st_size - 4_096 * free_pages)
    command = [sys.executable, "-c", NEW, str(small_disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"touching a page that has no room is a signal, SIGBUS: {done.stderr}"
    assert "its disk is full" in done.stdout
    ballast.unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), "and with room it begins"


def test_a_new_replica_beyond_a_quota_is_told_as_a_full_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, at: int, size: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SetupError, match="its disk is full"):
        ReplicaWriter(tmp_path / "replica")


def test_on_a_full_disk_readers_keep_the_last_batch_and_are_told_and_with_room_it_goes_on(
    tmp_path: Path, small_disk: Path, follow: Callable[..., Followed]
) -> None:
    job = job_with_its_replica_on(small_disk, tmp_path)
    for number in range(4):
        job.run(change(number))
    followed = follow(job.view)
    followed.at(3)
    ballast = fill(small_disk)
    job.run(change(4, rows=5_000))
    job.run(change(5))
    assert followed.trouble("disk is full", str(job.view.replica), "Make room on this disk") == (3, job.states[3])
    time.sleep(0.5)
    assert followed.process.poll() is None
    assert answered(job.view)[:2] == (3, job.states[3])
    ballast.unlink()
    assert followed.at(5) == job.rows


def test_a_disk_too_full_even_for_the_trouble_is_outlasted(
    tmp_path: Path, small_disk: Path, follow: Callable[..., Followed]
) -> None:
    """A reader holds all old pages back, so that not even a note can be written."""
    job = job_with_its_replica_on(small_disk, tmp_path)
    job.run(change(0))
    followed = follow(job.view)
    followed.at(0)
    command = [sys.executable, "-c", PINS, str(job.view.replica)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "pinned\n"
        job.run(change(1))
        followed.at(1)
        ballast = fill(small_disk)
        job.run(change(2, rows=5_000))
        time.sleep(1)
        assert answered(job.view) == (1, job.states[1], None)
        ballast.unlink()
        assert followed.at(2) == job.rows
        reader.communicate()


def test_a_rebuild_on_a_full_disk_leaves_the_old_replica_and_is_done_once_there_is_room(
    tmp_path: Path, small_disk: Path, follow: Callable[..., Followed]
) -> None:
    job = job_with_its_replica_on(small_disk, tmp_path)
    for number in range(4):
        job.run(change(number))
    tail = Tail(job.view)
    tail.step()
    tail.close()
    before = job.rows
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(int(0.97 * os.statvfs(small_disk).f_bavail) * os.statvfs(small_disk).f_bsize))
    job.roll_back(1)
    for number in range(10, 13):
        job.run(change(number, rows=5_000))
    followed = follow(job.view)
    assert followed.trouble("full") == (3, before)
    ballast.unlink()
    assert followed.at(4) == job.rows


# A checkpoint that may not be read, or not be written

NOBODY = 65_534


def test_a_checkpoint_that_may_not_be_read_is_told_and_the_replica_goes_on_once_it_may(job: Job) -> None:
    """The tail is opened as root and then becomes nobody, as far as files are concerned."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    job.run(change(0))
    job.view.root.parent.parent.parent.chmod(0o755)
    tail, stop, begun = Tail(job.view), threading.Event(), threading.Event()
    tail.step()

    def as_nobody() -> None:
        _become(NOBODY)
        begun.set()
        tail.run(stop)

    job.run(change(1))
    _let_all_in(job.view)
    for folder in ("commits", "state", ""):
        (job.view.checkpoint / folder).chmod(0o700)
        stop.clear()
        begun.clear()
        thread = threading.Thread(target=as_nobody)
        thread.start()
        begun.wait()
        wait_until(lambda tail=tail: "may not be read" in (tail._trouble or ""))  # type: ignore[misc]
        stop.set()
        thread.join()
        batch, rows, trouble = answered(job.view)
        assert (batch, rows) == (0, job.states[0])
        assert "may not be read" in (trouble or ""), folder
        assert str(job.view.checkpoint) in (trouble or "")
        assert "Let the user of this process read it" in (trouble or "")
        (job.view.checkpoint / folder).chmod(0o755)
        tail = Tail(job.view)
    stop.clear()
    thread = threading.Thread(target=as_nobody)
    thread.start()
    wait_until(lambda: tail._trouble is None)
    stop.set()
    thread.join()
    assert answered(job.view) == (1, job.rows, None)


def _become(user: int) -> None:
    """This thread alone: the C library would change all threads."""
    setfsuid = ctypes.CDLL(None).setfsuid
    setfsuid(user)
    assert setfsuid(-1) == user


def _let_all_in(view: ViewLayout) -> None:
    folder = view.root
    while folder != folder.parent:
        if folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent


def listing(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below a folder: what it is, when it was written, and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (stat.st_ino, stat.st_mtime_ns, stat.st_mode, content)
    return found


def test_nothing_is_ever_written_to_the_checkpoint_by_following_or_by_loading(job: Job) -> None:
    for number in range(12):
        job.run(change(number))
    job.snapshot(9)
    job.purge(8)
    before = listing(job.view.checkpoint)
    for _ in range(2):
        tail = Tail(job.view)
        tail.step()
        tail.close()
    assert answered(job.view)[:2] == (11, job.rows)
    assert (job.view.replica / "current").exists(), "it was not loaded: this test shows nothing"
    assert listing(job.view.checkpoint) == before


def test_a_checkpoint_on_a_read_only_mount_is_followed_and_loaded(job: Job, follow: Callable[..., Followed]) -> None:
    """In a mount namespace of the tail's own. Links cannot be made from there: the files are copied."""
    checkpoint = str(job.view.checkpoint)
    readonly = f"mount --bind '{checkpoint}' '{checkpoint}' && mount -o remount,bind,ro '{checkpoint}'"
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{readonly} && ! touch '{checkpoint}/x' 2>/dev/null"], capture_output=True
    )
    if tried.returncode:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.decode().strip()}")
    for number in range(12):
        job.run(change(number))
    job.snapshot(9)
    job.purge(8)
    followed = follow(job.view, "unshare", "-m", "sh", "-c", f'{readonly} && exec "$@"', "sh")
    assert followed.at(11) == job.rows
    assert (job.view.replica / "current").exists(), "it was not loaded: this test shows nothing"
    job.run(change(12))
    assert followed.at(12) == job.rows


# Readers and writers that are killed


def test_a_tail_killed_at_any_moment_leaves_the_rows_of_the_batch_that_it_says(tmp_path: Path) -> None:
    job = Job(Layout(tmp_path).view("spending"), rollups=[["country"], []])
    for number in range(300):
        job.run({(f"customer {row}", f"{row % 3}"): (number, row) for row in range(number % 5, 40, 3)})
    seen, draw = [], random.Random(4)
    for _ in range(sized(8, 60)):
        followed = Followed(job.view, [])
        time.sleep(0.2 * draw.random())
        followed.process.kill()
        followed.process.communicate()
        reader = ReplicaReader(job.view.replica)
        with reader.snapshot() as snapshot:
            applied = snapshot.batch()
            seen.append(-1 if applied is None else applied.batch)
            assert snapshot.oldest() == (None if applied is None else 0)
        for batch in {seen[-1], *range(0, seen[-1] + 1, 7)} - {-1}:
            with reader.snapshot(as_of=batch) as snapshot:
                assert_is(snapshot, job.states[batch])
        reader.close()
    assert seen == sorted(seen)
    assert len(set(seen)) > 2, f"it was killed at {seen} only"


def assert_is(snapshot: Snapshot, rows: Rows) -> None:
    """The replica's rows, their number, and its rollups by country and in total."""
    assert replica_rows(snapshot) == rows
    assert snapshot.count() == len(rows)
    by_country: dict[str, Row] = {}
    for (_, country), (orders, total) in rows.items():
        before = by_country.get(country, (0, 0))
        by_country[country] = (before[0] + orders, before[1] + total)
    layout = RollupRows(catalogue().columns)
    found = {KeyCodec(["string"]).decode(key)[0]: tuple(layout.values(row)) for key, row in snapshot.rollup(0, b"")}
    assert found == by_country
    [(_, row)] = snapshot.rollup(1, b"")
    assert tuple(layout.values(row)) == tuple(map(sum, zip(*rows.values(), strict=True)))


MANY = """
import sys
from contextlib import ExitStack
from pathlib import Path
from stateside.replica.keys import KeyCodec
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.snapshot import Snapshot
from stateside.replica.rollup_tables import RollupRows
reader = ReplicaReader(Path(sys.argv[1]))
with ExitStack() as stack:
    print(len([stack.enter_context(reader.snapshot()).batch() for _ in range(400)]))
"""


def test_on_a_full_disk_new_readers_are_answered_too(tmp_path: Path, small_disk: Path) -> None:
    """They enter themselves in a file that LMDB maps: without its blocks that would be the end of them."""
    job = job_with_its_replica_on(small_disk, tmp_path)
    job.run(change(0))
    tail = Tail(job.view)
    tail.step()
    fill(small_disk)
    command = [sys.executable, "-c", MANY, str(job.view.replica)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX)
    tail.close()
    assert (done.returncode, done.stdout) == (0, "400\n"), done.stderr


def test_a_reader_that_was_killed_holds_no_old_pages_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateside.replica.store.READER_CHECK_S", 0.0)
    job.run(change(0, rows=2_000))
    tail = Tail(job.view, keep=Keep(seconds=0))
    tail.step()
    file = job.view.replica / "data.mdb"
    for _ in range(3):
        command = [sys.executable, "-c", PINS, str(job.view.replica)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "pinned\n"
            reader.kill()
    sizes = []
    for number in range(1, 25):
        job.run(change(number))
        tail.step()
        sizes.append(file.stat().st_size)
    assert "no active readers" in str(tail._writer._environment.readers())
    tail.close()
    assert sizes[-1] == sizes[12]
