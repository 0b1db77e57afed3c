"""Vectorised hashing and comparison of strings, without a Python object for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Rows = Longs | slice
ALL = slice(None)  # indexing with a slice is a view, without a copy

_WORD_BYTES = 8
# Odd numbers without a pattern: digits of pi, e and the golden ratio.
_SEED, _ONE, _TWO, _THREE = (
    np.uint64(number) for number in (0x243F6A8885A308D3, 0x9E3779B97F4A7C15, 0xB7E151628AED2A6B, 0x13198A2E03707345)
)
_HIGH = np.uint64(32)
_LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of strings, seen as words of eight bytes; the last word of a string is padded with zeros."""

    begins: Longs
    lengths: Longs
    _words: Hashes  # the word that begins at each byte
    _bytes: int

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray) -> Texts:
        """A view of an Arrow column without nulls; bytes are copied only for content shorter than a word."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # a column without chunks
            array = pa.array([], pa.large_string())
        array = array.cast(pa.large_string())
        edges = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8) if len(array) else _ZERO
        content = array.buffers()[2]
        if content is None or content.size < _WORD_BYTES:
            content = pa.py_buffer((b"" if content is None else content.to_pybytes()).ljust(_WORD_BYTES, b"\0"))
        words: Hashes = np.ndarray((content.size - _WORD_BYTES + 1,), "<u8", content, strides=(1,))
        return cls(edges[:-1], np.diff(edges), words, content.size)

    def __len__(self) -> int:
        return len(self.begins)

    def taken(self, rows: Rows) -> Texts:
        return Texts(self.begins[rows], self.lengths[rows], self._words, self._bytes)

    def words(self, rows: Rows) -> Iterator[tuple[Rows, Hashes]]:
        """Word by word from the first: the rows that have one more word, as indexes into `rows`, and their words."""
        begins, lengths = self.begins[rows], self.lengths[rows]
        which: Rows = ALL if len(lengths) and lengths.min() > 0 else np.flatnonzero(lengths > 0)
        at_byte = 0
        while len(begins[which]):
            left = lengths[which] - at_byte
            yield which, self._word(begins[which] + at_byte) & _LOW_BYTES[np.minimum(left, _WORD_BYTES)]
            at_byte += _WORD_BYTES
            more = left > _WORD_BYTES
            if not more.all():
                which = np.flatnonzero(more) if isinstance(which, slice) else which[more]

    def equal(self, rows: Longs, other: Texts, other_rows: Longs) -> Bools:
        """Whether each text equals its counterpart, pair by pair."""
        same: Bools = self.lengths[rows] == other.lengths[other_rows]
        if not same.all():
            candidates = np.flatnonzero(same)
            same[candidates] = self.equal(rows[candidates], other, other_rows[candidates])
            return same
        for (which, word), (_, other_word) in zip(self.words(rows), other.words(other_rows), strict=True):
            same[which] &= word == other_word
        return same

    def _word(self, at_bytes: Longs) -> Hashes:
        """The words at these bytes; past the end nothing is read, and zeros are shifted in."""
        last = self._bytes - _WORD_BYTES
        if not len(at_bytes) or at_bytes.max() <= last:
            return self._words[at_bytes]
        inside = np.minimum(at_bytes, last)
        return self._words[inside] >> ((at_bytes - inside) * 8).astype(np.uint64)


_ZERO = np.zeros(1, np.int64)


def text_hashes(texts: Texts) -> Hashes:
    """A 64-bit hash of each text, the same in every process and on every machine, because files store the hashes."""
    hashes = (texts.lengths.astype(np.uint64) + _SEED) * _ONE
    for which, word in texts.words(ALL):
        hashes[which] = _stirred((hashes[which] ^ word) * _TWO)
    return _stirred(_stirred(hashes * _THREE) * _ONE)


def _stirred(hashes: Hashes) -> Hashes:
    return hashes ^ (hashes >> _HIGH)
