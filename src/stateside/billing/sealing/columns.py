"""Columns of Arrow tables as arrays, and rows by what their columns say: many at once, without a loop over rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateside.errors import ValueOverflow

RANKS_MAX: Final = 2**62  # as many ranks fit into a long

Longs = npt.NDArray[np.int64]


def longs(column: pa.ChunkedArray) -> Longs:
    """A column of whole numbers or of times (in microseconds) as an array; ValueOverflow beyond 64 bits."""
    try:
        return np.asarray(pc.cast(column, pa.int64()).to_numpy(), np.int64)
    except pa.ArrowInvalid as error:
        raise ValueOverflow(
            f"A quantity is larger than any that can be stored: {error}", next_step="Look for absurd quantities"
        ) from error


def with_longs(table: pa.Table, **columns: Longs) -> pa.Table:
    """The table with these columns, in place of those that have the same names."""
    for name, values in columns.items():
        column = pa.array(values, pa.int64())
        number = table.schema.get_field_index(name)
        table = table.append_column(name, column) if number < 0 else table.set_column(number, name, column)
    return table


def groups(table: pa.Table, *names: str) -> Iterator[tuple[tuple[Any, ...], Longs]]:
    """The different values of some columns that have few of them, each with the numbers of its rows."""
    columns = [table[name].combine_chunks().dictionary_encode() for name in names]
    codes = np.zeros(table.num_rows, np.int64)
    for column in columns:
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))  # codes are never negative
    for first, last in pairwise([*firsts.tolist(), len(order)]):
        yield tuple(column[order[first]].as_py() for column in columns), order[first:last]


def ranks(table: pa.Table, *names: str) -> Longs:
    """A number for each row, from 0 on, that sorts as the values of these columns do, texts by their UTF-8."""
    found, count = np.zeros(table.num_rows, np.int64), 1
    for name in names:
        column = table[name].combine_chunks().dictionary_encode()
        order = pc.sort_indices(column.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        if count * len(order) > RANKS_MAX:
            count, found = _closed_up(found)
        found = found * len(order) + rank[column.indices.to_numpy()]
        count *= len(order)
    return found


def _closed_up(found: Longs) -> tuple[int, Longs]:
    """Ranks without gaps between them, and how many there are."""
    values, closed_up = np.unique(found, return_inverse=True)
    return len(values), closed_up.astype(np.int64)
