"""Page checksums of an environment, in a file beside it: a reader verifies every page by them.

    checksums := head, cell of page 0, cell of page 1, …        all numbers are u64, little-endian
    head      := "STSDSUM1"   bytes of a page   published transaction   standing   …then, 512 bytes from the start, two
                 alternating states, 256 bytes each;   4,096 bytes in all
    state     := transaction   bytes of data.mdb   db free   db main (see `btree`)   checksum of these
    cell      := checksum of the page, with its number as the seed   transaction that wrote the page
    standing  := 0 a writer has it, or was killed   1 closed   2 another environment took its place   3 not to be read

The writer commits a transaction to LMDB, then *publishes* it here: the cells of the written pages, then the state, then
the transaction's number. A reader reads published transactions only, so every page on its way has a cell. Every page
from the state down is checked before its content is believed: so no page is missing, and none is stale. Neither pages
nor cells are overwritten while a reader's transaction needs them.

No process maps this file: where it was truncated, `pread` returns too few bytes, while a mapping ends the process with
SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from stateside.core.errors import ReplicaInvalid

NAME: Final = "checksums"
DAMAGE: Final = "damage"  # beside it: a reader's finding, for the writer
HEAD_BYTES: Final = 4_096
CELL_BYTES: Final = 16
GROWTH_BYTES: Final = 1 << 16
_MAGIC: Final = b"STSDSUM1"
_HEAD = struct.Struct("<8sQQQ")
_STATE = struct.Struct("<QQ48s48sQ")
_STATES_AT, _STATE_BYTES = 512, 256
_PUBLISHED, _STANDING = 2, 3  # indexes of numbers
_CELL = struct.Struct("<QQ")
_BLOCK_CELLS = 256


class Standing(IntEnum):
    OPEN = 0
    CLOSED = 1
    REPLACED = 2
    INVALID = 3


class ReplicaDamaged(ReplicaInvalid):
    """A file of the replica is not as written: the replica is moved aside, and rebuilt from the checkpoint."""


class Unchecked(ReplicaInvalid):
    """The replica has no checksums, and is rebuilt: an older Stateside made it, or its writer was killed meanwhile."""


@dataclass(frozen=True, slots=True)
class PublishedState:
    """A published transaction: its number, the length of `data.mdb`, and its trees as `db`s."""

    transaction: int
    data_bytes: int
    free: bytes
    main: bytes


def damaged(folder: Path, what: str) -> ReplicaDamaged:
    """The error for damage in the environment of this folder."""
    return ReplicaDamaged(
        f"The replica is damaged: {what}",
        where=str(folder),
        next_step="Nothing: it is moved aside and rebuilt from the checkpoint. Ask again, or another server",
    )


def found(folder: Path, what: str) -> ReplicaDamaged:
    """As `damaged`, and reports the damage to the writer."""
    with suppress(OSError):  # a reader without write access still raises; the scrub finds the damage, too
        (folder / DAMAGE).write_text(what)
    return damaged(folder, what)


def checksum(page: bytes | memoryview, number: int) -> int:
    """The checksum of a page, with its number as the seed."""
    return int(xxh3_64_intdigest(page, number))


class Checksums:
    """The checksums of the environment in a folder, for readers."""

    def __init__(self, folder: Path) -> None:
        """FileNotFoundError if there is no environment, ReplicaInvalid if its checksums cannot be read."""
        self._folder = folder
        self._handle = _opened(folder, os.O_RDONLY)
        self._newest: tuple[bytes | None, int | None] = None, None  # the head's bytes, and their parsed value
        try:
            self.page_bytes = read_head(self._handle, folder)
            self.head()
        except BaseException:
            os.close(self._handle)
            raise

    def close(self) -> None:
        os.close(self._handle)

    def published(self) -> int:
        """The newest published transaction."""
        return self.head()[0]

    def newest(self) -> int | None:
        """The newest published transaction; None if another environment took this one's place.

        Called for every answer: unchanged bytes are not parsed again.
        """
        numbers = self._read(CELL_BYTES, 8 * _PUBLISHED)
        newest = self._newest
        if numbers != newest[0]:
            if len(numbers) < CELL_BYTES:
                raise self._unreadable(8 * _PUBLISHED)
            published, standing = _CELL.unpack(numbers)
            newest = self._newest = numbers, published if standing <= Standing.CLOSED else None
        return newest[1]

    def head(self) -> tuple[int, int]:
        """The newest published transaction, and the environment's `Standing`."""
        return self._numbers(8 * _PUBLISHED)

    def state(self, transaction: int) -> PublishedState | None:
        """A transaction's state; None if missing or torn."""
        return _parsed(self._read(_STATE.size, _state_at(transaction)), transaction)

    def cell(self, number: int) -> tuple[int, int]:
        """A page's checksum, and the transaction that wrote it. ReplicaDamaged if the page has none."""
        return self._numbers(HEAD_BYTES + CELL_BYTES * number)

    def _numbers(self, at: int) -> tuple[int, int]:
        try:
            return _CELL.unpack(os.pread(self._handle, CELL_BYTES, at))
        except (OSError, struct.error) as error:  # a read error, or the file was truncated
            raise self._unreadable(at) from error

    def _read(self, size: int, at: int) -> bytes:
        try:
            return os.pread(self._handle, size, at)
        except OSError as error:
            raise self._unreadable(at) from error

    def _unreadable(self, at: int) -> ReplicaDamaged:
        return found(self._folder, f"{NAME} cannot be read at byte {at}")


