"""Encoders for what Spark writes, made from the drawings in the modules and sharing no code with them."""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import lz4.block
import pyarrow as pa
import pytest
import xxhash

from stateside.core.storage import Storage

LAYOUTS = {"boolean": "?", "byte": "b", "short": "h", "integer": "i", "long": "q", "float": "f", "double": "d"}
LAYOUTS |= {"date": "i", "timestamp": "q", "timestamp_ntz": "q"}

EncodeRow = Callable[[Sequence[str], Sequence[Any]], bytes]
Compress = Callable[..., bytes]
Record = tuple[bytes, bytes | None]
FamilyRecord = tuple[int, bytes, bytes | None, bool]


def _encode_row(types: Sequence[str], values: Sequence[Any]) -> bytes:
    words = (len(types) + 63) // 64
    nulls = sum(1 << index for index, value in enumerate(values) if value is None)
    fixed, variable = b"", b""
    for type_, value in zip(types, values, strict=True):
        if value is None:
            field = b""
        elif type_ in LAYOUTS:
            field = struct.pack("<" + LAYOUTS[type_], value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            field = struct.pack("<II", len(raw), 8 * words + 8 * len(types) + len(variable))
            variable += raw + bytes(-len(raw) % 8)
        fixed += field.ljust(8, b"\x00")
    return nulls.to_bytes(8 * words, "little") + fixed + variable


def _compress(content: bytes, block_bytes: int = 64 * 1024, stored: bool = False) -> bytes:
    def block(part: bytes) -> bytes:
        checksum = xxhash.xxh32_intdigest(part, seed=0x9747B28C) & 0x0FFFFFFF
        body = lz4.block.compress(part, store_size=False)
        method, body = (0x10, part) if stored or len(body) >= len(part) else (0x20, body)
        return b"LZ4Block" + struct.pack("<BiiI", method | 6, len(body), len(part), checksum) + body

    parts = (content[at : at + block_bytes] for at in range(0, len(content), block_bytes))
    return b"".join(map(block, parts)) + b"LZ4Block" + struct.pack("<BiiI", 0x16, 0, 0, 0)


def _compress_zstd(content: bytes, block_bytes: int = 64 * 1024) -> bytes:
    """Frames of zstd, one a block."""
    parts = [content[at : at + block_bytes] for at in range(0, len(content), block_bytes)] or [b""]
    return b"".join(pa.Codec("zstd", 1).compress(part, asbytes=True) for part in parts)


def _compress_snappy(content: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """The stream that snappy-java makes."""

    def block(part: bytes) -> bytes:
        body: bytes = pa.Codec("snappy").compress(part, asbytes=True)
        return struct.pack(">i", len(body)) + body

    parts = (content[at : at + block_bytes] for at in range(0, len(content), block_bytes))
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(map(block, parts))


def _delta(records: Iterable[Record]) -> bytes:
    """What stands in a delta, or in a snapshot, of the HDFS-backed store, inside the envelope."""
    content = b""
    for key, value in records:
        content += struct.pack(">i", len(key)) + key
        content += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return content + struct.pack(">i", -1)


def _changelog(records: Iterable[Record], lineage: list[dict[str, Any]] | None = None) -> bytes:
    """The content inside the envelope: version 3 with a lineage, else version 1. Keys and values are UnsafeRows."""
    content = b"" if lineage is None else _utf("v3") + _utf(json.dumps(lineage))
    for key, value in records:
        content += struct.pack(">i", len(key) + 1) + b"\x00" + key
        content += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value) + 1) + b"\x00" + value
    return content + struct.pack(">i", -1)


def _family_changelog(records: Iterable[FamilyRecord], lineage: list[dict[str, Any]] | None = None) -> bytes:
    """The same of version 4 with a lineage, else version 2. Keys and values are as a column family encodes them."""
    content = _utf("v2") if lineage is None else _utf("v4") + _utf(json.dumps(lineage))
    for family, key, value, appended in records:
        content += bytes([0x10 if value is None else 0x11 if appended else 0x01])
        content += struct.pack(">ih", len(key) + 2, int.from_bytes(struct.pack("<h", family), "big", signed=True)) + key
        content += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return content + b"\x00"


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def _schema_file(*schemas: list[tuple[str, Any]], chunk_chars: int = 65_535, version: str = "v2") -> bytes:
    content = _utf(version)
    for columns in schemas:
        fields = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in columns]
        text = json.dumps({"type": "struct", "fields": fields})
        chunks = [text[at : at + chunk_chars] for at in range(0, len(text), chunk_chars)]
        content += struct.pack(">i", len(chunks)) + b"".join(map(_utf, chunks))
    return content


CODECS: dict[str, Compress] = {"lz4": _compress, "zstd": _compress_zstd, "snappy": _compress_snappy}


@pytest.fixture(scope="session")
def encode_row() -> EncodeRow:
    return _encode_row


@pytest.fixture(scope="session")
def compress() -> Compress:
    return _compress


@pytest.fixture(scope="session", params=["lz4", "zstd", "snappy"])
def compress_any(request: pytest.FixtureRequest) -> Compress:
    """Each of the codecs in turn."""
    return CODECS[request.param]


@pytest.fixture(scope="session", params=["zstd", "snappy"])
def compress_unchecked(request: pytest.FixtureRequest) -> Compress:
    """Each of the codecs without checksums in turn."""
    return CODECS[request.param]


@pytest.fixture(scope="session")
def encode_delta() -> Callable[[Iterable[Record]], bytes]:
    return _delta


@pytest.fixture(scope="session")
def encode_changelog() -> Callable[..., bytes]:
    return _changelog


@pytest.fixture(scope="session")
def encode_family_changelog() -> Callable[..., bytes]:
    return _family_changelog


@pytest.fixture(scope="session")
def encode_schema() -> Callable[..., bytes]:
    return _schema_file


@pytest.fixture(scope="session")
def encode_text() -> Callable[[str], bytes]:
    return _utf


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes | str], Storage]:
    """Lay a file down in the checkpoint's folder; returns the folder."""

    def write(name: str, content: bytes | str) -> Storage:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return Storage.at(tmp_path)

    return write
