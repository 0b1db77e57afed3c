"""How much of LMDB's own speed is left when a batch is moved with its stamp in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import lmdb

from benchmarks.compare import Result, Side, compare
from stateside.positions import Position
from stateside.replica.keys import KeyCodec
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter

ROWS = 50_000


def run(folder: Path) -> Iterator[Result]:
    codec = KeyCodec(["string", "timestamp", "string"])
    changes = [(codec.encode([f"c{n:07d}", 1_770_000_000_000_000, "call"]), b"\0" * 24) for n in range(ROWS)]
    writer = ReplicaWriter(folder / "replica")
    peer = lmdb.open(str(folder / "peer"), map_size=1 << 30, metasync=False)

    batches = count()

    def apply() -> int:
        writer.apply(AppliedBatch("q", next(batches), Position.start(), 0, 0), changes)
        return ROWS

    def bare() -> int:
        with peer.begin(write=True) as transaction:
            for key, row in changes:
                transaction.put(key, row)
        return ROWS

    yield compare(f"batches of {ROWS:,} changed rows", "rows/s", Side("replica", apply), Side("bare LMDB puts", bare))
    writer.close()
    yield _lookups(folder, peer, changes)
    peer.close()


def _lookups(folder: Path, peer: lmdb.Environment, changes: list[tuple[bytes, bytes | None]]) -> Result:
    reader = ReplicaReader(folder / "replica")
    keys = [key for key, _ in changes[::5]]

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
