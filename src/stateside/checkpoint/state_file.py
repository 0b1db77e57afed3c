"""A file of a state store, checked and taken out of its envelope.

Beside a file may lie its checksums, one or both of

    NAME.crc  := {"algorithm": "CRC32C", "value": of the whole file (i32), "mainFileSize": …, …}
                                        by Spark from 4.1 on, in checkpoint format v2
    .NAME.crc := "crc" 00  size of a part (i32)  CRC-32 of each part (u32)*
                                        by Hadoop, on local disks; numbers big-endian

They are looked at where the envelope has no checksums of its own. A file without any (snappy or zstd, format v1, not
on a local disk) is believed as the file system gives it: a byte that changed in it may come out as a wrong row.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator

from stateside.checkpoint.checksum import crc32c
from stateside.checkpoint.compression import codec_of, damaged, expand
from stateside.storage import Storage

_ALGORITHM = "CRC32C"
_PARTS_HEADER = struct.Struct(">4si")
_PARTS_MAGIC = b"crc\x00"


def read_state_file(storage: Storage, name: str) -> Iterator[bytes]:
    """The bytes inside a state file, piece by piece.

    FileNotFoundError where there is none; CheckpointInvalid, at once or at a later piece, if it is damaged.
    """
    content, path = storage.read(name), storage.path(name)
    if not codec_of(content, path).has_checksums:
        _check_parts(storage, name, content)
        _check_whole(storage, name, content)
    return expand(content, path)


def checksum_names(name: str) -> tuple[str, str]:
    """The files in which a state file's checksums may lie, Hadoop's and Spark's: a copy of it is to have them too."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/.{base}.crc", f"{name}.crc"


def _check_parts(storage: Storage, name: str, content: bytes) -> None:
    """Compare with Hadoop's checksums."""
    checksum_name, _ = checksum_names(name)
    sums = _read_if_there(storage, checksum_name)
    if sums is None:
        return
    if len(sums) < _PARTS_HEADER.size or not sums.startswith(_PARTS_MAGIC):
        raise damaged(storage.path(checksum_name), 0, "these are no checksums of Hadoop's")
    _, part_bytes = _PARTS_HEADER.unpack_from(sums)
    count = -(-len(content) // part_bytes) if part_bytes > 0 else -1
    if len(sums) != _PARTS_HEADER.size + 4 * count:
        raise damaged(storage.path(name), len(content), f"its size does not fit {storage.path(checksum_name)}")
    for index, expected in enumerate(struct.unpack_from(f">{count}I", sums, _PARTS_HEADER.size)):
        at_byte = index * part_bytes
        if zlib.crc32(content[at_byte : at_byte + part_bytes]) != expected:
            raise damaged(storage.path(name), at_byte, f"from here on it differs from {storage.path(checksum_name)}")


def _check_whole(storage: Storage, name: str, content: bytes) -> None:
    """Compare with Spark's checksum."""
    _, checksum_name = checksum_names(name)
    text, path = _read_if_there(storage, checksum_name), storage.path(checksum_name)
    if text is not None and _expected(text, path) != (crc32c(content), len(content)):
        raise damaged(storage.path(name), 0, f"the file does not match its checksum, {path}")


def _expected(text: bytes, path: str) -> tuple[int, int]:
    """The checksum and the size that a file should have."""
    try:
        entry = json.loads(text)
        if entry["algorithm"] != _ALGORITHM:
            raise ValueError(f"the algorithm {entry['algorithm']!r} is not known")
        return int(entry["value"]) % 2**32, int(entry["mainFileSize"])
    except (ValueError, LookupError, TypeError) as error:
        raise damaged(path, 0, f"this is no checksum of Spark's, {error!r}") from error


def _read_if_there(storage: Storage, name: str) -> bytes | None:
    try:
        return storage.read(name)
    except FileNotFoundError:
        return None
