"""A query's checkpoint, written as Spark writes it, file by file, without Spark; and what its replica must have.

Encoders are made from the drawings in `stateside.spark_state` and share no code with it. The state has a row for each
(customer, country): how many orders, and their total.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import lz4.block
import xxhash
from rocksdict import Options, Rdict

from stateside.core.layout import ViewLayout
from stateside.replica.keys import KeyCodec
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.snapshot import Snapshot
from stateside.replica.tail import Tail
from stateside.spark_state.types import Column
from stateside.spark_state.unsafe_row import RowDecoder
from stateside.views.catalogue import Catalogue, KeyColumn, StateColumn, ViewColumn

PARTITIONS = 2
STATE = "org.apache.spark.sql.execution.streaming.state"
KEY, VALUE = [("customer", "string"), ("country", "string")], [("count", "long"), ("sum", "long")]
CODEC, DECODER = KeyCodec(["string", "string"]), RowDecoder([Column(*column) for column in VALUE])

_TIMES_MS = count(1_700_000_000_000)  # no two batches are planned at the same time, nor two attempts at one

Key = tuple[str, str]
Row = tuple[int, int]
Rows = dict[Key, Row]
Changes = dict[Key, Row | None]


class Job:
    """A query on the checkpoint of a view. `run` is a whole batch; `plan`, `store` and `commit` are its steps.

    With `ids` it is RocksDB in checkpoint format v2, without Spark's default store in format v1. With `checksums`
    Hadoop's lie beside all files, and Spark's beside those of a state in format v2.
    """

    def __init__(
        self, view: ViewLayout, *, ids: bool = True, rollups: Iterable[Iterable[str]] = (), checksums: bool = False
    ) -> None:
        self.view, self.ids, self.checksums = view, ids, checksums
        self.partitions, self._repartitioned = PARTITIONS, 0
        self.batch, self.states = 0, list[Rows]()
        self.state_ids: list[list[str]] = []
        view.root.mkdir(parents=True, exist_ok=True)
        view.catalogue.write_bytes(catalogue(rollups).as_json())
        self._put("metadata", json.dumps({"id": str(uuid4())}).encode())

    @property
    def rows(self) -> Rows:
        """The state after the last batch."""
        return self.states[-1] if self.states else {}

    def run(self, changes: Changes) -> None:
        """One more batch."""
        self.plan()
        self.store(changes)
        self.commit()

    def plan(self) -> None:
        """Write `offsets/N`."""
        provider = "RocksDBStateStoreProvider" if self.ids else "HDFSBackedStateStoreProvider"
        conf = {
            "spark.sql.streaming.stateStore.providerClass": f"{STATE}.{provider}",
            "spark.sql.shuffle.partitions": str(self.partitions),
        }
        plan = {"batchWatermarkMs": 0, "batchTimestampMs": next(_TIMES_MS), "conf": conf}
        self._put(
            f"offsets/{self.batch}", f"v1\n{json.dumps(plan)}\n{json.dumps({'a': 10 * (self.batch + 1)})}".encode()
        )

    def store(self, changes: Changes) -> None:
        """Write what the batch changes, as one attempt at it does; another attempt may do so again."""
        if self.batch == 0:
            info = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}
            metadata = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": [info]}
            self._put("state/0/_metadata/metadata", f"v1\n{json.dumps(metadata)}".encode())
            self._put("state/0/0/_metadata/schema", _schema(KEY, VALUE))
        self._written = {key: row for key, row in changes.items() if row is None or self.rows.get(key) != row}
        self._ids = [uuid4().hex for _ in range(self.partitions)]
        for partition in range(self.partitions):
            mine = {key: row for key, row in self._written.items() if self._home(key) == partition}
            records = [(_row(key), row and _row(row)) for key, row in mine.items()]
            self._put(self.changes_name(self.batch, partition, self._ids), self._content(partition, records))

    def commit(self) -> None:
        """Write `commits/N`: from now on the batch exists, with the files of the last attempt at it."""
        after = self.rows | self._written
        self.states.append({key: row for key, row in after.items() if row is not None})
        self.state_ids.append(self._ids)
        commit: dict[str, Any] = {"nextBatchWatermarkMs": 0}
        if self.ids:
            commit["stateUniqueIds"] = {"0": [[state_id] for state_id in self._ids]}
        self._put(f"commits/{self.batch}", f"v{2 if self.ids else 1}\n{json.dumps(commit)}".encode())
        self.batch += 1

    def repartition(self, partitions: int) -> None:
        """A batch of its own that brings the state into so many partitions, and is all snapshots; in RocksDB alone."""
        self.partitions, self._repartitioned = partitions, self.batch
        self.plan()
        self._written, self._ids = {}, [uuid4().hex for _ in range(partitions)]
        for partition in range(partitions):
            self._snapshot(self.batch, partition, self.rows, self._ids)
        self.commit()

    def skip(self) -> None:
        """Commit a batch that failed, without a state: Spark does so if told to before it repartitions the state."""
        self.plan()
        self.states.append(self.rows)
        self.state_ids.append([])
        self._put(f"commits/{self.batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.batch += 1

    def snapshot(self, batch: int | None = None) -> list[Path]:
        """Write snapshots of the state after a batch, as Spark's maintenance does; their files."""
        batch = self.batch - 1 if batch is None else batch
        return [
            self._snapshot(batch, partition, self.states[batch], self.state_ids[batch])
            for partition in range(self.partitions)
        ]

    def purge(self, before: int) -> None:
        """Delete batches that are older, and their state, as Spark's retention does."""
        for batch in range(before):
            for folder in ("offsets", "commits"):
                (self.view.checkpoint / folder / str(batch)).unlink(missing_ok=True)
            for path in (self.view.checkpoint / "state" / "0").glob(f"[0-9]*/{batch + 1}[_.]*"):
                path.unlink()

    def roll_back(self, to: int) -> None:
        """Go back to a batch, as one does by deleting the later ones' offsets and commits."""
        for batch in range(to + 1, self.batch):
            for folder in ("offsets", "commits"):
                (self.view.checkpoint / folder / str(batch)).unlink()
        del self.states[to + 1 :], self.state_ids[to + 1 :]
        self.batch = to + 1

    def changes_name(self, batch: int, partition: int, ids: list[str] | None = None) -> str:
        """The file with what a batch changed."""
        if not self.ids:
            return f"state/0/{partition}/{batch + 1}.delta"
        return f"state/0/{partition}/{batch + 1}_{(ids or self.state_ids[batch])[partition]}.changelog"

    def changes_file(self, batch: int, partition: int = 0) -> Path:
        """The same as a path."""
        return self.view.checkpoint / self.changes_name(batch, partition)

    def _content(self, partition: int, records: list[tuple[bytes, bytes | None]]) -> bytes:
        if not self.ids:
            return _envelope(_pairs(records, b""))
        lineage = [
            {"version": batch + 1, "checkpointUniqueId": self.state_ids[batch][partition]}
            for batch in range(self._repartitioned, self.batch)
        ]
        return _envelope(_utf("v3") + _utf(json.dumps(lineage)) + _pairs(records, b"\x00"))

    def _snapshot(self, batch: int, partition: int, state: Rows, ids: list[str]) -> Path:
        rows = [(_row(k), _row(row)) for k, row in state.items() if self._home(k) == partition]
        folder = f"state/0/{partition}"
        if not self.ids:
            return self._put(f"{folder}/{batch + 1}.snapshot", _envelope(_pairs(rows, b"")))
        content, tables = _rocksdb(rows, self.view.root / "rocksdb")
        for name, table in tables.items():
            self._put(f"{folder}/SSTs/{name}", table)
        return self._put(f"{folder}/{batch + 1}_{ids[partition]}.zip", content)

    def _home(self, key: Key) -> int:
        return zlib.crc32(repr(key).encode()) % self.partitions

    def _put(self, name: str, content: bytes) -> Path:
        """Write a file under another name, and rename it."""
        path = self.view.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4()}.tmp")
        temporary.write_bytes(content)
        temporary.rename(path)
        if self.checksums:
            path.with_name(f".{path.name}.crc").write_bytes(_hadoops_checksums(content))
            if self.ids and path.suffix in (".changelog", ".zip"):
                path.with_name(f"{path.name}.crc").write_text(_sparks_checksum(content))
        return path


