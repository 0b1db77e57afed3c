"""Slices and blocks: many keys, values and changes at once, as places in the bytes of a state file.

Slices are parts of some bytes, by place alone. Operations on their content run for all slices together, in numpy
arrays: a number at the same place of each, say. Bytes are copied out only on demand.

A block is many changes. Spark's stores write changes, and whole states, as pairs; numbers big-endian:

    pairs := (key size (i32)  key  value size (i32; -1: the key was deleted)  value)*  -1 (i32)

Only the previous pair shows where a pair begins. But state rows have few sizes: a run of pairs of the same sizes is
found at once, by comparing all the places where their sizes would be. All further work is done per block, column by
column, in arrays; no object is made for a row before a caller asks for it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stateside.spark_state.compression import damaged

SIZES_IN_GROUPS_MAX = 16  # slices of up to so many sizes are copied out size by size; of more, one by one
_GROUPED_BYTES_MAX = 64 * 1024
_SORTED_BY_BYTES = 8
_FIRST_BYTES = np.array([2**64 - 2 ** (64 - 8 * count) for count in range(_SORTED_BY_BYTES + 1)], np.uint64)
_ALIKE_BYTES_MAX = 64
_GONE = -1
Places = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
Objects = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Many parts of some bytes: each part's begin and size. The size -1 stands for a missing part."""

    content: bytes
    begins: Places
    sizes: Places

    @classmethod
    def of(cls, parts: Sequence[bytes | None]) -> Slices:
        """Slices of the concatenated parts."""
        there = [part for part in parts if part is not None]
        sizes = np.full(len(parts), _GONE, np.int64)
        sizes[[part is not None for part in parts] if len(there) < len(parts) else slice(None)] = list(map(len, there))
        rooms = np.maximum(sizes, 0)
        return cls(b"".join(there), np.cumsum(rooms) - rooms, sizes)

    @classmethod
    def of_all(cls, parts: Sequence[bytes]) -> Slices:
        """The same for parts without None: in a third of the time."""
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls(b"".join(parts), np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        return len(self.begins)

    def tolist(self) -> list[bytes | None]:
        return list(self.array())

    def array(self) -> Objects:
        parts, sizes = np.empty(len(self), object), self._few_sizes()
        if sizes is None:
            parts[:] = self._one_by_one()
        for size in sizes or ():
            these = np.flatnonzero(self.sizes == size)
            parts[these] = self._of_size(size, self.begins[these])
        return parts

    def between(self, first: int, end: int) -> Slices:
        """The slices from one index up to another, without foreign content."""
        begins, sizes = self.begins[first:end], self.sizes[first:end]
        ends = begins + np.maximum(sizes, 0)
        base = int(begins.min(initial=len(self.content)))
        return Slices(self.content[base : int(ends.max(initial=base))], begins - base, sizes)

    def padded(self, byte_count: int) -> Slices:
        """The same with `byte_count` more bytes of content: so far a caller may read beyond the end of a part."""
        return Slices(self.content + bytes(byte_count), self.begins, self.sizes)

    def part(self, which: Places) -> Slices:
        """The slices at these indexes."""
        return Slices(self.content, self.begins[which], self.sizes[which])

    def replaced(self, which: Places, parts: Sequence[bytes]) -> Slices:
        """The same with other parts at some indexes."""
        if not len(which):
            return self
        others, begins, sizes = Slices.of(parts), self.begins.copy(), self.sizes.copy()
        begins[which], sizes[which] = others.begins + len(self.content), others.sizes
        return Slices(self.content + others.content, begins, sizes)

    def rough_order(self) -> Places:
        """A nearly sorted order of the slices: by eight bytes, from the first byte that differs between any two.

        The sort is stable.
        """
        if not len(self):
            return np.arange(0)
        alike = self._alike_bytes()
        words = self.padded(_SORTED_BY_BYTES).numbers(alike, ">u8").astype(np.uint64)
        own = _FIRST_BYTES[np.clip(self.sizes - alike, 0, _SORTED_BY_BYTES)]
        return np.argsort(words & own, kind="stable")

    def _alike_bytes(self) -> int:
        """The length of the common prefix, up to `_ALIKE_BYTES_MAX`."""
        size = int(min(self.sizes.min(), _ALIKE_BYTES_MAX))
        if size <= 0:
            return 0
        heads = self.numbers(0, f"V{size}").view(np.uint8).reshape(-1, size)
        differ = (heads != heads[0]).any(axis=0)
        return int(differ.argmax()) if differ.any() else size

    def without(self, byte_count: int) -> Slices:
        """The same without the first `byte_count` bytes of each part, which must be there."""
        return Slices(self.content, self.begins + byte_count, np.where(self.sizes < 0, _GONE, self.sizes - byte_count))

    def numbers(self, at_byte: int, type_: str) -> Numbers:
        """A number of this numpy type from each part, which must have it."""
        return numbers_at(self.content, self.begins + at_byte, type_)

    def _few_sizes(self) -> list[int] | None:
        """The distinct sizes; None if there are too many."""
        if self.sizes.max(initial=0) > _GROUPED_BYTES_MAX:
            return None
        sizes = np.flatnonzero(np.bincount(self.sizes + 1)) - 1
        return sizes.tolist() if len(sizes) <= SIZES_IN_GROUPS_MAX else None

    def _of_size(self, size: int, begins: Places) -> Objects | bytes | None:
        if size <= 0:
            return None if size == _GONE else b""
        return numbers_at(self.content, begins, f"V{size}").astype(object)

    def _one_by_one(self) -> list[bytes | None]:
        content, ends = self.content, (self.begins + self.sizes).tolist()
        return [
            content[begin:end] if end >= begin else None for begin, end in zip(self.begins.tolist(), ends, strict=True)
        ]


def numbers_at(content: bytes, places: Places, type_: str) -> Numbers:
    """The numbers of this type at these byte offsets, aligned or not. All must lie inside the content."""
    last = len(content) - np.dtype(type_).itemsize
    if not len(places):
        return np.empty(0, type_)
    found: Numbers = np.ndarray(last + 1, type_, content, 0, (1,))[places]
    return found


BLOCK_BYTES = 4 * 1024 * 1024  # of a large file, the unit of work
PART_ROWS = 50_000
RUN_AFTER_PAIRS = 8  # so many pairs of the same sizes in a row suggest a longer run
_RUN_STEP = 256
_SIZE = struct.Struct(">i")
_END_MARK = _SIZE.pack(-1)


@dataclass(frozen=True, slots=True)
class StateChange:
    """A key and its new value; None if the key was deleted.

    Without a `family` both are UnsafeRows, otherwise both are in the column family's encoding. With `appended` the
    value is appended to the key's earlier values instead of replacing them. Of a prefixed key, `key` has the first
    columns and `key_rest` the others, each a row of its own.
    """

    key: bytes
    value: bytes | None
    family: int | None = None
    appended: bool = False
    key_rest: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBlock(Collection[StateChange]):
    """Changes in order; `rests` has the second parts of prefixed keys. Iteration makes the `StateChange` objects."""

    keys: Slices
    values: Slices
    rests: Slices | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[StateChange]:
        rests = self.rests.tolist() if self.rests else [None] * len(self)
        for key, value, rest in zip(self.keys.tolist(), self.values.tolist(), rests, strict=True):
            assert key is not None, "a key is always there"
            yield StateChange(key, value, key_rest=rest)

    def parts(self) -> Iterator[ChangeBlock]:
        """The same changes as blocks of at most `PART_ROWS` rows, to bound the memory of derived data."""
        if len(self) <= PART_ROWS:
            yield self
            return
        for first in range(0, len(self), PART_ROWS):
            end = first + PART_ROWS
            rests = self.rests.between(first, end) if self.rests else None
            yield ChangeBlock(self.keys.between(first, end), self.values.between(first, end), rests)

    def __contains__(self, change: object) -> bool:
        return any(change == own for own in self)


def whole_block(content: bytes, path: str, begin: int = 0) -> ChangeBlock:
    """The pairs from a byte up to the end mark, which must end the content; otherwise CheckpointInvalid."""
    starts, end = _scan(content, begin, path, 0)
    if content[end:] != _END_MARK:
        raise damaged(path, end, "a record is cut short")
    return _block(content, starts)


def blocks(pieces: Iterable[bytes], path: str) -> Iterator[ChangeBlock]:
    """The same from content in pieces, block by block, in bounded memory. Damage may show after some blocks."""
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


def _block(content: bytes, starts: Places) -> ChangeBlock:
    key_sizes = numbers_at(content, starts, ">i4").astype(np.int64)
    value_begins = starts + 2 * _SIZE.size + key_sizes
    value_sizes = numbers_at(content, value_begins - _SIZE.size, ">i4").astype(np.int64)
    return ChangeBlock(Slices(content, starts + _SIZE.size, key_sizes), Slices(content, value_begins, value_sizes))


def _scan(content: bytes, at: int, path: str, passed_bytes: int) -> tuple[Places, int]:
    """The begins of all complete pairs, and the end of the last one."""
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
    """Pairs one by one, up to several of the same sizes in a row; returns begins, end, and the repeated sizes.

    This loop runs for every pair where sizes vary: it uses local names only, and leaves checks to its caller.
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
    except struct.error:  # not even its sizes are complete
        return starts, at, None


def _check_stop(content: bytes, at: int, path: str, passed_bytes: int) -> None:
    """Refuse the pair at which the walk stopped if more bytes would not complete it."""
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
    """The begins of consecutive pairs from here on that all have these sizes."""
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
