"""How much of LMDB's own speed is left when a batch is moved with its stamp in one transaction."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import lmdb

from benchmarks.compare import Result, Side, compare
from stateside.checkpoint.catalogue import Catalogue, KeyColumn, Stored, ViewColumn
from stateside.checkpoint.schema import Column
from stateside.checkpoint.unsafe_row import RowDecoder
from stateside.positions import Position
from stateside.replica.keys import KeyCodec
from stateside.replica.rollups import Rollups
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter

ROWS = 50_000
_ROW = struct.Struct("<Qqq")


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
    yield _rollups(folder)


def _rollups(folder: Path) -> Result:
    """Rows that change every time, of 50 countries; each is read, taken away and added once more than without."""
    names = {"customer": "string", "country": "string"}
    key = tuple(KeyColumn(name, type_, Stored(at, name, type_), name) for at, (name, type_) in enumerate(names.items()))
    buffers = [Stored(at, name, "long") for at, name in enumerate(("count", "sum"))]
    columns = tuple(ViewColumn(each.name, "long", each.name, (each,), each.name) for each in buffers)
    catalogue = Catalogue("bench", "bench", 0, key, columns, rollups=(("country",),))
    codec = KeyCodec(list(names.values()))
    keys = [codec.encode([f"c{n:07d}", f"country {n % 50}"]) for n in range(ROWS)]

    def side(name: str, rollups: Rollups) -> Side:
        writer, batches = ReplicaWriter(folder / name), count()
        writer.keep_rollups(rollups)

        def apply() -> int:
            number = next(batches)
            changes = [(key, _ROW.pack(0, number, 3 * number)) for key in keys]
            writer.apply(AppliedBatch("q", number, Position.start(), 0, 0), changes)
            return ROWS

        return Side(name, apply)

    kept = Rollups(catalogue, RowDecoder([Column(each.name, each.type) for each in buffers]))
    return compare(
        f"batches of {ROWS:,} changed rows with a rollup",
        "rows/s",
        side("with a rollup", kept),
        side("without", Rollups()),
    )


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
