"""How much of LMDB's own speed is left when a tail moves a replica: files read, opened, decoded, keys put in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import lmdb
import numpy as np

from benchmarks.compare import Result, Side, compare
from benchmarks.played_spark import Numbers, PlayedSpark
from stateside.core.layout import ViewLayout
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail

ROWS = 200_000
SCATTERED_ACCOUNTS = 1_000_000
LOOKUPS = 10_000

Pairs = list[tuple[bytes, bytes]]


class Followed:
    """A replica of this many accounts, and a side that moves it by batches in which some of them changed."""

    def __init__(self, root: Path, accounts: int, changed: Numbers, rollups: tuple[tuple[str, ...], ...] = ()) -> None:
        self.layout = ViewLayout(root)
        self._spark = PlayedSpark(self.layout, partitions=2, rollups=rollups)
        self._spark.commit(self._spark.changelogs(np.arange(accounts)))
        self._turns = [self._spark.changelogs(changed, change) for change in (1, 2)]
        self._rows = len(changed)
        first = Tail(self.layout)
        first.step()
        first.close()
        self.pairs = self._pairs()
        self.tail = Tail(self.layout)
        self.side = Side("tail, from files", self._move)

    def _move(self) -> int:
        self._spark.commit(self._turns[self._spark.batch % 2])
        assert self.tail.step()
        return self._rows

    def _pairs(self) -> Pairs:
        reader = ReplicaReader(self.layout.replica)
        with reader.snapshot() as snapshot:
            pairs = list(snapshot.range(b""))
        reader.close()
        return pairs


def run(folder: Path) -> Iterator[Result]:
    everybody = np.arange(ROWS)
    dense, peer = Followed(folder / "dense", ROWS, everybody), _environment(folder / "peer")
    yield compare(f"batches of {ROWS:,} changed rows, of {ROWS:,}", "rows/s", dense.side, _bare(peer, dense.pairs))
    rolled_up = Followed(folder / "rollup", ROWS, everybody, rollups=(("kind",),))
    with_rollup, without = Side("with a rollup", rolled_up.side.work), Side("without", dense.side.work)
    yield compare(f"batches of {ROWS:,} changed rows with a rollup", "rows/s", with_rollup, without)
    dense.tail.close()
    yield _lookups(dense, peer)
    some = np.random.default_rng(1).choice(SCATTERED_ACCOUNTS, ROWS // 4, replace=False)
    scattered, peer = Followed(folder / "scattered", SCATTERED_ACCOUNTS, some), _environment(folder / "scattered peer")
    name = f"batches of {len(some):,} changed rows, scattered over {SCATTERED_ACCOUNTS:,}"
    yield compare(name, "rows/s", scattered.side, _bare(peer, scattered.pairs, some))


def _environment(folder: Path) -> lmdb.Environment:
    """As durable as a replica's."""
    return lmdb.open(str(folder), map_size=1 << 32, metasync=False)


def _bare(environment: lmdb.Environment, pairs: Pairs, numbers: Numbers | None = None) -> Side:
    """The same rows out of memory, keys already made and in order."""
    with environment.begin(write=True) as transaction:
        transaction.cursor().putmulti(pairs)
    changed = pairs if numbers is None else [pairs[number] for number in sorted(numbers.tolist())]
    turns = [[(key, bytes([turn] * len(row))) for key, row in changed] for turn in range(2)]
    turn = count()

    def work() -> int:
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(turns[next(turn) % 2])
        return len(changed)

    return Side("bare LMDB puts, in order", work)


def _lookups(replica: Followed, peer: lmdb.Environment) -> Result:
    reader, keys = ReplicaReader(replica.layout.replica), [key for key, _ in replica.pairs[:: ROWS // LOOKUPS]]

    def get() -> int:
        for key in keys:
            with reader.snapshot() as snapshot:
                assert snapshot.batch() and snapshot.get(key)
        return len(keys)

    def bare() -> int:
        for key in keys:
            with peer.begin() as transaction:
                assert transaction.get(key)
        return len(keys)

    result = compare("point lookups with their stamp", "lookups/s", Side("replica", get), Side("bare LMDB gets", bare))
    reader.close()
    return result
