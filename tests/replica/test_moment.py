"""A snapshot that is kept for a moment is always of the newest batch, and holds nothing back for longer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateside.replica.beat import Beat, WritersBeat
from stateside.replica.moment import Moment
from stateside.replica.store import ReplicaReader, ReplicaWriter
from tests.replica.test_generations import batch, rows

WRITER = """
import sys
from pathlib import Path
from stateside.replica.store import ReplicaWriter
from tests.replica.test_generations import batch, rows
writer = ReplicaWriter(Path(sys.argv[1]))
for line in sys.stdin:
    number = int(line)
    writer.apply(batch(number), rows(number))
    print(number, flush=True)
"""


class Writer:
    """Another process, which moves the replica on when it is told to."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def write(self, number: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{number}\n"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    made.write(0)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.e2e
def test_what_another_process_wrote_is_there_at_the_next_question(tmp_path: Path, writer: Writer) -> None:
    reader = ReplicaReader(tmp_path)
    moment, kept = Moment(reader), 0
    for number in range(1, 200):
        before = moment.snapshot()
        kept += before is moment.snapshot()
        writer.write(number)
        assert moment.snapshot().batch() == batch(number)
    assert kept > 100, "and until then it is the same one"
    moment.release()
    reader.close()


@pytest.mark.e2e
def test_after_a_while_it_is_another_one(tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateside.replica.moment.MOMENT_S", 0.0)
    reader = ReplicaReader(tmp_path)
    moment = Moment(reader)
    assert moment.snapshot() is not moment.snapshot()
    moment.release()
    reader.close()


def test_nothing_is_kept_of_an_environment_whose_writer_was_killed_while_it_wrote(tmp_path: Path) -> None:
    first = ReplicaWriter(tmp_path)
    first.apply(batch(0), rows(0))
    first.close()
    with WritersBeat(tmp_path).moving():
        reader = ReplicaReader(tmp_path)
        moment = Moment(reader)
        assert moment.snapshot() is not moment.snapshot()
        assert moment.snapshot().batch() == batch(0)
        moment.release()
        reader.close()


def test_the_next_writer_counts_on_from_an_odd_number(tmp_path: Path) -> None:
    killed = WritersBeat(tmp_path)
    moving = killed.moving()
    moving.__enter__()
    seen = Beat(tmp_path)
    assert seen.now() % 2 == 1
    again = WritersBeat(tmp_path)
    assert seen.now() % 2 == 0
    before = seen.now()
    with again.moving():
        assert seen.now() % 2 == 1
    assert seen.now() == before + 2
    again.end()
    assert seen.now() % 2 == 1
    again.end()
    assert seen.now() % 2 == 1


def test_an_environment_without_a_beat_is_read_without_keeping_anything(tmp_path: Path) -> None:
    first = ReplicaWriter(tmp_path)
    first.apply(batch(0), rows(0))
    first.close()
    (tmp_path / "beat").unlink()
    reader = ReplicaReader(tmp_path)
    moment = Moment(reader)
    assert moment.snapshot() is not moment.snapshot()
    moment.release()
    (tmp_path / "beat").write_bytes(b"")
    assert Beat(tmp_path).now() % 2 == 1
    reader.close()
