"""A snapshot that is kept for a moment is always of the newest batch, and holds nothing back for longer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateside.replica.replica_reader import ReusedSnapshot
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
    moment, kept = ReusedSnapshot(reader), 0
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
    monkeypatch.setattr("stateside.replica.replica_reader.MOMENT_S", 0.0)
    reader = ReplicaReader(tmp_path)
    moment = ReusedSnapshot(reader)
    assert moment.snapshot() is not moment.snapshot()
    moment.release()
    reader.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from stateside.replica.integrity import Integrity
from stateside.replica.store import ReplicaWriter
from tests.replica.test_generations import batch, rows
writer = ReplicaWriter(Path(sys.argv[1]))
Integrity.publish = lambda integrity: os.kill(os.getpid(), signal.SIGKILL)
writer.apply(batch(1), rows(1))
"""


@pytest.mark.e2e
def test_what_a_killed_writer_committed_and_did_not_publish_is_read_once_the_next_one_has(tmp_path: Path) -> None:
    first = ReplicaWriter(tmp_path)
    first.apply(batch(0), rows(0))
    first.close()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    reader = ReplicaReader(tmp_path)
    moment = ReusedSnapshot(reader)
    assert moment.snapshot().batch() == batch(0)
    with reader.snapshot() as snapshot:
        assert snapshot.batch() == batch(0)
    next_one = Writer(tmp_path)
    next_one.write(2)
    assert moment.snapshot().batch() == batch(2)
    assert reader.snapshot(as_of=1).__enter__().batch() == batch(1)
    moment.release()
    reader.close()
    next_one.process.kill()
    next_one.process.communicate()


LOADS = """
import sys
from pathlib import Path
from stateside.replica.bootstrap import NewReplica
from stateside.replica.rollup_tables import Rollups
from stateside.replica.store import ReplicaWriter
from tests.replica.test_generations import batch
writer = ReplicaWriter(Path(sys.argv[1]))
new = NewReplica(writer.next_folder(), "loaded", Rollups())
new.finish(batch(5))
writer.switch(new.folder)
"""


@pytest.mark.e2e
def test_of_an_environment_whose_place_another_one_took_nothing_is_kept(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), rows(0))
    writer.close()
    reader = ReplicaReader(tmp_path)
    moment = ReusedSnapshot(reader)
    assert moment.snapshot().batch() == batch(0)
    subprocess.run([sys.executable, "-c", LOADS, str(tmp_path)], check=True)
    assert moment.snapshot().batch() == batch(5)
    moment.release()
    reader.close()
