"""A replica whose files are damaged while a tail moves it, or while no server runs: it is moved aside, and rebuilt."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stateside.errors import ReplicaInvalid
from stateside.layout import Layout
from stateside.replica import integrity
from stateside.replica.moment import Moment
from stateside.replica.reader import ReplicaReader
from stateside.replica.tail import Tail
from tests.replica.spark_job import Changes, Job, answered, has
from tests.sizes import FULL, sized

SEED = int(os.environ.get("STATESIDE_DAMAGE_SEED", random.randrange(1 << 32) if FULL else 1))
DAMAGES = int(os.environ.get("STATESIDE_DAMAGES", sized(15, 300, fast=4)))
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


@pytest.mark.parametrize("name", ["data.mdb", "checksums", "lock.mdb"])
@pytest.mark.parametrize("do", ["cut", "empty", "zero"])
def test_a_file_that_was_cut_or_zeroed_ends_nobody_and_the_next_start_rebuilds_the_replica(
    job: Job, name: str, do: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = job.view.replica / name
    content = path.read_bytes()
    path.write_bytes({"cut": content[:5_000], "empty": b"", "zero": bytes(len(content))}[do])
    start = "import sys; from pathlib import Path; from stateside.layout import Layout; "
    start += "from stateside.replica.tail import Tail; t = Tail(Layout(Path(sys.argv[1])).view('spending')); "
    start += "t.step(); print(t._writer.batch().batch); t.close()"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", start, str(job.view.root.parent.parent)], capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"4\n"), done.stderr.decode()
    assert answered(job.view)[:2] == (4, job.rows)
    if name != "lock.mdb":
        assert (job.view.replica / "damaged" / name).exists()


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
    moment = Moment(reader)
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
