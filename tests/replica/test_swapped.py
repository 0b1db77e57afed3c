"""Files of a checkpoint that are whole, but not those that Spark wrote there: the checksums beside them tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateside.core.errors import CheckpointInvalid
from stateside.core.layout import Layout
from stateside.replica.tail import Tail

from .spark_job import Changes, Job, has

HADOOPS, SPARKS = ".*.crc", "[0-9]*.crc"


def started(folder: Path, *, ids: bool) -> Job:
    return Job(Layout(folder).view("spending"), ids=ids, checksums=True)


def some(number: int) -> Changes:
    return {(f"customer {each}", "de"): (number, each) for each in range(number, 30)}


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


@pytest.mark.parametrize(("ids", "without"), [(True, SPARKS), (True, HADOOPS), (False, SPARKS)])
@pytest.mark.parametrize("other", [(2, 1), (1, 0)], ids=["of another partition", "of another batch"])
def test_changelogs_that_were_swapped_are_told_and_none_of_their_rows_are_served(
    tmp_path: Path, ids: bool, without: str, other: tuple[int, int]
) -> None:
    """Either sort of checksums finds it."""
    job = started(tmp_path, ids=ids)
    for number in range(3):
        job.run(some(number))
    for path in job.view.checkpoint.rglob(without):
        path.unlink()
    files = job.changes_file(2, 0), job.changes_file(*other)
    swap(*files)
    tail = Tail(job.view)
    with pytest.raises(CheckpointInvalid, match=r"not as Spark wrote it.*byte \d+.*\.crc files"):
        tail.step()
    batch, rows = has(tail)
    assert batch < 2
    assert rows == (job.states[batch] if batch >= 0 else {})
    swap(*files)
    tail.step()
    assert has(tail) == (2, job.rows)
    tail.close()


@pytest.mark.parametrize(("ids", "kind"), [(True, "*.zip"), (True, "SSTs/*.sst"), (False, "*.snapshot")])
def test_a_snapshot_in_the_place_of_a_newer_one_is_passed_over_for_the_changes(
    tmp_path: Path, ids: bool, kind: str
) -> None:
    """Both of one partition and as large: nothing inside tells which is which."""
    job = started(tmp_path, ids=ids)
    job.run(some(0))
    (older,) = snapshots(job, kind)
    for number in (1, 2):
        job.run({key: row and (number, row[1]) for key, row in job.rows.items()})
    (newer,) = snapshots(job, kind) - {older}
    newer.write_bytes(older.read_bytes())
    (job.view.checkpoint / "commits/0").unlink()
    tail = Tail(job.view)
    tail.step()
    assert has(tail) == (2, job.rows)
    tail.close()


def snapshots(job: Job, kind: str) -> set[Path]:
    """Write one of every partition; the files of the first partition's."""
    job.snapshot()
    return {*(job.view.checkpoint / "state/0/0").glob(kind)}
