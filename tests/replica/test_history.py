"""A replica read as of an older batch: what it was then, for as long as was said, and a clear no after that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core import generations
from stateside.core.clock import ManualClock
from stateside.core.errors import HistoryGone, NotFreshEnough
from stateside.core.positions import Position
from stateside.replica import history
from stateside.replica.bootstrap import NewReplica
from stateside.replica.history import Keep, entries_from, pack_chunks
from stateside.replica.key_table import Changes as Undone
from stateside.replica.rollup_tables import Rollups
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter, Snapshot
from tests.sizes import examples

Rows = dict[bytes, bytes]
Changes = list[tuple[bytes, bytes | None]]

SECOND_US = 1_000_000


def batch(number: int, run: str = "run") -> AppliedBatch:
    return AppliedBatch("query", number, Position.of({"0": 10 * number}), 1_000 * number, number, f"{run} {number}")


def moved(rows: Rows, changes: Changes) -> Rows:
    after = rows | {key: row for key, row in changes if row is not None}
    last = dict(changes)
    return {key: row for key, row in after.items() if last.get(key, row) is not None} | {
        key: row for key, row in last.items() if row is not None
    }


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000 * SECOND_US)


@pytest.fixture
def writer(tmp_path: Path, clock: ManualClock) -> Iterator[ReplicaWriter]:
    writer = ReplicaWriter(tmp_path, clock=clock)
    yield writer
    writer.close()


def apply(folder: Path, number: int, changes: Changes, clock: ManualClock, keep: Keep | None = None) -> None:
    """One batch by a writer of its own: in one process a replica is open for writing or for reading."""
    writer = ReplicaWriter(folder, keep=keep, clock=clock)
    writer.apply(batch(number), changes)
    writer.close()


def read(folder: Path, as_of: int | None = None) -> Rows:
    reader = ReplicaReader(folder)
    try:
        with reader.snapshot(as_of) as snapshot:
            return dict(snapshot.range(b""))
    finally:
        reader.close()


def undo_pages(folder: Path) -> int:
    reader = ReplicaReader(folder)
    opened = reader._opened
    with opened.environment.begin() as transaction:
        stat = transaction.stat(opened.environment.open_db(b"undo", transaction, create=False))
    reader.close()
    return int(stat["overflow_pages"] + stat["leaf_pages"])


# What it was then

keys = st.sampled_from([b"a", b"ab", b"b", b"c\x00", b"c", b"x" * 470, b"x" * 500, b"x" * 499 + b"y", b"z" * 2_000])
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=40)), max_size=12)


@settings(max_examples=examples(20, 100))
@given(st.lists(changes, min_size=1, max_size=8), st.sampled_from([1, 60, 3_900]), st.booleans())
def test_rows_as_of_every_kept_batch_are_what_they_were(batches: list[Changes], chunk: int, reopened: bool) -> None:
    states: list[Rows] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "CHUNK_BYTES", chunk)
        writer = ReplicaWriter(Path(folder))
        for number, each in enumerate(batches):
            writer.apply(batch(number), each)
            states.append(moved(states[-1] if states else {}, each))
            if reopened:
                writer.close()
                writer = ReplicaWriter(Path(folder))
        writer.close()
        reader = ReplicaReader(Path(folder))
        for number, rows in enumerate(states):
            with reader.snapshot(as_of=number, fingerprint=f"run {number}") as snapshot:
                assert snapshot.batch() == batch(number)
                assert_is(snapshot, rows)
        reader.close()


def assert_is(snapshot: Snapshot, rows: Rows) -> None:
    assert list(snapshot.range(b"")) == sorted(rows.items())
    assert snapshot.count() == len(rows)
    asked = [b"a", b"ab", b"b", b"c", b"c\x00", b"x", b"x" * 470, b"x" * 499 + b"y", b"z", b"z" * 2_000, b"nowhere"]
    for key in asked:
        assert snapshot.get(key) == rows.get(key)
        assert list(snapshot.range(key)) == sorted((k, row) for k, row in rows.items() if k.startswith(key))
        assert snapshot.last(key) == max((k for k in rows if k.startswith(key)), default=None)
    assert snapshot.last(b"") == max(rows, default=None)
    for first, end in pairwise(sorted(asked)):
        assert list(snapshot.between(first, end)) == sorted((k, row) for k, row in rows.items() if first <= k < end)


@given(st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=9_000)), max_size=30))
def test_chunks_have_what_was_put_into_them(entries: Changes) -> None:
    ordered = sorted(dict(entries).items())
    undone = Undone([key for key, _ in ordered], [row for _, row in ordered])
    for first in (b"", *(key for key, _ in entries)):
        found = [entry for chunk in pack_chunks(undone) for entry in entries_from(chunk, first)]
        assert found == [entry for entry in ordered if entry[0] >= first]


def test_a_scan_over_several_pages_sees_one_batch_while_the_replica_moves_on(
    tmp_path: Path, clock: ManualClock
) -> None:
    rows = {b"%03d" % number: b"0" for number in range(100)}
    apply(tmp_path, 0, list(rows.items()), clock)
    seen: Rows = {}
    for page in range(10):
        changed: Changes = [(key, b"%d" % (page + 1)) for key in rows]
        apply(tmp_path, page + 1, [*changed, (b"%03d" % page, None)], clock)
        reader = ReplicaReader(tmp_path)
        with reader.snapshot(as_of=0, fingerprint="run 0") as snapshot:
            seen |= dict(snapshot.between(b"%03d" % (10 * page), b"%03d" % (10 * page + 10)))
        reader.close()
    assert seen == rows


def test_the_stamp_of_an_older_batch_is_that_of_its_time(tmp_path: Path, writer: ReplicaWriter) -> None:
    writer.apply(batch(0), [])
    writer.freshen(5)
    writer.apply(batch(1), [])
    writer.freshen(7)
    writer.apply(batch(2), [])
    writer.close()
    reader = ReplicaReader(tmp_path)
    for number, fresh_us in enumerate((5, 7, 7)):
        with reader.snapshot(as_of=number) as snapshot:
            assert (snapshot.batch(), snapshot.fresh_us()) == (batch(number), fresh_us)
    reader.close()


# For how long


def test_a_batch_can_be_read_for_so_long_after_the_next_one_was_applied(tmp_path: Path, clock: ManualClock) -> None:
    apply(tmp_path, 0, [(b"a", b"0")], clock)
    clock.advance(3_000 * SECOND_US)  # nothing came: batch 0 was the newest one all the time
    apply(tmp_path, 1, [(b"a", b"1")], clock)
    clock.advance(history.HISTORY_S * SECOND_US)
    apply(tmp_path, 2, [(b"a", b"2")], clock)
    assert [read(tmp_path, number) for number in range(3)] == [{b"a": b"0"}, {b"a": b"1"}, {b"a": b"2"}]
    clock.advance(1)
    apply(tmp_path, 3, [(b"a", b"3")], clock)
    with pytest.raises(HistoryGone, match="Batch 0 is too old to be read: the oldest one kept is 1"):
        read(tmp_path, 0)
    assert read(tmp_path, 1) == {b"a": b"1"}


def test_history_takes_up_no_more_than_it_may_and_what_is_pruned_is_used_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    limit = 200_000
    sizes = []
    for number in range(60):
        changed: Changes = [(b"%04d" % key, b"%100d" % number) for key in range(500)]
        apply(tmp_path, number, changed, clock, Keep(bytes_max=limit))
        sizes.append((tmp_path / "data.mdb").stat().st_size)
    assert undo_pages(tmp_path) * 4_096 < 1.3 * limit
    assert sizes[-1] == sizes[20]
    assert read(tmp_path, 58) == {b"%04d" % key: b"%100d" % 58 for key in range(500)}
    with pytest.raises(HistoryGone):
        read(tmp_path, 50)


def test_pruning_goes_in_bounded_steps(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PRUNED_CHUNKS_MIN", 5)
    for number in range(2):
        apply(tmp_path, number, [(b"%06d" % key, b"%100d" % number) for key in range(2_000)], clock)
    clock.advance(2 * history.HISTORY_S * SECOND_US)
    left = []
    for number in range(2, 5):
        apply(tmp_path, number, [(b"a", b"%d" % number)], clock)
        left.append(undo_pages(tmp_path))
    assert left[0] - left[1] in (4, 5)
    assert left[1] - left[2] in (4, 5)
    with pytest.raises(HistoryGone):
        read(tmp_path, 0)


def test_a_batch_too_large_for_the_history_is_applied_and_those_before_it_are_forgotten(
    tmp_path: Path, clock: ManualClock
) -> None:
    rows: Changes = [(b"%d" % key, bytes(100)) for key in range(20)]
    batches: list[Changes] = [[(b"a", b"0")], [(b"a", b"1")], rows, [(key, None) for key, _ in rows], []]
    for number, each in enumerate(batches):
        apply(tmp_path, number, each, clock, Keep(bytes_max=1_000))
    assert read(tmp_path) == {b"a": b"1"}
    with pytest.raises(HistoryGone, match="the oldest one kept is 3"):
        read(tmp_path, 2)


def test_without_history_only_the_newest_batch_can_be_read(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    for number in range(3):
        writer.apply(batch(number), [(b"a", b"%d" % number)])
    writer.close()
    writer = ReplicaWriter(tmp_path, keep=Keep(seconds=0))
    writer.apply(batch(3), [(b"a", b"3")])
    writer.close()
    assert read(tmp_path, 3) == {b"a": b"3"}
    assert undo_pages(tmp_path) == 0
    with pytest.raises(HistoryGone, match="the oldest one kept is 3"):
        read(tmp_path, 2)


# What cannot be read


def test_a_batch_that_is_not_there_yet_is_told_as_that(tmp_path: Path, writer: ReplicaWriter) -> None:
    writer.close()
    with pytest.raises(NotFreshEnough, match="has no batch yet, and batch 0 was asked for"):
        read(tmp_path, 0)
    writer = ReplicaWriter(tmp_path)
    writer.apply(batch(4), [])
    writer.close()
    with pytest.raises(NotFreshEnough, match="stands at batch 4, and batch 5 was asked for"):
        read(tmp_path, 5)
    with pytest.raises(HistoryGone, match="the oldest one kept is 4"):
        read(tmp_path, 3)


def test_a_loaded_replica_has_no_history_from_before_and_says_so(tmp_path: Path, writer: ReplicaWriter) -> None:
    for number in range(3):
        writer.apply(batch(number), [(b"a", b"%d" % number)])
    new = NewReplica(generations.next_folder(tmp_path), writer.name(), Rollups())
    new.put([(b"a", b"9")])
    new.finish(batch(9))
    writer.switch(new.folder)
    writer.apply(batch(10), [(b"a", b"10")])
    writer.close()
    assert (read(tmp_path, 9), read(tmp_path, 10)) == ({b"a": b"9"}, {b"a": b"10"})
    with pytest.raises(HistoryGone, match=r"oldest one kept is 9.*none from before the replica was loaded"):
        read(tmp_path, 2)


def test_the_same_number_of_another_run_is_not_the_batch_that_was_asked_for(
    tmp_path: Path, writer: ReplicaWriter
) -> None:
    """A scan that began before the checkpoint was rolled back must not go on in what took its place."""
    for number in range(3):
        writer.apply(batch(number, "another run"), [(b"a", b"%d" % number)])
    writer.close()
    reader = ReplicaReader(tmp_path)
    for number in (1, 2):
        with pytest.raises(HistoryGone, match="not the one that it was"), reader.snapshot(number, f"run {number}"):
            pass
        with reader.snapshot(number, f"another run {number}") as snapshot:
            assert snapshot.get(b"a") == b"%d" % number
    reader.close()
