"""What changed between two batches of a replica, against a model that keeps all states."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.clock import ManualClock
from stateside.core.errors import HistoryGone
from stateside.replica import history
from stateside.replica.changes import Changed, Extent
from stateside.replica.history import Keep
from stateside.replica.store import ReplicaReader, ReplicaWriter, Snapshot
from tests.replica.rollup_rows import ALL_KEPT, CODEC, Key, Row, rollups
from tests.replica.test_history import Changes, Rows, apply, batch, changes, moved
from tests.sizes import examples

PREFIXES = [b"", b"a", b"ab", b"c", b"x", b"x" * 480, b"z", b"nowhere"]


@contextmanager
def replica(batches: list[Changes], chunk_bytes: int = 3_900) -> Iterator[tuple[Snapshot, list[Rows]]]:
    """The newest snapshot of a replica that these batches went into, and what its rows were after each."""
    states: list[Rows] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "CHUNK_BYTES", chunk_bytes)
        writer = ReplicaWriter(Path(folder))
        for number, each in enumerate(batches):
            writer.apply(batch(number), each)
            states.append(moved(states[-1] if states else {}, each))
        writer.close()
        reader = ReplicaReader(Path(folder))
        with reader.snapshot() as snapshot:
            yield snapshot, states
        reader.close()


def differing(before: Rows, after: Rows, prefix: bytes) -> list[Changed]:
    keys = sorted(key for key in {*before, *after} if key.startswith(prefix))
    return [Changed(k, before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)]


@settings(max_examples=examples(60, 300))
@given(st.lists(changes, min_size=1, max_size=7), st.sampled_from([1, 60, 3_900]), st.sampled_from(PREFIXES))
def test_what_changed_between_any_two_batches_is_what_differs(
    batches: list[Changes], chunk_bytes: int, prefix: bytes
) -> None:
    extent = Extent(prefix)
    with replica(batches, chunk_bytes) as (snapshot, states):
        for after in range(len(batches)):
            for upto in range(after, len(batches)):
                found = list(extent.changed(snapshot, after, upto))
                assert found == differing(states[after], states[upto], prefix)
            steps = list(extent.steps(snapshot, after))
            for number in range(after + 1, len(batches)):
                of_batch = [changed for made_by, changed in steps if made_by == number]
                assert of_batch == differing(states[number - 1], states[number], prefix)


@settings(max_examples=examples(30, 150))
@given(st.lists(changes, min_size=2, max_size=6), st.sampled_from(PREFIXES), st.integers(1, 3))
def test_rows_and_changes_can_be_read_a_page_at_a_time(batches: list[Changes], prefix: bytes, page: int) -> None:
    extent = Extent(prefix)
    with replica(batches) as (snapshot, states):
        upto = len(batches) - 1
        told: list[Changed] = []
        while more := list(extent.changed(snapshot, 0, upto, told[-1].key if told else None))[:page]:
            told += more
        assert told == differing(states[0], states[upto], prefix)
        rows: list[tuple[bytes, bytes]] = []
        while some := list(extent.rows(snapshot.as_of(0), rows[-1][0] + b"\x00" if rows else b""))[:page]:
            rows += some
        assert rows == sorted((key, row) for key, row in states[0].items() if key.startswith(prefix))


keys_of_customers = st.tuples(st.sampled_from("ab"), st.sampled_from(["de", None]), st.integers(0, 1))
numbers = st.none() | st.integers(-5, 5)
some_rows = st.builds(Row, st.integers(1, 3), numbers, numbers, st.just(1.5), st.integers(0, 2))
rollup_batches = st.lists(st.dictionaries(keys_of_customers, st.none() | some_rows, max_size=5), min_size=1, max_size=5)


@settings(max_examples=examples(30, 150))
@given(rollup_batches, st.sampled_from([kept for kept in ALL_KEPT if kept]))
def test_rollups_have_changes_of_their_own(
    batches: list[dict[Key, Row | None]], kept: tuple[tuple[str, ...], ...]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = ReplicaWriter(Path(folder))
        writer.keep_rollups(rollups(kept))
        for number, each in enumerate(batches):
            encoded = [(CODEC.encode(key), row.encoded() if row else None) for key, row in each.items()]
            writer.apply(batch(number), encoded)
        writer.close()
        reader = ReplicaReader(Path(folder))
        with reader.snapshot() as snapshot:
            for number in range(len(kept)):
                states = [dict(snapshot.as_of(each).rollup(number, b"")) for each in range(len(batches))]
                for after in range(len(batches)):
                    found = list(Extent(rollup=number).changed(snapshot, after, len(batches) - 1))
                    assert found == differing(states[after], states[-1], b"")
                    assert list(Extent(rollup=number).rows(snapshot)) == sorted(states[-1].items())
        reader.close()


def test_what_is_stored_anew_with_the_same_row_has_not_changed() -> None:
    with replica([[(b"a", b"0"), (b"b", b"0")], [(b"a", b"0"), (b"b", b"1")], [(b"b", b"0")]]) as (snapshot, _):
        assert list(Extent().steps(snapshot, 0)) == [
            (1, Changed(b"b", b"0", b"1")),
            (2, Changed(b"b", b"1", b"0")),
        ]
        assert list(Extent().changed(snapshot, 0, 2)) == []


def test_where_the_history_is_gone_nothing_is_told_rather_than_less(tmp_path: Path) -> None:
    clock = ManualClock(0)
    for number in range(4):
        clock.advance(1_000_000)
        apply(tmp_path, number, [(b"a", b"%d" % number)], clock, Keep(seconds=1))
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        assert list(Extent().changed(snapshot, 3, 3)) == []
        assert list(Extent().changed(snapshot, 2, 3)) == [Changed(b"a", b"2", b"3")]
        with pytest.raises(HistoryGone, match="since batch 0"):
            list(Extent().changed(snapshot, 0, 3))
    reader.close()
