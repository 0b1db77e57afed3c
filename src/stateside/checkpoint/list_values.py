"""The value of a list state: its entries one after the other, as RocksDB's own merge of appended values leaves them.

    value     := entry (delimiter entry)*
    entry     := size (i32, little-endian)  so many bytes: a value as of a value state (see `state_variables`)
    delimiter := "," with merge operator 1, nothing with merge operator 2

A changelog has `put` with all entries of a list, `merge` with the entries that come after those that the key had, and
`delete`. Which merge operator a query has stands in every `offsets/N` from Spark 4.2 on, and stays; before there was
only 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from stateside.checkpoint.compression import damaged
from stateside.checkpoint.log import Checkpoint, Plan
from stateside.errors import CheckpointInvalid

_SETTING = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
_DELIMITERS = {"1": b",", "2": b""}
_SIZE = struct.Struct("<i")


def delimiter_of(checkpoint: Checkpoint) -> bytes:
    """What stands between the entries of the query's lists; FileNotFoundError before its first batch is committed."""
    batches = checkpoint.commits()
    if not batches:
        raise FileNotFoundError(checkpoint.storage.path("commits"))
    return _delimiter(checkpoint.plan(batches[-1]), checkpoint.storage.path(f"offsets/{batches[-1]}"))


def split_entries(value: bytes, delimiter: bytes, path: str) -> list[bytes]:
    """The entries of a list, or of what was appended to one; CheckpointInvalid if they are not framed as known."""
    return list(_entries(value, delimiter, path))


def _delimiter(plan: Plan, path: str) -> bytes:
    version = plan.conf.get(_SETTING, "1")
    if version not in _DELIMITERS:
        raise CheckpointInvalid(
            f"Lists are kept by merge operator {version}, which is not known",
            where=path,
            next_step=f"Run the query on a new folder with {_SETTING}=2",
        )
    return _DELIMITERS[version]


def _entries(value: bytes, delimiter: bytes, path: str) -> Iterator[bytes]:
    at_byte = 0
    while True:
        begin = at_byte + _SIZE.size
        size = _SIZE.unpack_from(value, at_byte)[0] if begin <= len(value) else -1
        end = begin + size
        if size < 0 or end > len(value):
            raise damaged(path, 0, "an entry of a list is cut short")
        yield value[begin:end]
        if end == len(value):
            return
        if not value.startswith(delimiter, end):
            raise damaged(path, 0, "two entries of a list are not apart as expected")
        at_byte = end + len(delimiter)
