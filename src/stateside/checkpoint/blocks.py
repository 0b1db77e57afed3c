"""Blocks: many changes at once, as places in the bytes that they were read from.

Spark's stores write what changed, and what there is, as pairs; numbers big-endian:

    pairs := (key size (i32)  key  value size (i32; -1: the key was deleted)  value)*  -1 (i32)

Where a pair begins, only the pair before it tells. But state rows have few sizes: a run of pairs of the same sizes is
found at once, by a look at all the places where their sizes would stand. From there on everything is done for
a whole block, column by column, in arrays; nothing is made for a row before somebody asks for it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stateside.checkpoint.compression import damaged
from stateside.checkpoint.slices import Places, Slices, numbers_at

BLOCK_BYTES = 4 * 1024 * 1024  # of a large file, so much is looked at in one go
PART_ROWS = 50_000
RUN_AFTER_PAIRS = 8  # so many pairs of the same sizes let expect more of them
_RUN_STEP = 256

_SIZE = struct.Struct(">i")
_END_MARK = _SIZE.pack(-1)
_GONE = -1


@dataclass(frozen=True, slots=True)
class Change:
    """A key and its new value; None means that the key left the state.

    Without a `family` both are UnsafeRows, with one they are as that column family encodes them. With `appended` the
    value does not replace those that the key had, it comes after them. Of a prefixed key, `key` has the first columns
    and `key_rest` the others, each a row of its own.
    """

    key: bytes
    value: bytes | None
    family: int | None = None
    appended: bool = False
    key_rest: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block(Collection[Change]):
    """Changes in order; `rests` has the second parts of prefixed keys. What it iterates over is made only then."""

    keys: Slices
    values: Slices
    rests: Slices | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Change]:
        rests = self.rests.tolist() if self.rests else [None] * len(self)
        for key, value, rest in zip(self.keys.tolist(), self.values.tolist(), rests, strict=True):
            assert key is not None, "a key is always there"
            yield Change(key, value, key_rest=rest)

    def parts(self) -> Iterator[Block]:
        """The same changes as blocks of at most so many rows that not much memory is taken by what is made of one."""
        if len(self) <= PART_ROWS:
            yield self
            return
        for first in range(0, len(self), PART_ROWS):
            end = first + PART_ROWS
            rests = self.rests.between(first, end) if self.rests else None
            yield Block(self.keys.between(first, end), self.values.between(first, end), rests)

    def __contains__(self, change: object) -> bool:
        return any(change == own for own in self)


def whole_block(content: bytes, path: str, begin: int = 0) -> Block:
    """The pairs from a byte on up to the end mark, with which the content must end, or else CheckpointInvalid."""
    starts, end = _scan(content, begin, path, 0)
    if content[end:] != _END_MARK:
        raise damaged(path, end, "a record is cut short")
    return _block(content, starts)


def blocks(pieces: Iterable[bytes], path: str) -> Iterator[Block]:
    """The same of a content in pieces, block by block, without more of it in memory. Damage may show after some."""
    waiting, at_byte = b"", 0
    for part in _gathered(pieces):
        content = waiting + part
        starts, end = _scan(content, 0, path, at_byte)
        if len(starts):
            yield _block(content, starts)
        waiting, at_byte = content[end:], at_byte + end
    if waiting != _END_MARK:
        raise damaged(path, at_byte, "a record is cut short")


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    gathered, size = [], 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


def _block(content: bytes, starts: Places) -> Block:
    key_sizes = numbers_at(content, starts, ">i4").astype(np.int64)
    value_begins = starts + 2 * _SIZE.size + key_sizes
    value_sizes = numbers_at(content, value_begins - _SIZE.size, ">i4").astype(np.int64)
    return Block(Slices(content, starts + _SIZE.size, key_sizes), Slices(content, value_begins, value_sizes))


def _scan(content: bytes, at: int, path: str, passed_bytes: int) -> tuple[Places, int]:
    """Where the pairs begin that are there as a whole, and where the last one ends."""
    found: list[Places] = []
    while True:
        starts, at, sizes = _walk(content, at)
        found.append(np.array(starts, np.int64))
        if sizes is None:
            break
        found.append(_run(content, at, *sizes))
        at += len(found[-1]) * _stride(*sizes)
    _check_stop(content, at, path, passed_bytes)
    return np.concatenate(found), at


def _walk(content: bytes, at: int) -> tuple[list[int], int, tuple[int, int] | None]:
    """Where pairs begin and the last one ends, one by one until several are of the same sizes, which then come too.

    This loop runs for every pair where sizes vary: it has what it needs at hand, and leaves all doubts to others.
    """
    starts: list[int] = []
    unpack, append, end, alike, stride = _SIZE.unpack_from, starts.append, len(content), 0, 0
    try:
        while True:
            (key_size,) = unpack(content, at)
            value_at = at + 8 + key_size
            (value_size,) = unpack(content, value_at - 4)
            next_at = value_at + value_size if value_size > 0 else value_at
            if key_size < 0 or value_size < _GONE or next_at > end:
                return starts, at, None
            append(at)
            alike, stride, at = (alike + 1 if next_at - at == stride else 0), next_at - at, next_at
            if alike == RUN_AFTER_PAIRS:
                return starts, at, (key_size, value_size)
    except struct.error:  # not even its sizes are there
        return starts, at, None


def _check_stop(content: bytes, at: int, path: str, passed_bytes: int) -> None:
    """Refuse a pair at which the walk stopped if more bytes would not help it."""
    if at + _SIZE.size > len(content) or content[at:] == _END_MARK:
        return
    (key_size,) = _SIZE.unpack_from(content, at)
    if key_size < 0:
        reason = f"a key cannot have {key_size} bytes, and nothing may follow the end mark"
        raise damaged(path, passed_bytes + at, reason)
    size_at = at + _SIZE.size + key_size
    if size_at + _SIZE.size <= len(content):
        (value_size,) = _SIZE.unpack_from(content, size_at)
        if value_size < _GONE:
            raise damaged(path, passed_bytes + size_at, f"a value cannot have {value_size} bytes")


def _run(content: bytes, at: int, key_size: int, value_size: int) -> Places:
    """Where the pairs begin that follow each other from here on and all have these sizes."""
    stride = _stride(key_size, value_size)
    most, same, step = (len(content) - at) // stride, 0, _RUN_STEP
    while same < most:
        count, begin = min(step, most - same), at + same * stride
        keys = np.ndarray(count, ">i4", content, begin, (stride,))
        values = np.ndarray(count, ">i4", content, begin + _SIZE.size + key_size, (stride,))
        alike = (keys == key_size) & (values == value_size)
        if not alike.all():
            same += int(alike.argmin())
            break
        same, step = same + count, 4 * step
    return at + stride * np.arange(same, dtype=np.int64)


def _stride(key_size: int, value_size: int) -> int:
    return 2 * _SIZE.size + key_size + max(value_size, 0)
