"""Rollups against a recount from the rows, at every batch, whatever comes, goes, is declared again or killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stateside.core.errors import ValueOverflow
from stateside.core.positions import Position
from stateside.replica import rollup_tables as rollups_module
from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import Kept, RollupRows, Rollups, pack, unpack
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter, Snapshot
from tests.sizes import examples

from .replica_machine import Batch, ReplicaMachine
from .rollup_rows import ALL_KEPT, CODEC, COLUMNS, KEY, Key, Row, expected, rollups

LONG_MAX = 2**63 - 1
NAMES = ["orders", "points", "paid", "mean"]

keys = st.tuples(st.sampled_from(["emma", "ben", "c" * 600]), st.sampled_from(["de", "fr", None]), st.integers(0, 2))
row_values = st.builds(
    Row,
    st.integers(0, 9),
    st.none() | st.integers(-9, 9) | st.sampled_from([LONG_MAX, -LONG_MAX]),
    st.none() | st.integers(-(10**18) + 1, 10**18 - 1),
    st.floats(-1e12, 1e12),
    st.integers(0, 3),
)
changes = st.lists(st.tuples(keys, st.none() | row_values), max_size=8)


def found(snapshot: Snapshot, kept: Kept) -> dict[tuple[str, ...], dict[tuple[Any, ...], Any]]:
    """All rollups as they are stored; the text "too large" for a row that has a value that is so."""
    layout = RollupRows(COLUMNS)

    def values(row: bytes) -> Any:
        try:
            return dict(zip(NAMES, layout.values(row), strict=True))
        except ValueOverflow:
            return "too large"

    return {
        columns: {
            KeyCodec([KEY[name] for name in columns]).decode(key): values(row)
            for key, row in snapshot.rollup(number, b"")
        }
        for number, columns in enumerate(kept)
    }


def recounted(rows: dict[Key, Row], kept: Kept) -> dict[tuple[str, ...], dict[tuple[Any, ...], Any]]:
    def fitting(row: dict[str, Any]) -> Any:
        return row if row["points"] is None or -LONG_MAX - 1 <= row["points"] <= LONG_MAX else "too large"

    return {columns: {key: fitting(row) for key, row in expected(rows, columns).items()} for columns in kept}


class Replica(ReplicaMachine):
    """A replica whose writer applies batches, ends and begins again, and is told other rollups."""

    @initialize(kept=st.sampled_from(ALL_KEPT))
    def open(self, kept: Kept) -> None:
        self.begin()
        self.kept = kept
        self.reopen()

    def rollups(self) -> Rollups:
        return rollups(self.kept)

    @rule(batch=changes)
    def apply(self, batch: Batch) -> None:
        self.take(batch)

    @rule(kept=st.sampled_from(ALL_KEPT))
    def declare_others(self, kept: Kept) -> None:
        if kept != self.kept:
            self.declared_anew()
        self.kept = kept
        self.writer.keep_rollups(self.rollups())

    @rule(batch=changes, more=changes)
    def load(self, batch: Batch, more: Batch) -> None:
        self.fill_another([batch, more])

    def check(self) -> None:
        reader = ReplicaReader(self.path)
        with reader.snapshot() as snapshot:
            assert snapshot.count() == len(self.rows)
            assert snapshot.rollups() == self.kept
            assert found(snapshot, self.kept) == recounted(self.rows, self.kept)
            assert snapshot.oldest() == min(self.past, default=None)
        for batch, rows in self.past.items():
            with reader.snapshot(as_of=batch) as snapshot:
                assert snapshot.count() == len(rows)
                assert dict(snapshot.range(b"")) == {CODEC.encode(key): row.encoded() for key, row in rows.items()}
                assert found(snapshot, self.kept) == recounted(rows, self.kept)
        reader.close()


Replica.TestCase.settings = settings(max_examples=examples(12, 40), stateful_step_count=12, deadline=None)
TestReplica = Replica.TestCase


@given(st.lists(st.integers() | st.integers(-4, 4).map(lambda n: n << 2_000)))
def test_whole_numbers_of_any_size_are_stored_as_they_are(numbers: list[int]) -> None:
    assert unpack(pack(numbers)) == numbers


def test_rollups_of_many_rows_are_made_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups_module, "ROWS_AT_ONCE", 7)
    rows: dict[Key, Row] = {("emma", "de", day): Row(1, day, 1, 0.5, 1) for day in range(100)}
    writer = ReplicaWriter(tmp_path)
    batch = AppliedBatch("q", 0, Position.start(), 0, 0)
    writer.apply(batch, [(CODEC.encode(key), row.encoded()) for key, row in rows.items()])
    kept: Kept = (("country",), ())
    writer.keep_rollups(rollups(kept))
    writer.close()
    reader = ReplicaReader(tmp_path)
    with reader.snapshot() as snapshot:
        assert found(snapshot, kept) == recounted(rows, kept)
    reader.close()


def test_a_writer_that_was_not_told_of_the_rollups_changes_nothing(tmp_path: Path) -> None:
    writer = ReplicaWriter(tmp_path)
    writer.keep_rollups(rollups((("country",),)))
    writer.close()
    forgetful = ReplicaWriter(tmp_path)
    with pytest.raises(AssertionError, match="keep_rollups comes first"):
        forgetful.apply(AppliedBatch("q", 0, Position.start(), 0, 0), [])
    assert forgetful.batch() is None
    forgetful.close()


WRITER = """
import random, sys
from pathlib import Path
from stateside.core.positions import Position
from stateside.replica.store import AppliedBatch, ReplicaWriter
from tests.replica.rollup_rows import CODEC, Row, rollups

writer = ReplicaWriter(Path(sys.argv[1]))
writer.keep_rollups(rollups((("country",), ("day", "country"), ())))
applied = writer.batch()
number = applied.batch if applied else -1
while True:
    number += 1
    chance = random.Random(number)
    batch = AppliedBatch("query", number, Position.of({"0": number}), 0, 0)
    keys = [(f"c{chance.randrange(600)}", chance.choice("abc"), chance.randrange(5)) for _ in range(300)]
    rows = [Row(1, chance.randrange(99), 7, chance.random(), 1) if chance.random() < 0.7 else None for _ in keys]
    writer.apply(batch, [(CODEC.encode(k), row and row.encoded()) for k, row in zip(keys, rows)])
    print(number, flush=True)
"""


@pytest.mark.e2e
def test_a_writer_killed_in_mid_batch_leaves_rows_and_rollups_of_one_batch(tmp_path: Path) -> None:
    from stateside.spark_state.unsafe_row import RowDecoder

    from .rollup_rows import STORED

    decoder, kept = RowDecoder(STORED), (("country",), ("day", "country"), ())
    for round_ in range(6):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
            assert process.stdout is not None
            first = int(process.stdout.readline())
            time.sleep(0.03 + 0.017 * round_)
            process.kill()
            last = max([first, *(int(line) for line in process.stdout if line.endswith("\n"))])
        reader = ReplicaReader(tmp_path)
        with reader.snapshot() as snapshot:
            applied = snapshot.batch()
            assert applied is not None
            assert applied.batch in (last, last + 1)
            rows: dict[Any, Row] = {}
            for key, row in snapshot.range(b""):
                orders, points, cents, empty, weight, weighed, _ = decoder.decode(row)
                unscaled = None if empty else int(cents * 100)  # type: ignore[operator, arg-type]
                rows[CODEC.decode(key)] = Row(orders, points, unscaled, weight, weighed)  # type: ignore[arg-type]
            assert found(snapshot, kept) == recounted(rows, kept)
        reader.close()
