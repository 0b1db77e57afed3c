"""The replica's store: whole batches or nothing, for readers and after a kill; keys of any length, in order."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import ReplicaInvalid
from stateside.core.positions import Position
from stateside.replica import environment
from stateside.replica.key_table import in_order
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter
from tests.sizes import examples

Changes = list[tuple[bytes, bytes | None]]


def batch(number: int) -> AppliedBatch:
    return AppliedBatch("query", number, Position.of({"0": 10 * number}), 1_000 * number, 1_000_000 + number)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ReplicaWriter]:
    writer = ReplicaWriter(tmp_path)
    yield writer
    writer.close()


def read(folder: Path, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
    reader = ReplicaReader(folder)
    with reader.snapshot() as snapshot:
        rows = list(snapshot.range(prefix))
    reader.close()
    return rows


def test_a_batch_is_there_with_its_rows(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    assert writer.batch() is None
    writer.apply(batch(0), [(b"a", b"1"), (b"b", b"2")])
    writer.apply(batch(1), [(b"a", None), (b"b", b"3"), (b"c", b""), (b"never there", None)])
    writer.close()
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        assert snapshot.batch() == batch(1)
        assert [snapshot.get(key) for key in (b"a", b"b", b"c")] == [None, b"3", b""]
        assert snapshot.count() == 2
        assert snapshot.fresh_us() is None
    reader.close()


def test_of_several_changes_of_a_key_in_one_batch_the_last_one_counts(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), [(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2"), (b"b", b"3")])
    writer.close()
    assert read(tmp_path) == [(b"b", b"3")]


def test_a_replica_opened_again_stands_where_it_stood(tmp_path: Path) -> None:
    for number in range(3):
        writer = ReplicaWriter(tmp_path)
        assert writer.batch() == (batch(number - 1) if number else None)
        writer.apply(batch(number), [(b"key", b"%d" % number)])
        writer.close()
    assert read(tmp_path) == [(b"key", b"2")]


def test_freshness_moves_without_a_batch(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(0), [])
    writer.freshen(5)
    writer.freshen(7)
    writer.close()
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        assert (snapshot.batch(), snapshot.fresh_us()) == (batch(0), 7)
    reader.close()


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(-(2**62), 2**62), st.text(max_size=9))
def test_a_batch_is_read_back_as_it_was_stored(number: int, offset: int, time_us: int, query: str) -> None:
    stored = AppliedBatch(query, number, Position.of({"0": offset, "b": 1}), time_us, time_us)
    assert AppliedBatch.parse(stored.as_json()) == stored


# Keys of any length

lengths = st.sampled_from([1, 2, 463, 464, 465, 479, 480, 481, 511, 512, 513, 600, 5_000])
long_keys = st.builds(
    lambda start, length, end: start + b"x" * (length - 1) + end,
    st.sampled_from([b"a", b"b"]),
    lengths,
    st.binary(max_size=3) | st.sampled_from([b"\x00", b"\xff", b"y" * 20]),
)
changes = st.lists(st.tuples(long_keys, st.none() | st.binary(max_size=5)), max_size=12)


@settings(max_examples=examples(25, 125))
@given(st.lists(changes, min_size=1, max_size=3), st.lists(long_keys, max_size=4))
def test_keys_of_any_length_are_found_in_order_and_by_any_prefix(batches: list[Changes], others: list[bytes]) -> None:
    model: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        writer = ReplicaWriter(Path(folder))
        for number, moves in enumerate(batches):
            writer.apply(batch(number), moves)
            for key, row in moves:
                model.pop(key, None) if row is None else model.update({key: row})
        writer.close()
        reader = ReplicaReader(Path(folder))
        with reader.snapshot() as snapshot:
            assert snapshot.count() == len(model)
            for key in {*model, *others}:
                assert snapshot.get(key) == model.get(key)
            for prefix in {b"", *others, *(key[:cut] for key in model for cut in (1, 464, 470, 500))}:
                assert list(snapshot.range(prefix)) == sorted(
                    (key, row) for key, row in model.items() if key.startswith(prefix)
                )
                assert snapshot.last(prefix) == max((key for key in model if key.startswith(prefix)), default=None)
            for first, end in pairwise([b"", *sorted({*others, *(key[:470] for key in model), *model}), b"z"]):
                assert list(snapshot.between(first, end)) == sorted(
                    (key, row) for key, row in model.items() if first <= key < end
                )
        reader.close()


@given(st.lists(st.tuples(st.binary(max_size=4) | st.sampled_from([b"", b"\0", b"a", b"a\0", b"\xff"]), st.integers())))
def test_changes_are_put_in_order_whatever_their_keys(pairs: list[tuple[bytes, int]]) -> None:
    moves: Changes = [(key, b"%d" % number) for key, number in pairs]
    assert list(in_order(moves)) == sorted(dict(moves).items())
    assert list(in_order(iter(moves))) == sorted(dict(moves).items())


def test_long_keys_that_begin_alike_are_in_order(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    rows = [(b"x" * 500 + b"%02d" % number, b"") for number in range(50)]
    writer.apply(batch(0), [*reversed(rows), (b"x" * 470, b""), (b"y", b""), (b"w", b"")])
    writer.close()
    assert read(tmp_path) == [(b"w", b""), (b"x" * 470, b""), *rows, (b"y", b"")]
    assert read(tmp_path, b"x" * 500 + b"1") == rows[10:20]


def test_a_replica_whose_last_pages_lmdb_never_wrote_is_whole(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    rows = [(b"key %04d" % number, bytes(100)) for number in range(3_000)]
    writer.apply(batch(0), rows)
    writer.apply(batch(1), [(key, None) for key, _ in rows[1_000:]])
    for number in range(2, 6):  # LMDB reuses free pages two transactions later
        writer.apply(batch(number), rows[:1])

    def put_and_delete(transaction: lmdb.Transaction) -> None:
        transaction.put(b"large", bytes(4_000_000), db=writer._databases.meta)
        transaction.delete(b"large", db=writer._databases.meta)

    writer._write(put_and_delete)
    pages, page_bytes = writer._environment.info()["last_pgno"] + 1, writer._environment.stat()["psize"]
    assert (tmp_path / "data.mdb").stat().st_size < pages * page_bytes
    writer.close()
    assert read(tmp_path) == rows[:1_000]
    writer = ReplicaWriter(tmp_path)
    assert (writer.batch(), writer.invalid()) == (batch(5), None)
    writer.apply(batch(6), rows)
    writer.close()
    assert read(tmp_path) == rows


# The map

GROWN_BYTES = 3_000_000


def test_the_map_grows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES_START", 256 * 1024)
    writer = ReplicaWriter(tmp_path)
    rows = [(b"key %06d" % number, bytes(1_000)) for number in range(GROWN_BYTES // 1_000)]
    writer.apply(batch(0), iter(rows))
    assert writer.batch() == batch(0)
    writer.close()
    assert (tmp_path / "data.mdb").stat().st_size > GROWN_BYTES
    assert read(tmp_path) == rows


def test_a_grown_map_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES_START", 256 * 1024)
    for number in range(3):
        writer = ReplicaWriter(tmp_path)
        writer.apply(batch(number), [(b"%d %06d" % (number, row), bytes(1_000)) for row in range(600)])
        writer.close()
    assert len(read(tmp_path)) == 1_800


GROWS = """
import sys
from pathlib import Path
from stateside.core.positions import Position
from stateside.replica import environment
from stateside.replica.key_table import in_order
from stateside.replica.store import AppliedBatch, ReplicaWriter

