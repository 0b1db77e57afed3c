"""A replica whose files are damaged while a tail moves it, or while no server runs: it is moved aside, and rebuilt."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stateside.core.errors import ReplicaInvalid
from stateside.core.layout import Layout
from stateside.replica import integrity
from stateside.replica.page_reader import VerifiedPages, VerifiedTable
from stateside.replica.replica_reader import ReplicaReader, ReusedSnapshot
from stateside.replica.tail import Tail
from tests.replica.spark_job import Changes, Job, answered, has
from tests.sizes import FULL, sized

SEED = int(os.environ.get("STATESIDE_DAMAGE_SEED", random.randrange(1 << 32) if FULL else 1))
DAMAGES = int(os.environ.get("STATESIDE_DAMAGES", sized(6, 300)))
PAGE_BYTES, CUSTOMERS = 4_096, 500
ROLLUPS = [["country"], ["customer"], []]


def orders(batch: int) -> Changes:
    changed = range(batch % 3, CUSTOMERS, 1 if batch == 0 else 7)
    return {(f"c{n:04}", country): (batch + 1, 1_000 * batch + n) for n in changed for country in ("de", "fr", "it")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A view's folder, with its checkpoint and its replica."""
    job = Job(Layout(tmp_path_factory.mktemp("whole")).view("spending"), rollups=ROLLUPS)
    for batch in range(5):
        job.run(orders(batch))
        tail = Tail(job.view)
        tail.step()
        tail.close()
    return job.view.root


@pytest.fixture
def job(whole: Path, tmp_path: Path) -> Job:
    """The same, for one test, which may go on with it."""
    return copied(whole, tmp_path)


def copied(whole: Path, folder: Path) -> Job:
    """A copy of the view, and its job, which goes on."""
    view = Layout(folder).view("spending")
    made = Job(view, rollups=ROLLUPS)
    shutil.rmtree(view.root)
    shutil.copytree(whole, view.root)
    for batch in range(5):
        changes = {key: row for key, row in orders(batch).items() if row is not None}
        made.states.append((made.states[-1] if made.states else {}) | changes)
    names = [sorted((view.checkpoint / "state/0" / str(p)).glob("[0-9]*.changelog")) for p in range(2)]
    made.state_ids = [
        [next(path.stem.partition("_")[2] for path in part if path.name.startswith(f"{batch + 1}_")) for part in names]
        for batch in range(5)
    ]
    made.batch = 5
    return made


def flip(content: bytearray, at: int, draw: random.Random) -> None:
    content[at + draw.randrange(PAGE_BYTES)] ^= 1 << draw.randrange(8)


def zero(content: bytearray, at: int, draw: random.Random) -> None:
    content[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)


def swap(content: bytearray, at: int, draw: random.Random) -> None:
    other = draw.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
    first, second = content[at : at + PAGE_BYTES], content[other : other + PAGE_BYTES]
    content[at : at + PAGE_BYTES], content[other : other + PAGE_BYTES] = second, first


def cut(content: bytearray, at: int, draw: random.Random) -> None:
    del content[at + draw.randrange(PAGE_BYTES) :]


def damage(path: Path, draw: random.Random) -> str:
    """Do something to a file that others have open, and mapped."""
    content, kind = bytearray(path.read_bytes()), draw.choice([flip, zero, swap, cut])
    kind(content, draw.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES, draw)
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    return f"{path.name} {kind.__name__}"


