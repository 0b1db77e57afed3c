"""One environment taking another's place under readers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stateside.core import generations
from stateside.core.errors import ReplicaInvalid
from stateside.core.positions import Position
from stateside.replica.bootstrap import NewReplica
from stateside.replica.environment import clean_up
from stateside.replica.rollup_tables import Rollups
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter

ROWS = 50


def batch(number: int) -> AppliedBatch:
    return AppliedBatch("query", number, Position.of({"0": number}), 0, 0)


def rows(number: int) -> list[tuple[bytes, bytes | None]]:
    return [(b"row %02d" % row, b"%d" % number) for row in range(ROWS)]


def replace_by(writer: ReplicaWriter, number: int) -> None:
    """Load a batch again, in many transactions, and let it take over."""
    new = NewReplica(generations.next_folder(writer.directory), writer.name(), Rollups())
    new.put(rows(-1))
    for row in rows(number):
        new.put([row])
    new.finish(batch(number))
    writer.switch(new.folder)


READER = """
import sys
from pathlib import Path
from stateside.replica.store import ReplicaReader

reader = ReplicaReader(Path(sys.argv[1]))
print("open", flush=True)
seen = []
while not seen or seen[-1] < int(sys.argv[2]):
    with reader.snapshot() as snapshot:
        number = snapshot.batch().batch
        rows = [row for _, row in snapshot.range(b"")]
    assert rows == [b"%d" % number] * 50, f"batch {number} with {rows}"
    assert not seen or number >= seen[-1], f"back from batch {seen[-1]} to {number}"
    if not seen or seen[-1] != number:
        seen.append(number)
print(len(seen), flush=True)
"""


@pytest.mark.e2e
def test_readers_in_other_processes_see_one_batch_or_the_next_and_never_a_mix(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), rows(0))
    last = 120
    command = [sys.executable, "-c", READER, str(tmp_path), str(last)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        for number in range(1, last + 1):
            if number % 2:
                replace_by(writer, number)
            else:
                writer.apply(batch(number), rows(number))
        assert int(reader.stdout.readline()) > 3
    writer.close()


def test_a_snapshot_that_is_open_stays_what_it_was_and_the_next_one_follows(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), rows(0))
    writer.close()
    new = NewReplica(tmp_path / "1", "name", Rollups())
    new.put(rows(7))
    new.finish(batch(7))
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as before:
        generations.make_current(tmp_path, new.folder)
        clean_up(tmp_path)
        with reader.snapshot() as beside:
            assert beside.batch() == batch(7), "a reader that always has a snapshot open follows too"
        assert (before.batch(), before.get(b"row 00")) == (batch(0), b"0")
    with reader.snapshot() as after:
        assert (after.batch(), after.get(b"row 00"), after.count()) == (batch(7), b"7", ROWS)
    reader.close()


def test_a_loaded_replica_keeps_its_name_and_goes_on_from_its_batch(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    name = writer.name()
    replace_by(writer, 5)
    with pytest.raises(ReplicaInvalid, match="does not follow"):
        writer.apply(batch(7), [])
    writer.apply(batch(6), rows(6))
    writer.close()
    again = ReplicaWriter(tmp_path)
    assert (again.name(), again.batch()) == (name, batch(6))
    again.close()


def test_deletions_and_long_keys_are_loaded_like_any_other_change(tmp_path: Path) -> None:
    long = b"k" * 600
    new = NewReplica(tmp_path / "1", "name", Rollups())
    new.put([(b"a", b"1"), (long, b"1"), (b"b", b"1")])
    new.put([(b"a", b"2"), (b"a", None), (long, b"2"), (b"c", None)])
    new.finish(batch(3))
    generations.make_current(tmp_path, new.folder)
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        assert list(snapshot.range(b"")) == [(b"b", b"1"), (long, b"2")]
    reader.close()


def test_what_a_crash_left_behind_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    replace_by(writer, 1)
    writer.close()
    (tmp_path / "loading" / "state").mkdir(parents=True)
    NewReplica(tmp_path / "9", "half", Rollups()).close()
    (tmp_path / ".current.abc").write_text("9")
    again = ReplicaWriter(tmp_path)
    assert again.batch() == batch(1)
    again.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "current", "writer.lock"]


def test_a_load_that_was_not_finished_is_removed_and_the_first_replica_stays(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), rows(0))
    writer.close()
    NewReplica(tmp_path / "1", "half", Rollups()).close()
    again = ReplicaWriter(tmp_path)
    assert again.batch() == batch(0)
    again.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checksums", "data.mdb", "lock.mdb", "writer.lock"]


def test_a_damaged_pointer_is_told_and_leads_to_a_replica_that_is_to_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("../elsewhere")
    with pytest.raises(ReplicaInvalid, match="names no folder"):
        ReplicaReader(tmp_path)
    writer = ReplicaWriter(tmp_path)
    assert "names no folder" in (writer.invalid() or "")
    writer.close()


def test_a_reader_stays_with_its_environment_if_the_next_one_was_taken_away(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), rows(0))
    writer.close()
    reader = ReplicaReader(tmp_path)
    (tmp_path / "current").write_text("4")
    with reader.snapshot() as snapshot:
        assert snapshot.batch() == batch(0)
    reader.close()
