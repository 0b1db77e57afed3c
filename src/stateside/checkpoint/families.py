"""The schemas of a state store with column families: what each family's keys and values are made of.

    state/OPERATOR/_metadata/v2/BATCH names, for each start of the query, all schemas that the state ever had,
    in "stateStoreInfo": [{"stateSchemaFilePaths": [path…], …}], the newest one last:

    state/OPERATOR/_stateSchema/default/NAME := "v3" (UTF)  families (i32)  family*
    family := name (UTF)  id (i16)  schema (of the key)  id (i16)  schema (of the value)
              encoder (of the key)  schema (of a map's key, else empty)

where a schema, and the encoder, is a JSON text in chunks (see `schema`). The ids count the versions of a family's key
and value: with Avro they may change, and every row says which one it was written with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stateside.checkpoint.checksum import read_checked
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.schema import read_chunks, read_utf
from stateside.errors import CheckpointInvalid
from stateside.storage import Storage

_ID = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Family:
    """A column family of a schema file, its key and value as Spark's JSON has their types."""

    key: dict[str, Any]
    value: dict[str, Any]
    encoder: dict[str, Any]
    key_id: int = 0
    value_id: int = 0


def read_families(storage: Storage, operator: int) -> dict[str, Family]:
    """The families of an operator's state as they are now; FileNotFoundError before its first batch is planned."""
    metadata, name = Checkpoint(storage).operator_metadata(operator)
    try:
        return list(schemas(storage, operator, metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]))[-1]
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointInvalid(
            f"The schemas of the state's column families cannot be read: {error!r}", where=storage.path(name)
        ) from error


def schemas(storage: Storage, operator: int, paths: list[str]) -> Iterator[dict[str, Family]]:
    """The schemas at these paths, of which only the names are used: the checkpoint may have been moved."""
    *older, newest = [path.rsplit("/", 1)[-1] for path in paths]
    for name in older:
        with suppress(FileNotFoundError):  # an old one may be deleted some day
            yield _read_schema(storage, operator, name)
    try:
        yield _read_schema(storage, operator, newest)
    except FileNotFoundError as error:
        raise ValueError(f"its schema {newest} is gone") from error


def _read_schema(storage: Storage, operator: int, name: str) -> dict[str, Family]:
    path = f"state/{operator}/_stateSchema/default/{name}"
    content = read_checked(storage, path)
    try:
        version, at_byte = read_utf(content, 0)
        if version != "v3":
            raise ValueError(f"version {version!r} is not known")
        (count,) = struct.unpack_from(">i", content, at_byte)
        return dict(_families(content, at_byte + 4, count))
    except (struct.error, ValueError) as error:
        raise CheckpointInvalid(f"The state's schema cannot be read: {error}", where=storage.path(path)) from error


def _families(content: bytes, at_byte: int, count: int) -> Iterator[tuple[str, Family]]:
    for _ in range(count):
        name, at_byte = read_utf(content, at_byte)
        (key_id,) = _ID.unpack_from(content, at_byte)
        key, at_byte = read_chunks(content, at_byte + _ID.size)
        (value_id,) = _ID.unpack_from(content, at_byte)
        value, at_byte = read_chunks(content, at_byte + _ID.size)
        encoder, at_byte = read_chunks(content, at_byte)
        _, at_byte = read_chunks(content, at_byte)  # a map's key stands in the key as well
        yield name, Family(key, value, encoder, key_id, value_id)
