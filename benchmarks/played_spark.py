"""Plays Spark's part: writes a checkpoint as Spark's RocksDB store does, by the million rows.

The view is that of a billing: key (account, period, kind), buffers (count, sum). Every row is in the format that
`stateside.spark_state` draws, and no code of that package wrote it. An account is a number. Spark's files have numbers
with the lowest byte first, so that the order of keys there says nothing about their order in a replica.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import numpy.typing as npt
import xxhash
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, SstFileWriter

from stateside.core.layout import ViewLayout
from stateside.views.catalogue import Catalogue, KeyColumn, StateColumn, ViewColumn

KEY = {"account": "long", "period": "timestamp", "kind": "string"}
BUFFERS = {"count": "long", "sum": "long"}
PERIOD_US = 1_770_000_000_000_000
KINDS = (b"call", b"message", b"data", b"roaming")
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LZ4_BLOCK_BYTES = 64 * 1024
SST_ROWS = 1_000_000
CHECKED_BYTES = 512

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class PlayedSpark:
    """A checkpoint in a view's layout, and what a query would write there: batches, and snapshots of the state."""

    def __init__(self, layout: ViewLayout, partitions: int = 1, rollups: tuple[tuple[str, ...], ...] = ()) -> None:
        self.partitions, self._root = partitions, layout.checkpoint
        self.batch = -1  # the last one that is committed
        key = tuple(
            KeyColumn(name, type_, StateColumn(at, name, type_), name) for at, (name, type_) in enumerate(KEY.items())
        )
        buffers = [StateColumn(at, name, type_) for at, (name, type_) in enumerate(BUFFERS.items())]
        columns = tuple(ViewColumn(each.name, "long", each.name, (each,), each.name) for each in buffers)
        layout.root.mkdir(parents=True)
        layout.catalogue.write_bytes(Catalogue("bench", "bench", 0, key, columns, rollups=rollups).as_json())
        self._put("metadata", b'{"id":"played"}')
        stores = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [{"numPartitions": partitions}]}
        self._put("state/0/_metadata/metadata", b"v1\n" + json.dumps(stores).encode())
        self._put("state/0/0/_metadata/schema", _utf("v2") + _schema(KEY) + _schema(BUFFERS))

    def changelogs(self, numbers: Numbers, change: int = 0) -> list[bytes]:
        """What each partition's changelog has if these accounts' rows changed to values that depend on `change`."""
        return [compressed(pairs(part, change) + b"\xff" * 4) for part in self._split(numbers)]

    def commit(self, changelogs: list[bytes]) -> None:
        """Run the next batch: write its changelogs, then commit it."""
        version = self.batch + 2
        for partition, content in enumerate(changelogs):
            self._put(f"state/0/{partition}/{version}.changelog", content)
        self._commit(self.batch + 1)

    def snapshot(self, batch: int, accounts: int) -> None:
        """Leave nothing but a batch at which the state has this many accounts, as snapshots."""
        for partition, part in enumerate(self._split(np.arange(accounts, dtype=np.int64))):
            self._snapshot(f"state/0/{partition}", batch + 1, part)
        self._commit(batch)

    def _split(self, numbers: Numbers) -> list[Numbers]:
        return [numbers[numbers % self.partitions == partition] for partition in range(self.partitions)]

    def _commit(self, batch: int) -> None:
        conf = {f"{_STORE}.providerClass": PROVIDER, "spark.sql.shuffle.partitions": str(self.partitions)}
        plan = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
        self._put(f"offsets/{batch}", f'v1\n{json.dumps(plan)}\n{{"0":{batch}}}'.encode())
        self._put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.batch = batch

    def _snapshot(self, folder: str, version: int, numbers: Numbers) -> None:
        local, stored = self._root / "local", self._root / folder
        (stored / "SSTs").mkdir(parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.set_compression_type(DBCompressionType.lz4())
        tables_as_sparks = BlockBasedOptions()
        tables_as_sparks.set_format_version(5)
        options.set_block_based_table_factory(tables_as_sparks)
        with Rdict(str(local), options) as database:
            database.ingest_external_file([str(path) for path in _tables(self._root, options, numbers)])
        tables, content = [], io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for path in sorted(local.iterdir()):
                if path.suffix == ".sst":
                    named = f"{path.stem}-{version}.sst"
                    tables.append(
                        {"localFileName": path.name, "dfsSstFileName": named, "sizeBytes": path.stat().st_size}
                    )
                    path.rename(stored / "SSTs" / named)
                    sums = checksums(memoryview((stored / "SSTs" / named).read_bytes()))
                    (stored / "SSTs" / f".{named}.crc").write_bytes(sums)
                elif path.name.startswith(("CURRENT", "MANIFEST", "OPTIONS")):
                    archive.write(path, path.name)
            metadata = {"sstFiles": tables, "numKeys": len(numbers), "columnFamilyMapping": {}}
            archive.writestr("metadata", f"v1\n{json.dumps(metadata)}")
        self._put(f"{folder}/{version}.zip", content.getvalue())
        shutil.rmtree(local)

    def _put(self, name: str, content: bytes) -> None:
        """As Spark does: whole, or not at all."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105 - twice as fast
        path.with_name(f".{path.name}.crc").write_bytes(_checksums(content))


def checksums(content: memoryview) -> bytes:
    """What Hadoop puts beside every file on a local disk."""
    sums = [zlib.crc32(content[at : at + CHECKED_BYTES]) for at in range(0, len(content), CHECKED_BYTES)]
    return struct.pack(f">4si{len(sums)}I", b"crc\0", CHECKED_BYTES, *sums)


@lru_cache(maxsize=8)
def _checksums(content: bytes) -> bytes:
    """The same, known of the changelogs that a benchmark commits in turns: no time is to be measured but a tail's."""
    return checksums(memoryview(content))


def pairs(numbers: Numbers, change: int) -> bytes:
    """The pairs of these accounts' rows, each key and value behind a version byte."""
    keys, values = key_rows(numbers), value_rows(numbers, change)
    sizes = [
        np.full((len(numbers), 4), np.frombuffer(struct.pack(">i", 1 + rows.shape[1]), np.uint8))
        for rows in (keys, values)
    ]
    version = np.zeros((len(numbers), 1), np.uint8)
    return np.hstack([sizes[0], version, keys, sizes[1], version, values]).tobytes()


def key_rows(numbers: Numbers) -> Bytes:
    """The accounts' keys, an UnsafeRow each."""
    texts = b"".join(kind.ljust(8, b"\0") for kind in KINDS)
    fields = [("nulls", "<i8"), ("account", "<i8"), ("period", "<i8"), ("size", "<i4"), ("at", "<i4"), ("kind", "V8")]
    rows = np.zeros(len(numbers), fields)
    rows["account"], rows["period"], rows["at"] = numbers, PERIOD_US, 32
    rows["size"] = np.array([len(kind) for kind in KINDS])[numbers % len(KINDS)]
    rows["kind"] = np.frombuffer(texts, "V8")[numbers % len(KINDS)]
    return rows.view(np.uint8).reshape(len(numbers), -1)


def value_rows(numbers: Numbers, change: int) -> Bytes:
    """The accounts' buffers."""
    words = np.stack([np.zeros(len(numbers), np.int64), np.full(len(numbers), change + 1), numbers + change], axis=1)
    return np.ascontiguousarray(words.astype("<i8")).view(np.uint8)


def compressed(content: bytes) -> bytes:
    """Java's LZ4 block stream."""
    parts = (content[at : at + LZ4_BLOCK_BYTES] for at in range(0, len(content), LZ4_BLOCK_BYTES))
    return b"".join(map(_block, parts)) + b"LZ4Block" + struct.pack("<BiiI", 0x16, 0, 0, 0)


_STORE = "spark.sql.streaming.stateStore"


def _block(part: bytes) -> bytes:
    checksum = xxhash.xxh32_intdigest(part, seed=0x9747B28C) & 0x0FFFFFFF
    body = lz4.block.compress(part, store_size=False)
    method, body = (0x10, part) if len(body) >= len(part) else (0x20, body)
    return b"LZ4Block" + struct.pack("<BiiI", method | 6, len(body), len(part), checksum) + body


def _tables(folder: Path, options: Options, numbers: Numbers) -> Iterator[Path]:
    """Tables with the rows of these accounts, in the order of their keys' bytes."""
    ordered = numbers[np.argsort(numbers.byteswap().view(np.uint64))]
    for at in range(0, len(numbers), SST_ROWS):
        path, some = folder / f"{at}.sst", ordered[at : at + SST_ROWS]
        keys, values = key_rows(some), value_rows(some, 0)
        writer = SstFileWriter(options)
        writer.open(str(path))
        for key, value in zip(map(bytes, keys), map(bytes, values), strict=True):
            writer[b"\0" + key] = b"\0" + value
        writer.finish()
        yield path


def _schema(columns: dict[str, str]) -> bytes:
    fields: list[dict[str, Any]] = [
        {"name": name, "type": t, "nullable": True, "metadata": {}} for name, t in columns.items()
    ]
    return struct.pack(">i", 1) + _utf(json.dumps({"type": "struct", "fields": fields}))


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()
