"""The files of a checkpoint as they lie on the disk, read with nothing of Stateside and nothing of Spark."""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lz4.block


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder."""

    path: Path

    def planned(self) -> list[int]:
        """The batches that have a file in `offsets/`."""
        return _numbered_files(self.path / "offsets")

    def committed(self) -> list[int]:
        """The batches that have a file in `commits/`."""
        return _numbered_files(self.path / "commits")

    def offsets(self, batch: int) -> "LogFile":
        return LogFile.read(self.path / "offsets" / str(batch))

    def commit(self, batch: int) -> "LogFile":
        return LogFile.read(self.path / "commits" / str(batch))

    def watermark_ms(self, batch: int) -> int:
        return int(self.offsets(batch).metadata["batchWatermarkMs"])

    def state_folder(self, operator: int = 0, partition: int = 0) -> Path:
        return self.path / "state" / str(operator) / str(partition)

    def state_ids(self, batch: int, operator: int = 0) -> list[list[str]]:
        """For each partition, the ids of the files of its stores that `commits/batch` names."""
        ids: list[list[str]] = self.commit(batch).metadata["stateUniqueIds"][str(operator)]
        return ids

    def changelog(self, batch: int, partition: int) -> "Changelog":
        """The changelog of the one store of a partition that `commits/batch` names."""
        [state_id] = self.state_ids(batch)[partition]
        return Changelog.read(self.state_folder(0, partition) / f"{batch + 1}_{state_id}.changelog")


@dataclass(frozen=True)
class LogFile:
    """A file of `offsets/` or `commits/`: a version, a line of JSON, and in `offsets/` one line more a source."""

    version: str
    metadata: dict[str, Any]
    sources: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "LogFile":
        version, metadata, *sources = path.read_text().split("\n")
        return cls(version, json.loads(metadata), sources)


@dataclass(frozen=True)
class Changelog:
    """A changelog of checkpoint format v2, of a store without column families ("v3").

    Java "LZ4Block" frames over: UTF "v3", UTF lineage as JSON, then records, then int -1.
    A record: int key length, key, int value length or -1 for a delete, value. UTF: short length, bytes.
    """

    version: str
    lineage: list[dict[str, Any]]
    records: list[tuple[bytes, bytes | None]]

    @classmethod
    def read(cls, path: Path) -> "Changelog":
        data = b"".join(_lz4_blocks(path.read_bytes()))
        version, at = _utf(data, 0)
        lineage, at = _utf(data, at)
        return cls(version, json.loads(lineage), list(_records(data, at)))


@dataclass(frozen=True)
class StateSchema:
    """A `_metadata/schema` file: UTF "v2", then the key and the value schema, each an int chunk count and UTF
    chunks.
    """

    version: str
    key: list[dict[str, Any]]
    value: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> "StateSchema":
        data = path.read_bytes()
        version, at = _utf(data, 0)
        key, at = _chunked_utf(data, at)
        value, at = _chunked_utf(data, at)
        assert at == len(data)
        return cls(version, json.loads(key)["fields"], json.loads(value)["fields"])


def versions_and_ids(folder: Path, suffix: str) -> list[tuple[int, str]]:
    """The (version, unique id) of each state file with this suffix in the folder of a store, in order of version."""
    matches = (re.fullmatch(rf"(\d+)_([0-9a-f-]{{36}})\.{suffix}", file.name) for file in folder.iterdir())
    return sorted((int(match[1]), match[2]) for match in matches if match)


def _numbered_files(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in folder.glob("*") if file.name.isdigit())


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    """Frames: "LZ4Block", byte token, int compressed size, int size, int checksum (little endian), bytes."""
    at = 0
    while at < len(data):
        assert data[at : at + 8] == b"LZ4Block"
        token, compressed_size, size, _checksum = struct.unpack_from("<Biii", data, at + 8)
        at += 21
        block = data[at : at + compressed_size]
        at += compressed_size
        is_raw = token & 0xF0 == 0x10
        yield block if is_raw else lz4.block.decompress(block, uncompressed_size=size)


def _records(data: bytes, at: int) -> Iterator[tuple[bytes, bytes | None]]:
    while (key_size := _int(data, at)) != -1:
        key = data[at + 4 : at + 4 + key_size]
        at += 4 + key_size
        value_size = _int(data, at)
        yield key, None if value_size == -1 else data[at + 4 : at + 4 + value_size]
        at += 4 + max(value_size, 0)
    assert at + 4 == len(data)


def _chunked_utf(data: bytes, at: int) -> tuple[str, int]:
    text, count, at = "", _int(data, at), at + 4
    for _ in range(count):
        chunk, at = _utf(data, at)
        text += chunk
    return text, at


def _utf(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def _int(data: bytes, at: int) -> int:
    (value,) = struct.unpack_from(">i", data, at)
    return int(value)
