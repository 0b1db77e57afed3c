"""The views' LMDB format: databases, keys and values. Views hold the places of events, never the events themselves.

    meta    "state"                       -> crc32 u32, State as JSON
    terms   "e", name                     -> Term     an entity
            "t", partition u16, name      -> Term     a tag in a partition
            "y", partition u16, name      -> Term     a type in a partition
    blocks  number u64, place u64         -> Block    a posting list's events: of an entity from this sequence on,
                                                      of a tag or a type from this offset on
    born    partition u16, offset u64     -> crc32 u32, name      the first event of an entity
    zones   partition u16, offset u64     -> Zone     the times of the events from this offset on (a zone map)

Numbers in keys are big-endian, so that LMDB sorts them; in values they are little-endian. A term's number is assigned
once, 1, 2, 3, …; a partition's number is its index in `ViewsState.partitions`.

    Term    ┌────────┬────────────┬───────────┬──────────────────┬──────────────────────────────────────────┐
            │ u32    │ u64        │ u64       │ u64              │ the whole name, where the key has        │
            │ crc32  │ number     │ events    │ last sequence    │ only a part of it                        │
            └────────┴────────────┴───────────┴──────────────────┴──────────────────────────────────────────┘
    Block   ┌────────┬────────────┬───────────┬──────────────────┬──────────────────────────────────────────┐
            │ u32    │ u64 events │ u16       │ u64              │ u32 each: distance of each event         │
            │ crc32  │ before it  │ partition │ first offset     │ from the first offset                    │
            └────────┴────────────┴───────────┴──────────────────┴──────────────────────────────────────────┘
    Zone    ┌────────┬────────────┬───────────────────────────────────────────────────────────────┐
            │ u32    │ u64 offset │ i64, i64 each: least and greatest time in µs; the events'     │
            │ crc32  │ after it   │ times lie in one of these spans                               │
            └────────┴────────────┴───────────────────────────────────────────────────────────────┘

Every checksum covers the key and the rest of the value. A block has the number of its term's earlier events, and the
term the total: so a lost or changed block is detected, and no event is omitted silently.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson

from stateside.core.positions import Position

VERSION: Final = 1
DATABASES: Final = ("meta", "terms", "blocks", "born", "zones")

ENTITY: Final = b"e"
TAG: Final = b"t"
TYPE: Final = b"y"

BLOCK_EVENTS_MAX: Final = 4_096
BLOCK_SPAN_MAX: Final = 2**32
ZONE_SPANS_MAX: Final = 8
NAME_BYTES_MAX: Final = 400  # in a key; LMDB allows 511, and 200 characters may take 800
_HASH_BYTES: Final = 16

_CRC = struct.Struct("<I")
_TERM = struct.Struct("<QQQ")
_BLOCK = struct.Struct("<QHQ")
_ZONE = struct.Struct("<Q")
_BLOCK_KEY = struct.Struct(">QQ")
_SCOPE = struct.Struct(">cH")
_BY_PARTITION = struct.Struct(">HQ")

Offsets = npt.NDArray[np.int64]


class ViewsDamaged(Exception):
    """Impossible content in the views. Never reaches a client: queries read the stream while the views are rebuilt.

    Not part of the error tree: nothing is lost, and no action is required.
    """


@dataclass(slots=True)
class ViewsState:
    """The stream of the views, and how far they cover it. Written in the same transaction as the entries."""

    stream: str | None = None
    partitions: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # per partition: all earlier events are in the views
    last_ids: list[str] = field(default_factory=list)  # per partition: the id of the last event in the views
    terms: int = 0
    entities: int = 0
    version: int = VERSION

    def pack(self) -> bytes:
        """The value under "state"."""
        return _sealed(b"state", orjson.dumps(asdict(self)))

    @classmethod
    def unpack(cls, value: bytes) -> ViewsState:
        """The packed state; ViewsDamaged if unreadable or of another version."""
        try:
            found = cls(**orjson.loads(_opened(b"state", value)))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise ViewsDamaged(f"the views' state: {error}") from error
        if found.version != VERSION:
            raise ViewsDamaged(f"the views have the format {found.version}, this program has {VERSION}")
        return found

    def number(self, partition: str) -> int:
        """A partition's number, assigned at the first call."""
        if partition not in self.partitions:
            self.partitions.append(partition)
            self.offsets.append(0)
            self.last_ids.append("")
        return self.partitions.index(partition)

    def position(self) -> Position:
        """Up to where the views have all events."""
        return Position.of(dict(zip(self.partitions, self.offsets, strict=True)))

    def covers(self, partition: str) -> int:
        """The offset up to which the views have all events of a partition."""
        return self.offsets[self.partitions.index(partition)] if partition in self.partitions else 0