def catalogue(rollups: Iterable[Iterable[str]] = ()) -> Catalogue:
    key = tuple(KeyColumn(name, type_, StateColumn(at, name, type_), name) for at, (name, type_) in enumerate(KEY))
    buffers = [StateColumn(at, name, type_) for at, (name, type_) in enumerate(VALUE)]
    columns = (
        ViewColumn("orders", "long", "count", (buffers[0],), "count(1)"),
        ViewColumn("total", "long", "sum", (buffers[1],), "sum(amount)"),
    )
    return Catalogue("shop", "spending", 0, key, columns, rollups=tuple(map(tuple, rollups)))


def replica_rows(snapshot: Snapshot) -> Rows:
    """The rows of a snapshot of the replica."""
    return {_key(key): _decoded(row) for key, row in snapshot.range(b"")}


def has(tail: Tail) -> tuple[int, Rows]:
    """What readers in other processes have now of a replica that this process writes."""
    snapshot = Snapshot(tail._writer._published())
    batch = snapshot.batch()
    return -1 if batch is None else batch.batch, replica_rows(snapshot)


def answered(view: ViewLayout, as_of: int | None = None) -> tuple[int, Rows, str | None]:
    """What readers have now, in this process: the batch, its rows, and the trouble that they are told of."""
    reader = ReplicaReader(view.replica)
    try:
        with reader.snapshot(as_of) as snapshot:
            batch = snapshot.batch()
            return -1 if batch is None else batch.batch, replica_rows(snapshot), snapshot.trouble()
    finally:
        reader.close()