@pytest.mark.timeout(3_600)  # in the long run
def test_of_a_replica_that_is_damaged_under_a_tail_no_batch_is_made(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"STATESIDE_DAMAGE_SEED={SEED}, {DAMAGES} damages")
    monkeypatch.setattr(integrity, "SCRUB_BYTES_S", 0)
    draw, rebuilt = random.Random(SEED), 0
    for number in range(DAMAGES):
        job = copied(whole, tmp_path / str(number))
        tail = Tail(job.view)
        tail.step()
        what = damage(job.view.replica / draw.choice(["data.mdb", "data.mdb", "checksums"]), draw)
        for batch in (5, 6):
            job.run(orders(batch))
            tail.step()
        tail.suspect()
        tail.step()
        assert has(tail) == (6, job.rows), (SEED, number, what)
        tail.close()
        assert answered(job.view)[:2] == (6, job.rows), (SEED, number, what)
        rebuilt += (job.view.replica / "damaged").exists()
        shutil.rmtree(tmp_path / str(number))
    assert rebuilt > DAMAGES // 4, "these damages show nothing"


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["data.mdb", "checksums", "lock.mdb"])
@pytest.mark.parametrize("do", ["cut", "empty", "zero"])
def test_a_file_that_was_cut_or_zeroed_ends_nobody_and_the_next_start_rebuilds_the_replica(
    job: Job, name: str, do: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = job.view.replica / name
    content = path.read_bytes()
    path.write_bytes({"cut": content[:5_000], "empty": b"", "zero": bytes(len(content))}[do])
    start = "import sys; from pathlib import Path; from stateside.core.layout import Layout; "
    start += "from stateside.replica.tail import Tail; t = Tail(Layout(Path(sys.argv[1])).view('spending')); "
    start += "t.step(); print(t._writer.batch().batch); t.close()"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", start, str(job.view.root.parent.parent)], capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"4\n"), done.stderr.decode()
    assert answered(job.view)[:2] == (4, job.rows)
    if name != "lock.mdb":
        assert (job.view.replica / "damaged" / name).exists()


READ = """
import os, sys
from pathlib import Path
from stateside.core.errors import ReplicaInvalid
from stateside.replica.replica_reader import ReplicaReader
folder, size, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
reader = ReplicaReader(folder)
with reader.snapshot():
    if when == "under a snapshot":
        os.truncate(folder / "lock.mdb", size)
if when == "between snapshots":
    os.truncate(folder / "lock.mdb", size)
try:
    with reader.snapshot():
        print("answered")
except ReplicaInvalid as error:
    print(error.code)
reader.close()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("size", [0, 100, 5_000])
@pytest.mark.parametrize("when", ["under a snapshot", "between snapshots"])
def test_a_lock_file_that_is_cut_under_a_reader_ends_neither_the_reader_nor_the_tail(
    job: Job, size: int, when: str
) -> None:
    tail = "import sys; from pathlib import Path; from stateside.core.layout import Layout; "
    tail += "from stateside.replica.tail import Tail; t = Tail(Layout(Path(sys.argv[1])).view('spending')); t.step(); "
    tail += "print('ready', flush=True); sys.stdin.readline(); t.step(); print(t._writer.batch().batch); t.close()"
    command = [sys.executable, "-c", tail, str(job.view.root.parent.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as moving:
        assert moving.stdout is not None
        assert moving.stdout.readline() == "ready\n"
        asked = [sys.executable, "-c", READ, str(job.view.replica), str(size), when]
        done = subprocess.run(asked, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "replica-invalid\n"), done.stderr
        told, _ = moving.communicate("go on\n")
    assert (moving.returncode, told) == (0, "4\n")
    assert (job.view.replica / "damaged" / "lock.mdb").exists()
    assert answered(job.view)[:2] == (4, job.rows)


@pytest.mark.e2e
@pytest.mark.parametrize("size", [0, 100, 5_000])
def test_a_lock_file_that_is_cut_under_a_tail_does_not_end_it(job: Job, size: int) -> None:
    tail = "import os, sys; from pathlib import Path; from stateside.core.layout import Layout; "
    tail += "from stateside.replica.tail import Tail; v = Layout(Path(sys.argv[1])).view('spending'); t = Tail(v); "
    tail += "t.step(); os.truncate(v.replica / 'lock.mdb', int(sys.argv[2])); t.step(); "
    tail += "print(t._writer.batch().batch); t.close()"
    command = [sys.executable, "-c", tail, str(job.view.root.parent.parent), str(size)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert answered(job.view)[:2] == (4, job.rows)


def test_a_branch_that_was_kept_is_not_taken_for_one_of_an_older_transaction(job: Job) -> None:
    """The number of a page that nobody needs any more is given to another one."""
    tail = Tail(job.view)
    tail.step()
    pages = VerifiedPages(job.view.replica)
    older = pages.checksums.published()
    root = pages.known(older).roots[b"rows"]
    assert root.depth > 1
    for batch in range(5, 40):
        job.run(orders(3 * batch))  # the same customers each time
        tail.step()
        newer = pages.checksums.published()
        next(VerifiedTable(pages, pages.known(newer).roots[b"rows"], newer).pairs(b""))
        if pages.branches.get(root.page, (0,))[0] == newer:
            break
    else:
        pytest.fail("no page was used again")
    pages.not_kept = older
    with pytest.raises(ReplicaInvalid, match="moved on while it was read"):
        pages.branch(root.page, older)
    pages.close()
    tail.close()


def test_checksums_that_the_disk_cannot_read_any_more_are_damage(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ReplicaReader(job.view.replica)

    def fails(handle: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", fails)
        for ask in (lambda: reader._opened.pages.checksums.state(1), lambda: reader.snapshot().__enter__()):
            with pytest.raises(ReplicaInvalid, match="checksums cannot be read"):
                ask()
    reader.close()


def test_a_replica_of_an_older_stateside_has_no_checksums_and_is_rebuilt(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    (job.view.replica / "checksums").unlink()
    (job.view.replica / "beat").write_bytes(bytes(8))
    tail = Tail(job.view)
    tail.step()
    tail.close()
    assert answered(job.view)[:2] == (4, job.rows)
    assert "has no checksums: an older Stateside wrote it" in caplog.text


def test_what_a_reader_found_the_tail_rebuilds(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    reader = ReplicaReader(job.view.replica)
    with reader.snapshot() as snapshot:
        raise_damage: Callable[[str], Exception] = snapshot.place.found  # type: ignore[attr-defined]
        raise_damage("page 3 of data.mdb is not what was written there")
    reader.close()
    tail = Tail(job.view)
    tail.step()
    tail.close()
    assert answered(job.view)[:2] == (4, job.rows)
    assert f"It is moved to {job.view.replica / 'damaged'}" in caplog.text
    assert (job.view.replica / "damaged" / "data.mdb").exists()


def test_checksums_that_were_cut_where_no_page_needs_them_yet_cost_nothing(job: Job) -> None:
    reader = ReplicaReader(job.view.replica)
    path = job.view.replica / "checksums"
    os.truncate(path, path.stat().st_size - 8_192)
    with reader.snapshot() as snapshot:
        assert len(list(snapshot.range(b""))) == len(job.rows)
    reader.close()
    tail = Tail(job.view)
    tail.step()
    tail.close()
    assert answered(job.view)[:2] == (4, job.rows)


def test_checksums_that_are_cut_under_a_snapshot_do_not_end_the_process(job: Job) -> None:
    """A snapshot that is kept for a few milliseconds looks at them with each question."""
    reader = ReplicaReader(job.view.replica)
    moment = ReusedSnapshot(reader)
    kept = moment.snapshot()
    os.truncate(job.view.replica / "checksums", 0)
    with pytest.raises(ReplicaInvalid, match="checksums cannot be read"):
        moment.snapshot()
    with pytest.raises(ReplicaInvalid, match="checksums cannot be read"):
        list(kept.range(b""))
    moment.release()
    reader.close()
    tail = Tail(job.view)
    tail.step()
    tail.close()
    assert answered(job.view)[:2] == (4, job.rows)
    assert (job.view.replica / "damaged" / "checksums").exists()


@pytest.mark.parametrize("meta", [0, 1])
def test_a_flipped_bit_in_the_root_of_lmdb_s_meta_page_is_found_before_lmdb_follows_it(job: Job, meta: int) -> None:
    """Some made LMDB say that a page is not there, which was no damage: the replica stayed as it was for ever."""
    folder, before = job.view.replica, job.view.root / "before"
    shutil.copytree(folder, before)
    for bit in range(0, 64, 3):
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        with (folder / "data.mdb").open("r+b") as file:
            file.seek(meta * PAGE_BYTES + 128 + bit // 8)  # the root of the tree that names the tables
            byte = file.read(1)[0] ^ 1 << bit % 8
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte]))
        tail = Tail(job.view)
        tail.step()
        tail.close()
        assert answered(job.view)[:2] == (4, job.rows), bit


def test_the_scrub_finds_what_nobody_asked_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "SCRUB_BYTES_S", 1 << 40)
    tail = Tail(job.view)
    tail.step()
    path = job.view.replica / "data.mdb"
    content = bytearray(path.read_bytes())
    number = tail._writer._pages.known(tail._writer._pages.checksums.published()).roots[b"undo"].page
    content[number * PAGE_BYTES + 2_000] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    tail._writer._integrity._scrubbed_s -= 1
    tail.step()
    assert (job.view.replica / "damaged").exists()
    assert has(tail) == (4, job.rows)
    tail.close()