@dataclass(slots=True)
class Term:
    """An entity, a tag or a type: its number of events, and for an entity the last sequence."""

    number: int
    events: int = 0
    last: int = 0

    def pack(self, key: bytes, name: bytes) -> bytes:
        whole = b"" if _name(key) == name else name
        return _sealed(key, _TERM.pack(self.number, self.events, self.last) + whole)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> tuple[Term, bytes]:
        """The term and its whole name; ViewsDamaged."""
        content = _opened(key, value)
        if len(content) < _TERM.size:
            raise ViewsDamaged("a term is cut short")
        return cls(*_TERM.unpack_from(content)), content[_TERM.size :] or _name(key)


@dataclass(frozen=True, slots=True)
class PostingBlock:
    """A block of a term's posting list: offsets in one partition. `before`: the number of the term's earlier events."""

    before: int
    partition: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Zone:
    """Time spans of the events of a range of offsets: every event's time lies in one of the spans."""

    behind: int
    spans: tuple[tuple[int, int], ...]

    def pack(self, key: bytes) -> bytes:
        numbers = np.array(self.spans, "<i8").tobytes()
        return _sealed(key, _ZONE.pack(self.behind) + numbers)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> Zone:
        """The packed zone; ViewsDamaged."""
        content = _opened(key, value)
        if len(content) % 16 != _ZONE.size:
            raise ViewsDamaged("a zone is cut short")
        spans = np.frombuffer(content, "<i8", offset=_ZONE.size).reshape(-1, 2).tolist()
        return cls(_ZONE.unpack_from(content)[0], tuple((low, high) for low, high in spans))

    def may_have(self, from_us: int, to_us: int) -> bool:
        """Whether an event of the zone may have a time with from_us <= time < to_us."""
        return any(low < to_us and high >= from_us for low, high in self.spans)


def pack_block(key: bytes, before: int, partition: int, offsets: Sequence[int]) -> bytes:
    """The value of a block under its key."""
    first = offsets[0]
    if len(offsets) == 1:
        return _sealed(key, _BLOCK.pack(before, partition, first) + b"\0\0\0\0")
    behind = np.asarray(offsets, np.int64) - first
    return _sealed(key, _BLOCK.pack(before, partition, first) + behind.astype("<u4").tobytes())


def unpack_block(key: bytes, value: bytes) -> PostingBlock:
    """The packed block; ViewsDamaged."""
    content = _opened(key, value)
    if len(content) % 4 != _BLOCK.size % 4 or len(content) < _BLOCK.size + 4:
        raise ViewsDamaged("a block is cut short")
    before, partition, first = _BLOCK.unpack_from(content)
    return PostingBlock(before, partition, np.frombuffer(content, "<u4", offset=_BLOCK.size).astype(np.int64) + first)


def scope(kind: bytes, partition: int) -> bytes:
    """The key prefix of a partition's tags or types. The prefix of entities is ENTITY."""
    return _SCOPE.pack(kind, partition)


def term_key(scope: bytes, name: bytes) -> bytes:
    """The key of a term. A long name is cut and hashed, so long names sort by their first 400 bytes only."""
    if len(name) <= NAME_BYTES_MAX:
        return scope + name
    return scope + name[:NAME_BYTES_MAX] + blake2b(name, digest_size=_HASH_BYTES).digest()


def block_key(number: int, place: int) -> bytes:
    """The key of the block of a term's events from a sequence, or an offset, on."""
    return _BLOCK_KEY.pack(number, place)


def block_place(key: bytes) -> int:
    """The sequence, or the offset, of the first event of the block with this key."""
    return int(_BLOCK_KEY.unpack(key)[1])


def partition_key(partition: int, offset: int) -> bytes:
    """The key of the zone from this offset on, and of the entity born there."""
    return _BY_PARTITION.pack(partition, offset)


def partition_offset(key: bytes) -> tuple[int, int]:
    """The partition and the offset of a key."""
    partition, offset = _BY_PARTITION.unpack(key)
    return partition, offset


def pack_name(key: bytes, name: bytes) -> bytes:
    """The value of an entity born at the key."""
    return _sealed(key, name)


def unpack_name(key: bytes, value: bytes) -> str:
    """The entity born at the key; ViewsDamaged."""
    return _opened(key, value).decode()


def _name(key: bytes) -> bytes:
    return key[1:] if key[:1] == ENTITY else key[_SCOPE.size :]


def _sealed(key: bytes, content: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(content, zlib.crc32(key))) + content


def _opened(key: bytes, value: bytes) -> bytes:
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != zlib.crc32(value[_CRC.size :], zlib.crc32(key)):
        raise ViewsDamaged("a checksum does not match")
    return value[_CRC.size :]