def _key(key: bytes) -> Key:
    customer, country = CODEC.decode(key)
    return str(customer), str(country)


def _decoded(row: bytes) -> Row:
    count, total = DECODER.decode(row)
    assert isinstance(count, int) and isinstance(total, int)
    return count, total


def _hadoops_checksums(content: bytes) -> bytes:
    parts = (content[at : at + 512] for at in range(0, len(content), 512))
    return b"crc\x00" + struct.pack(">i", 512) + b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)


def _sparks_checksum(content: bytes) -> str:
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    (signed,) = struct.unpack(">i", struct.pack(">I", value ^ 0xFFFFFFFF))
    return json.dumps({"algorithm": "CRC32C", "value": signed, "mainFileSize": len(content)})


def _row(values: Iterable[str | int]) -> bytes:
    """An UnsafeRow of two columns."""
    fixed, variable = b"", b""
    for value in values:
        if isinstance(value, int):
            fixed += struct.pack("<q", value)
        else:
            fixed += struct.pack("<II", len(value.encode()), 24 + len(variable))
            variable += value.encode() + bytes(-len(value.encode()) % 8)
    return bytes(8) + fixed + variable


def _pairs(records: Iterable[tuple[bytes, bytes | None]], version: bytes) -> bytes:
    content = b""
    for key, row in records:
        content += struct.pack(">i", len(version + key)) + version + key
        content += struct.pack(">i", -1) if row is None else struct.pack(">i", len(version + row)) + version + row
    return content + struct.pack(">i", -1)


def _envelope(content: bytes) -> bytes:
    blocks = b""
    for at in range(0, len(content), 65_536):
        part = content[at : at + 65_536]
        body, checksum = lz4.block.compress(part, store_size=False), xxhash.xxh32_intdigest(part, seed=0x9747B28C)
        method, body = (0x16, part) if len(body) >= len(part) else (0x26, body)
        blocks += b"LZ4Block" + struct.pack("<BiiI", method, len(body), len(part), checksum & 0x0FFFFFFF) + body
    return blocks + b"LZ4Block" + struct.pack("<BiiI", 0x16, 0, 0, 0)


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def _schema(*parts: list[tuple[str, str]]) -> bytes:
    content = _utf("v2")
    for columns in parts:
        fields = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in columns]
        content += struct.pack(">i", 1) + _utf(json.dumps({"type": "struct", "fields": fields}))
    return content


def _rocksdb(rows: Iterable[tuple[bytes, bytes]], scratch: Path) -> tuple[bytes, dict[str, bytes]]:
    """A snapshot's zip, and its tables under the names that it gives them."""
    with Rdict(str(scratch), Options(raw_mode=True)) as database:
        for key, row in rows:
            database[b"\x00" + key] = b"\x00" + row
        database.flush()
    content, tables, entries = io.BytesIO(), dict[str, bytes](), []
    with zipfile.ZipFile(content, "w") as archive:
        for path in sorted(scratch.iterdir()):
            if path.suffix == ".sst":
                named = f"{path.stem}-{uuid4()}.sst"
                tables[named] = path.read_bytes()
                size_bytes = path.stat().st_size
                entries.append({"localFileName": path.name, "dfsSstFileName": named, "sizeBytes": size_bytes})
            elif path.name.startswith(("CURRENT", "MANIFEST", "OPTIONS")):
                archive.write(path, path.name)
        archive.writestr("metadata", f"v1\n{json.dumps({'sstFiles': entries, 'columnFamilyMapping': {}})}")
    shutil.rmtree(scratch)
    return content.getvalue(), tables