class ChecksumWriter:
    """The checksums for the writer. OSError if the disk is full."""

    def __init__(self, folder: Path) -> None:
        """Opens existing checksums; errors as for `Checksums`."""
        self._folder = folder
        self._handle = _opened(folder, os.O_RDWR)
        try:
            self.page_bytes = read_head(self._handle, folder)
            self._check_size()
        except BaseException:
            os.close(self._handle)
            raise

    def close(self) -> None:
        os.close(self._handle)

    def state(self, transaction: int | None = None) -> PublishedState:
        """The state of the published transaction, or of the one before. ReplicaDamaged if missing."""
        self._check_size()
        wanted = self._number(_PUBLISHED) if transaction is None else transaction
        content = os.pread(self._handle, _STATE.size, _state_at(wanted))
        found = _parsed(content, wanted)
        if found is None:
            raise damaged(self._folder, f"{NAME} does not say where transaction {wanted} begins")
        return found

    def standing(self) -> int:
        return self._number(_STANDING)

    def stand(self, standing: Standing) -> None:
        """Set the `Standing`, for readers and the next writer."""
        os.pwrite(self._handle, struct.pack("<Q", standing), 8 * _STANDING)

    def cells(self, numbers: Iterable[int]) -> dict[int, tuple[int, int]]:
        """The cells of these pages; zeros for pages without one."""
        wanted, found = sorted(numbers), dict[int, tuple[int, int]]()
        block, content = -1, b""
        for number in wanted:
            if number // _BLOCK_CELLS != block:
                block = number // _BLOCK_CELLS
                content = self._block(block)
            found[number] = _CELL.unpack_from(content, number % _BLOCK_CELLS * CELL_BYTES)
        return found

    def publish(self, state: PublishedState, cells: Mapping[int, tuple[int, int]]) -> None:
        """Publish a transaction with the cells of its pages."""
        self.reserve(1 + max(cells, default=0))
        blocks: dict[int, bytearray] = {}
        for number, cell in cells.items():
            block = number // _BLOCK_CELLS
            if block not in blocks:
                blocks[block] = bytearray(self._block(block))
            _CELL.pack_into(blocks[block], number % _BLOCK_CELLS * CELL_BYTES, *cell)
        for block, content in blocks.items():
            os.pwrite(self._handle, content, HEAD_BYTES + block * len(content))
        os.pwrite(self._handle, _packed(state), _state_at(state.transaction))
        os.pwrite(self._handle, struct.pack("<Q", state.transaction), 8 * _PUBLISHED)

    def reserve(self, pages: int) -> None:
        """Allocate the cells of `pages` pages."""
        size = HEAD_BYTES + -(-pages // _BLOCK_CELLS) * _BLOCK_CELLS * CELL_BYTES
        present = os.fstat(self._handle).st_size
        if present < size:
            grown = size + max(GROWTH_BYTES, size // 4) // HEAD_BYTES * HEAD_BYTES
            os.posix_fallocate(self._handle, present, grown - present)

    def sync(self) -> None:
        os.fdatasync(self._handle)

    def _block(self, block: int) -> bytes:
        size = _BLOCK_CELLS * CELL_BYTES
        return os.pread(self._handle, size, HEAD_BYTES + block * size).ljust(size, b"\0")

    def _number(self, place: int) -> int:
        (number,) = struct.unpack("<Q", os.pread(self._handle, 8, 8 * place))
        return int(number)

    def _check_size(self) -> None:
        if os.fstat(self._handle).st_size < HEAD_BYTES:
            raise damaged(self._folder, f"{NAME} was cut short")


def begin(folder: Path) -> None:
    """Create the checksums of an environment, before the environment. Until the first publication it does not count.

    OSError if the disk is full.
    """
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.posix_fallocate(handle, 0, HEAD_BYTES + GROWTH_BYTES)
        os.pwrite(handle, _HEAD.pack(_MAGIC, mmap.PAGESIZE, 0, Standing.OPEN), 0)
    finally:
        os.close(handle)


def is_begun(folder: Path) -> bool:
    """Whether an environment was never published: its writer was killed before."""
    try:
        with (folder / NAME).open("rb") as file:
            head = file.read(_HEAD.size)
    except FileNotFoundError:
        return False
    return len(head) == _HEAD.size and _HEAD.unpack(head)[::2] == (_MAGIC, 0)


def read_head(handle: int, folder: Path) -> int:
    """The bytes of a page; ReplicaDamaged if the file is not one of checksums."""
    head = os.pread(handle, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise damaged(folder, f"{NAME} was cut short")
    magic, page_bytes, _, _ = _HEAD.unpack(head)
    if magic != _MAGIC or page_bytes not in {1 << power for power in range(9, 17)}:
        raise damaged(folder, f"{NAME} is no such file")
    return int(page_bytes)


def _opened(folder: Path, flags: int) -> int:
    try:
        return os.open(folder / NAME, flags)
    except FileNotFoundError:
        if not (folder / "data.mdb").exists():
            raise
        raise Unchecked(
            "The replica has no checksums: an older Stateside wrote it",
            where=str(folder),
            next_step="Nothing: it is rebuilt from the checkpoint",
        ) from None


def _state_at(transaction: int) -> int:
    return _STATES_AT + transaction % 2 * _STATE_BYTES


def _packed(state: PublishedState) -> bytes:
    content = _STATE.pack(state.transaction, state.data_bytes, state.free, state.main, 0)[:-8]
    return content + struct.pack("<Q", xxh3_64_intdigest(content))


def _parsed(content: bytes, transaction: int) -> PublishedState | None:
    if len(content) < _STATE.size or xxh3_64_intdigest(content[:-8]) != struct.unpack("<Q", content[-8:])[0]:
        return None
    found, data_bytes, free, main, _ = _STATE.unpack(content)
    return PublishedState(found, data_bytes, free, main) if found == transaction else None
