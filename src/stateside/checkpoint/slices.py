"""Slices: many parts of some bytes, by their places alone.

What is in them is looked at for all of them together, in arrays: a number that each has at the same place, say. Their
bytes are cut out only when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SIZES_IN_GROUPS_MAX = 16  # slices of so many sizes are cut out size by size; of more, one by one
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
    """Many parts of some bytes: where each begins and its size. The size -1 stands for a part that is not there."""

    content: bytes
    begins: Places
    sizes: Places

    @classmethod
    def of(cls, parts: Sequence[bytes | None]) -> Slices:
        """The slices that these are, one after the other."""
        there = [part for part in parts if part is not None]
        sizes = np.full(len(parts), _GONE, np.int64)
        sizes[[part is not None for part in parts] if len(there) < len(parts) else slice(None)] = list(map(len, there))
        rooms = np.maximum(sizes, 0)
        return cls(b"".join(there), np.cumsum(rooms) - rooms, sizes)

    @classmethod
    def of_all(cls, parts: Sequence[bytes]) -> Slices:
        """The same of parts that are all there: in a third of the time."""
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls(b"".join(parts), np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        return len(self.begins)

    def tolist(self) -> list[bytes | None]:
        """The parts themselves."""
        return list(self.array())

    def array(self) -> Objects:
        """The parts themselves, in an array."""
        parts, sizes = np.empty(len(self), object), self._few_sizes()
        if sizes is None:
            parts[:] = self._one_by_one()
        for size in sizes or ():
            these = np.flatnonzero(self.sizes == size)
            parts[these] = self._of_size(size, self.begins[these])
        return parts

    def between(self, first: int, end: int) -> Slices:
        """Those from one place in the order up to another, without the content that is not theirs."""
        begins, sizes = self.begins[first:end], self.sizes[first:end]
        ends = begins + np.maximum(sizes, 0)
        base = int(begins.min(initial=len(self.content)))
        return Slices(self.content[base : int(ends.max(initial=base))], begins - base, sizes)

    def padded(self, byte_count: int) -> Slices:
        """The same with so many bytes behind the content: as far as that one may look beyond the end of a part."""
        return Slices(self.content + bytes(byte_count), self.begins, self.sizes)

    def part(self, which: Places) -> Slices:
        """Some of them, by their places in the order."""
        return Slices(self.content, self.begins[which], self.sizes[which])

    def replaced(self, which: Places, parts: Sequence[bytes]) -> Slices:
        """The same with other parts at some places in the order."""
        if not len(which):
            return self
        others, begins, sizes = Slices.of(parts), self.begins.copy(), self.sizes.copy()
        begins[which], sizes[which] = others.begins + len(self.content), others.sizes
        return Slices(self.content + others.content, begins, sizes)

    def rough_order(self) -> Places:
        """The order in which they are sorted, or nearly so: by eight bytes, from the first on in which any two differ.

        Equal parts stay in the order in which they are.
        """
        if not len(self):
            return np.arange(0)
        alike = self._alike_bytes()
        words = self.padded(_SORTED_BY_BYTES).numbers(alike, ">u8").astype(np.uint64)
        own = _FIRST_BYTES[np.clip(self.sizes - alike, 0, _SORTED_BY_BYTES)]
        return np.argsort(words & own, kind="stable")

    def _alike_bytes(self) -> int:
        """With how many bytes all begin alike, as far as it is looked at."""
        size = int(min(self.sizes.min(), _ALIKE_BYTES_MAX))
        if size <= 0:
            return 0
        heads = self.numbers(0, f"V{size}").view(np.uint8).reshape(-1, size)
        differ = (heads != heads[0]).any(axis=0)
        return int(differ.argmax()) if differ.any() else size

    def without(self, byte_count: int) -> Slices:
        """The same without so many bytes at the beginning of each part, which must be there."""
        return Slices(self.content, self.begins + byte_count, np.where(self.sizes < 0, _GONE, self.sizes - byte_count))

    def numbers(self, at_byte: int, type_: str) -> Numbers:
        """A number of this type (as numpy names it) out of each part, which must have it."""
        return numbers_at(self.content, self.begins + at_byte, type_)

    def _few_sizes(self) -> list[int] | None:
        """The sizes that the parts have; None if these are too many."""
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
    """The numbers of this type that stand at these bytes, wherever that is. All of them must be inside the content."""
    last = len(content) - np.dtype(type_).itemsize
    if not len(places):
        return np.empty(0, type_)
    found: Numbers = np.ndarray(last + 1, type_, content, 0, (1,))[places]
    return found
