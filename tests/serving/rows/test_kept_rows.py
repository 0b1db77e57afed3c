"""Rows that are kept from one answer to the next are always those of the newest batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.changes import touched
from stateside.replica.history import Keep
from stateside.replica.store import ReplicaReader, ReplicaWriter, Snapshot
from stateside.serving.fast_path import NAME_CHARS_MAX, ROW_BYTES_MAX, RowCache
from tests.replica.test_history import Changes, batch, changes
from tests.sizes import examples


@contextmanager
def looked_at(folder: Path, kept: RowCache) -> Iterator[Snapshot]:
    """The newest snapshot. LMDB is open once in a process; a server's stays open, and this plays as if it had."""
    reader = ReplicaReader(folder)
    with reader.snapshot() as snapshot:
        if kept._place is not None:
            kept._place = snapshot.place
        yield snapshot
    reader.close()


def move(kept: RowCache, snapshot: Snapshot) -> None:
    now = snapshot.batch()
    assert now is not None
    kept.move(snapshot, now)


@settings(max_examples=examples(60, 300), deadline=None)
@given(st.lists(st.tuples(changes, st.booleans(), st.sampled_from([0, 40, 1 << 20])), min_size=1, max_size=8))
def test_whatever_is_applied_between_two_looks_no_kept_row_is_an_old_one(
    batches: list[tuple[Changes, bool, int]],
) -> None:
    kept = RowCache()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (each, looks, history_bytes) in enumerate(batches):
            writer = ReplicaWriter(folder, keep=Keep(bytes_max=history_bytes))
            writer.apply(batch(number), each)
            writer.close()
            if looks:
                with looked_at(folder, kept) as snapshot:
                    move(kept, snapshot)
                    now = {key.hex(): row for key, row in snapshot.range(b"")}
                    assert kept.rows.items() <= now.items()
                    kept.keep((key.hex(), key, row) for key, row in snapshot.range(b""))


def test_rows_of_keys_that_a_batch_did_not_store_stay(tmp_path: Path) -> None:
    kept = RowCache()
    for number, each in enumerate([[(b"a", b"1"), (b"b", b"1")], [(b"b", b"2")]]):
        writer = ReplicaWriter(tmp_path)
        writer.apply(batch(number), each)
        writer.close()
        with looked_at(tmp_path, kept) as snapshot:
            move(kept, snapshot)
            assert set(kept.rows) == (set() if number == 0 else {"a"})
            kept.keep((key.decode(), key, row) for key, row in snapshot.range(b""))
    assert kept.rows == {"a": b"1", "b": b"2"}


def test_another_run_of_the_batch_is_another_past(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    for number in range(3):
        writer.apply(batch(number), [(b"a", b"%d" % number)])
    writer.close()
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        known: AppliedBatch = batch(1)
        assert list(touched(snapshot, known, 1 << 20) or []) == [b"a"]
        assert touched(snapshot, replace(known, fingerprint="another run"), 1 << 20) is None
        assert touched(snapshot, batch(2), 1 << 20) is None, "nothing came after it: then it is not the same one"
        assert touched(snapshot, batch(5), 1 << 20) is None, "it is older than what was kept"
        assert touched(snapshot, known, 0) is None, "too much to read"
    reader.close()


def test_memory_is_bounded_and_the_older_half_goes_first(tmp_path: Path) -> None:
    kept = RowCache(bytes_max=100_000)
    for number in range(1_000):
        kept.keep([(f"name {number}", b"%d" % number, b"row")])
    assert 100 < len(kept.rows) < 250
    assert "name 999" in kept.rows
    assert "name 0" not in kept.rows
    assert len(kept._names) == len(kept.rows)
    kept.keep([("x" * (NAME_CHARS_MAX + 1), b"x", b"row"), ("y", b"y", b"r" * (ROW_BYTES_MAX + 1))])
    assert not {"y", "x" * (NAME_CHARS_MAX + 1)} & set(kept.rows)


def test_a_key_is_kept_by_one_name_only() -> None:
    kept = RowCache()
    kept.keep([("1", b"one", b"row"), ("01", b"one", b"row"), ("1", b"one", b"row")])
    assert kept.rows == {"1": b"row"}
