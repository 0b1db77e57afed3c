"""The benchmarks' checkpoint, which no Spark wrote: what a replica makes of it, by following it and by loading it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.played_spark import KINDS, PERIOD_US, PlayedSpark
from stateside.core.layout import ViewLayout
from stateside.replica import bootstrap
from stateside.replica.bootstrap import LoadProgress
from stateside.replica.keys import KeyCodec
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail
from stateside.spark_state import slices

ACCOUNTS = 2_000
CODEC = KeyCodec(["long", "timestamp", "string"])


def followed(layout: ViewLayout) -> list[LoadProgress]:
    seen: list[LoadProgress] = []
    tail = Tail(layout, watch=seen.append)
    tail.step()
    tail.close()
    return seen


def accounts(layout: ViewLayout) -> dict[int, tuple[str, int, int]]:
    """Kind, count and sum by account, in the order of the replica."""
    reader = ReplicaReader(layout.replica)
    found = {}
    with reader.snapshot() as snapshot:
        for key, row in snapshot.range(b""):
            account, period, kind = CODEC.decode(key)
            assert (period, int.from_bytes(row[:8], "little")) == (PERIOD_US, 0)
            found[account] = (kind, int.from_bytes(row[8:16], "little"), int.from_bytes(row[16:], "little"))
    reader.close()
    return found  # type: ignore[return-value]


def expected(changed: set[int]) -> dict[int, tuple[str, int, int]]:
    return {
        number: (KINDS[number % 4].decode(), 6 if number in changed else 1, number + (5 if number in changed else 0))
        for number in range(ACCOUNTS)
    }


@pytest.fixture(params=["at once", "in small parts"])
def layout(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ViewLayout:
    if request.param == "in small parts":
        monkeypatch.setattr(slices, "PART_ROWS", 100)
        monkeypatch.setattr("stateside.spark_state.rocksdb_snapshot.BLOCK_BYTES", 10_000)
        monkeypatch.setattr(bootstrap, "ROWS_AT_ONCE", 70)
        monkeypatch.setattr(bootstrap, "RUN_BYTES", 50_000)
        monkeypatch.setattr(bootstrap, "PAGE_ROWS", 30)
    return ViewLayout(tmp_path / "bench")


def test_a_replica_follows_batch_by_batch(layout: ViewLayout) -> None:
    spark = PlayedSpark(layout, partitions=3)
    spark.commit(spark.changelogs(np.arange(ACCOUNTS)))
    spark.commit(spark.changelogs(np.arange(0, ACCOUNTS, 7), change=5))
    assert followed(layout) == [], "nothing had to be loaded"
    assert accounts(layout) == expected(set(range(0, ACCOUNTS, 7)))
    assert list(accounts(layout)) == list(range(ACCOUNTS))


def test_a_replica_that_comes_late_is_loaded_and_tells_how_far_it_is(layout: ViewLayout) -> None:
    spark = PlayedSpark(layout, partitions=3)
    spark.snapshot(batch=9, accounts=ACCOUNTS)
    spark.commit(spark.changelogs(np.arange(0, ACCOUNTS, 7), change=5))
    spark.commit(spark.changelogs(np.arange(1, ACCOUNTS, 7), change=5))
    seen = followed(layout)
    assert accounts(layout) == expected({*range(0, ACCOUNTS, 7), *range(1, ACCOUNTS, 7)})
    assert list(accounts(layout)) == list(range(ACCOUNTS))
    assert (seen[-1].view, seen[-1].batch, seen[-1].done) == ("bench", 11, 1.0)
    assert (layout.replica / "current").read_text() == "1"
    assert sorted(path.name for path in (layout.replica / "1").iterdir()) == ["checksums", "data.mdb", "lock.mdb"]
