"""Rows of a changelog to Arrow, all at once and one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.compare import Result, Side, compare
from benchmarks.played_spark import BUFFERS, KEY, pairs
from stateside.spark_state.arrow_rows import RowsToArrow
from stateside.spark_state.slices import whole_block
from stateside.spark_state.types import Column
from stateside.spark_state.unsafe_row import RowDecoder

ROWS = 200_000


def run(folder: Path) -> Iterator[Result]:
    content = pairs(np.arange(ROWS), 0) + b"\xff" * 4
    key, value = ([Column(name, type_) for name, type_ in columns.items()] for columns in (KEY, BUFFERS))
    keys_to_arrow, values_to_arrow = RowsToArrow(key), RowsToArrow(value)
    decode_key, decode_value = RowDecoder(key).decode, RowDecoder(value).decode

    def at_once() -> int:
        block = whole_block(content, "changelog")
        keys, values = keys_to_arrow.batch(block.keys.without(1)), values_to_arrow.batch(block.values.without(1))
        assert keys.num_columns + values.num_columns == len(KEY) + len(BUFFERS)
        return int(keys.num_rows)

    def one_by_one() -> int:
        changes = whole_block(content, "changelog")
        return sum(1 for change in changes if decode_key(change.key[1:]) and decode_value((change.value or b"")[1:]))

    yield compare(
        "keys and rows of a changelog to Arrow", "rows/s", Side("at once", at_once), Side("one by one", one_by_one)
    )