environment.MAP_BYTES_START = 256 * 1024
writer = ReplicaWriter(Path(sys.argv[1]))
for number in range(4):
    changes = [(b"%d %06d" % (number, row), bytes(1_000)) for row in range(600 * number + 1)]
    writer.apply(AppliedBatch("query", number, Position.start(), 0, 0), changes)
    print(number, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.e2e
def test_the_map_grows_under_open_snapshots_of_a_reader_in_another_process(tmp_path: Path) -> None:
    """A map that moved under an open snapshot would end the process: it has room from the beginning."""
    command = [sys.executable, "-c", GROWS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert _lines(process).readline() == "0\n"
        reader = ReplicaReader(tmp_path)
        size = (tmp_path / "data.mdb").stat().st_size
        with reader.snapshot() as first:
            for number in range(1, 4):
                _ask(process, 0)
                assert _lines(process).readline() == f"{number}\n"
                with reader.snapshot() as beside:
                    assert beside.count() == sum(600 * batch + 1 for batch in range(number + 1))
                    assert len(list(beside.range(b""))) == beside.count()
                assert list(first.range(b"")) == [(b"0 000000", bytes(1_000))]
        _ask(process, 0)
        reader.close()
    assert (tmp_path / "data.mdb").stat().st_size > 10 * size


# Other processes

ROWS = 50
READER = """
import sys
from pathlib import Path
from stateside.replica.store import ReplicaReader

reader = ReplicaReader(Path(sys.argv[1]))
print("open", flush=True)
seen, looks = set(), 0
for line in iter(sys.stdin.readline, ""):
    while True:
        with reader.snapshot() as snapshot:
            number = snapshot.batch().batch
            rows = [int(row[:20]) for _, row in snapshot.range(b"")]
        assert len(rows) == 50 and sum(rows) == 0, f"batch {number}: {rows}"
        assert rows[0] == number, f"batch {number} with the rows of another: {rows}"
        seen.add(number)
        looks += 1
        if number >= int(line):
            print(looks, len(seen), flush=True)
            break
"""


def moves(number: int, padding: int = 0) -> Changes:
    """All rows again; their sum is always 0, and the first one says which batch they are of."""
    amounts = [number, -number, *([number, -number] * (ROWS // 2 - 1))]
    return [(b"row %02d" % row, b"%20d" % amount + bytes(padding)) for row, amount in enumerate(amounts)]


@pytest.fixture
def start_reader(tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """A process that reads until it sees the batch that its input names, and says how often it looked."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", READER, str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert _lines(process).readline() == "open\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.e2e
def test_a_reader_beside_the_writer_sees_whole_batches_only(
    tmp_path: Path, writer: ReplicaWriter, start_reader: Callable[[], "subprocess.Popen[str]"]
) -> None:
    writer.apply(batch(0), moves(0))
    reader = start_reader()
    _ask(reader, 600)
    for number in range(1, 601):
        writer.apply(batch(number), moves(number))
    looks, seen = map(int, _lines(reader).readline().split())
    assert looks >= seen > 3


@pytest.mark.e2e
def test_a_reader_beside_the_writer_follows_a_map_that_grows(
    writer: ReplicaWriter, start_reader: Callable[[], "subprocess.Popen[str]"], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    writer.close()
    (tmp_path / "data.mdb").unlink()
    monkeypatch.setattr(environment, "MAP_BYTES_START", 256 * 1024)
    small = ReplicaWriter(tmp_path)
    small.apply(batch(0), moves(0))
    reader = start_reader()
    for number in (1, 2, 3):
        small.apply(batch(number), moves(number, padding=20_000 * 4**number))
        _ask(reader, number)
        assert _lines(reader).readline(), "the reader died"
    small.close()
    assert (tmp_path / "data.mdb").stat().st_size > 50 * 20_000 * 4**3


WRITER = """
import sys
from pathlib import Path
from stateside.core.positions import Position
from stateside.replica.key_table import in_order
from stateside.replica.store import AppliedBatch, ReplicaWriter

writer = ReplicaWriter(Path(sys.argv[1]))
applied = writer.batch()
number = applied.batch if applied else -1
while True:
    number += 1
    batch = AppliedBatch("query", number, Position.of({"0": number}), 0, 0)
    writer.apply(batch, [(b"row %04d" % row, b"%d" % number) for row in range(2_000)])
    print(number, flush=True)
"""


@pytest.mark.e2e
def test_a_writer_killed_in_mid_batch_leaves_a_batch_boundary(tmp_path: Path) -> None:
    for round_ in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines = _lines(process)
            first = int(lines.readline())
            time.sleep(0.05 + 0.033 * round_)
            process.kill()
            last = max([first, *(int(line) for line in lines if line.endswith("\n"))])
        writer = ReplicaWriter(tmp_path)
        applied = writer.batch()
        writer.close()
        assert applied is not None
        assert applied.batch in (last, last + 1)
        assert read(tmp_path) == [(b"row %04d" % row, b"%d" % applied.batch) for row in range(2_000)]


def test_a_replica_is_not_opened_twice_in_one_process(tmp_path: Path, writer: ReplicaWriter) -> None:
    """LMDB's locks are the process's: closing one environment would give up those of the other."""
    with pytest.raises(ReplicaInvalid, match="already open in this process"):
        ReplicaReader(tmp_path)
    with pytest.raises(ReplicaInvalid, match="Another process moves this replica"):
        ReplicaWriter(tmp_path)
    writer.apply(batch(0), [(b"a", b"1")])
    writer.close()
    assert read(tmp_path) == [(b"a", b"1")]


# What is there instead of a replica


def test_where_there_is_no_replica_yet_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ReplicaReader(tmp_path / "nowhere")


def test_a_replica_that_its_writer_is_only_just_making_is_not_there_yet(tmp_path: Path) -> None:
    environment.open_environment(tmp_path).close()
    with pytest.raises(FileNotFoundError):
        ReplicaReader(tmp_path)
    ReplicaWriter(tmp_path).close()
    assert read(tmp_path) == []


def test_a_file_that_is_no_replica_is_moved_aside_for_one_that_is_to_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"no replica" * 2_000)
    with pytest.raises(ReplicaInvalid, match="it is rebuilt from the checkpoint"):
        ReplicaReader(tmp_path)
    writer = ReplicaWriter(tmp_path)
    assert writer.invalid() is not None
    writer.close()
    assert (tmp_path / "damaged" / "data.mdb").read_bytes() == b"no replica" * 2_000
    with pytest.raises(ReplicaInvalid, match="being rebuilt"):
        read(tmp_path)


def _lines(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _ask(process: "subprocess.Popen[str]", number: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()


def test_only_the_next_batch_of_the_same_query_is_applied(tmp_path: Path, writer: ReplicaWriter) -> None:
    writer.apply(batch(3), [(b"a", b"1")])
    for wrong in (batch(3), batch(5), batch(2), replace(batch(4), query="another")):
        with pytest.raises(ReplicaInvalid, match="does not follow"):
            writer.apply(wrong, [(b"a", b"2")])
    writer.close()
    assert read(tmp_path) == [(b"a", b"1")]


def test_a_replica_keeps_its_name_and_tells_its_trouble(tmp_path: Path, writer: ReplicaWriter) -> None:
    writer.note_trouble("the disk is full")
    writer.close()
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        name = snapshot.replica()
        assert snapshot.trouble() == "the disk is full"
    reader.close()
    again = ReplicaWriter(tmp_path)
    again.note_trouble(None)
    again.close()
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        assert (snapshot.replica(), snapshot.trouble()) == (name, None)
    reader.close()
