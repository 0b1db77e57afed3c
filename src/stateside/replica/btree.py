"""Parser of LMDB's files: the B+trees of its pages (LMDB 0.9, 64 bits).

    page    := u64 number   u16 -   u16 flags   u16 lower   u16 upper   then content by flags
    meta    := page, then u32 magic   u32 version   u64 -   u64 -   db free   db main   u64 last page   u64 transaction
    db      := u32 -   u16 flags   u16 depth   u64 branch pages   u64 leaf pages   u64 overflow pages   u64 entries
               u64 root (all ones: none)
    branch  := page, u16 offset of each node, …nodes;   node := u48 page below it   u16 size of the key   key
    leaf    := page, u16 offset of each node, …nodes;   node := u32 size   u16 flags   u16 size of the key   key, value
               flags 1: instead of the value the u64 number of its first overflow page;   2: the value is a db
    overflow:= page with u32 count of pages in place of lower and upper, then the value, over this number of pages

The first key of a branch is empty: it stands for all keys less than the second. Two metas alternate. A page of a
committed tree is never written again: a change goes to other pages, from the leaf up to the root.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PAGE_HEAD_BYTES: Final = 16
NO_PAGE: Final = (1 << 64) - 1
BIG: Final = 1
_MAGIC: Final = 0xBEEFC0DE
_BOUNDS = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ48s48sQQ")
_DB = struct.Struct("<IHHQQQQQ")
_OFFSET = struct.Struct("<H")
_NUMBER = struct.Struct("<Q")
_NODE_HEAD_BYTES = _NODE.size

Words = npt.NDArray[np.uint16]
Value = bytes | tuple[int, int]  # the value, or the number of its first overflow page and its size


@dataclass(frozen=True, slots=True)
class Root:
    """A tree: its root page, depth, number of overflow pages and of entries."""

    page: int
    depth: int
    overflow_pages: int
    entries: int

    @classmethod
    def parse(cls, db: bytes) -> Root:
        """The root in a `db`."""
        _, _, depth, _, _, overflow_pages, entries, page = _DB.unpack(db)
        return cls(page, depth if page != NO_PAGE else 0, overflow_pages, entries)


NO_ROOT: Final = Root(NO_PAGE, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Meta:
    """A committed transaction: its number, and the `db`s of its free pages and of all named databases."""

    transaction: int
    free: bytes
    main: bytes


def meta_page(transaction: int) -> int:
    """The number of the page with a transaction's meta."""
    return transaction % 2


def parse_meta(page: bytes) -> Meta | None:
    """The meta; None if the page is not a meta page."""
    magic, _, _, _, free, main, _, transaction = _META.unpack_from(page, PAGE_HEAD_BYTES)
    return Meta(transaction, free, main) if magic == _MAGIC else None


def parse_branch(page: bytes) -> tuple[list[bytes], list[int]]:
    """The keys of a branch, the first one empty, and the numbers of the pages below them."""
    words, at = _nodes(page)
    begins = 2 * at.astype(np.intp) + _NODE_HEAD_BYTES
    ends = begins + words[at + 3]
    return [page[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)], below(page)


def below(page: bytes) -> list[int]:
    """The numbers of the pages below a branch."""
    words, at = _nodes(page)
    low, middle, high = (words[at + place].astype(np.uint64) for place in range(3))
    numbers: list[int] = (low | middle << np.uint64(16) | high << np.uint64(32)).tolist()
    return numbers


def parse_leaf(page: bytes) -> tuple[list[bytes], list[Value]]:
    """The keys of a leaf, in order, and their values."""
    keys: list[bytes] = []
    values: list[Value] = []
    node, head_bytes = _NODE.unpack_from, _NODE_HEAD_BYTES
    for offset in _offsets(page):
        low, high, flags, key_bytes = node(page, offset)
        begin = offset + head_bytes + key_bytes
        keys.append(page[offset + head_bytes : begin])
        if flags & BIG:
            values.append((_NUMBER.unpack_from(page, begin)[0], low | high << 16))
        else:
            values.append(page[begin : begin + (low | high << 16)])
    return keys, values


def find(page: bytes, key: bytes) -> Value | None:
    """The value of exactly this key in a leaf; None if the leaf does not have the key.

    A byte search, four times as fast as bisection: a match is the key, and not a part of other content, if a node
    begins eight bytes before it with a key of the same length.
    """
    size, lower = len(key), page[12] | page[13] << 8
    at = page.find(key, lower)
    while at >= 0:
        low, high, flags, key_bytes = _NODE.unpack_from(page, at - _NODE_HEAD_BYTES)
        if key_bytes == size and _is_node(page, at - _NODE_HEAD_BYTES, lower):
            begin = at + size
            if flags & BIG:
                return _NUMBER.unpack_from(page, begin)[0], low | high << 16
            return page[begin : begin + (low | high << 16)]
        at = page.find(key, at + 1)
    return None


def overflow_runs(page: bytes, page_bytes: int) -> Iterator[tuple[int, int]]:
    """The first page and the number of pages of each overflow value of a leaf."""
    words, at = _nodes(page)
    for place in at[words[at + 2] & BIG != 0].tolist():
        low, high, _, key_bytes = _NODE.unpack_from(page, 2 * place)
        (number,) = _NUMBER.unpack_from(page, 2 * place + _NODE_HEAD_BYTES + key_bytes)
        yield number, overflow_pages(low | high << 16, page_bytes)


def overflow_pages(size: int, page_bytes: int) -> int:
    """The number of pages of a value of this size."""
    return (PAGE_HEAD_BYTES + size - 1) // page_bytes + 1


def subtrees(page: bytes) -> dict[bytes, Root]:
    """The named databases in a leaf of the main tree."""
    keys, values = parse_leaf(page)
    return {key: Root.parse(value) for key, value in zip(keys, values, strict=True) if isinstance(value, bytes)}


def _lower(page: bytes) -> int:
    return page[12] | page[13] << 8


def _offsets(page: bytes) -> tuple[int, ...]:
    count = (_lower(page) - PAGE_HEAD_BYTES) // 2
    return struct.unpack_from(f"<{count}H", page, PAGE_HEAD_BYTES)


def _nodes(page: bytes) -> tuple[Words, Words]:
    """A page as 16-bit words, and the word index of each node: nodes begin at even bytes."""
    words = np.frombuffer(page, "<u2")
    return words, words[PAGE_HEAD_BYTES // 2 : _lower(page) // 2] >> np.uint16(1)


def _is_node(page: bytes, offset: int, lower: int) -> bool:
    packed = _OFFSET.pack(offset)
    at = page.find(packed, PAGE_HEAD_BYTES, lower)
    while at >= 0 and at % 2:
        at = page.find(packed, at + 1, lower)
    return at >= 0
