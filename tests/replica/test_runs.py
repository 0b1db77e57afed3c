"""Sorted runs: whatever comes in, and wherever it is cut, the rows that are left come out in order, each once."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.positions import Position
from stateside.replica import bootstrap
from stateside.replica.bootstrap import Change, NewReplica, SortedRuns
from stateside.replica.key_table import SHORT_KEY_BYTES_MAX
from stateside.replica.rollup_tables import Rollups
from stateside.replica.store import AppliedBatch, ReplicaReader
from tests.sizes import examples

keys = st.binary(max_size=3)
parts = st.lists(st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=20), max_size=12)


def merged(found: list[list[Change]]) -> list[tuple[bytes, bytes]]:
    with TemporaryDirectory() as folder:
        sorted_runs = SortedRuns(Path(folder))
        for part in found:
            sorted_runs.add(part)
        rows = [row for some in sorted_runs.merged() for row in some]
        sorted_runs.close()
        assert list(Path(folder).iterdir()) == []
    return rows


@pytest.fixture(params=["all of it in memory", "in runs"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PAGE_ROWS", 3)
    monkeypatch.setattr(bootstrap, "PAGES_AT_ONCE", 2)
    if request.param == "in runs":
        monkeypatch.setattr(bootstrap, "RUN_BYTES", 2_000)


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(40, 300))
@given(parts)
def test_the_rows_that_changes_leave_come_out_in_order(found: list[list[Change]]) -> None:
    left = dict(change for part in found for change in part)
    assert merged(found) == sorted((key, row) for key, row in left.items() if row is not None)


def test_memory_is_given_back_with_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RUN_BYTES", 100_000)
    sorted_runs = SortedRuns(tmp_path)
    for part in range(100):
        sorted_runs.add(
            [(b"%d" % (number * 7_919 % 100_003), bytes(100)) for number in range(part * 100, part * 100 + 100)]
        )
        assert len(sorted_runs._changes) < 400
    sizes = [len(some) for some in sorted_runs.merged()]
    sorted_runs.close()
    assert sum(sizes) == 10_000


def test_large_rows_come_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run_bytes in (bootstrap.RUN_BYTES, 5_000_000):
        monkeypatch.setattr(bootstrap, "RUN_BYTES", run_bytes)
        sorted_runs = SortedRuns(tmp_path)
        for number in range(40):
            sorted_runs.add([(b"%02d" % number, bytes(400_000))])
        sizes = [len(some) for some in sorted_runs.merged()]
        sorted_runs.close()
        assert sum(sizes) == 40
        assert max(sizes) <= 2 * bootstrap.PAGES_AT_ONCE


def test_long_keys_are_stored_in_order_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB has them by their hash: a page of them cannot just be appended."""
    monkeypatch.setattr(bootstrap, "PAGE_ROWS", 5)
    long = [
        b"\x01" + b"k" * (SHORT_KEY_BYTES_MAX - 30 + size) + b"%03d" % number
        for size in range(0, 60, 7)
        for number in range(9)
    ]
    new = NewReplica(tmp_path / "1", "name", Rollups())
    new.put([(key, b"row") for key in long])
    new.finish(AppliedBatch("q", 0, Position.start(), 0, 0))
    reader = ReplicaReader(tmp_path / "1")
    with reader.snapshot() as snapshot:
        assert [key for key, _ in snapshot.range(b"")] == sorted(long)
    reader.close()
