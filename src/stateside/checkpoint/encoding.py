"""How a query's state has its rows encoded: as UnsafeRows, or with Avro, which only a `transformWithState` can have.

That stands in every `offsets/N` and stays what it was when the query first ran. Only RocksDB's store heeds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from stateside.checkpoint.avro_row import AvroDecoder, Versions
from stateside.checkpoint.changelog import check_encoding
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.schema import Column
from stateside.checkpoint.unsafe_row import RowDecoder
from stateside.errors import CheckpointInvalid

_SETTING = "spark.sql.streaming.stateStore.encodingFormat"


class Encoding(Enum):
    """A way of encoding rows, by Spark's name for it."""

    UNSAFE_ROW = "unsaferow"
    AVRO = "avro"

    def decoder(
        self, columns: Sequence[Column], versions: Versions | None = None, *, identified: bool = True
    ) -> RowDecoder | AvroDecoder:
        """A decoder of rows with these columns; see `AvroDecoder` for what the rest means to Avro."""
        if self is Encoding.AVRO:
            return AvroDecoder(columns, versions, identified=identified)
        return RowDecoder(columns)


def encoding_of(checkpoint: Checkpoint) -> Encoding:
    """The encoding of the query's rows; FileNotFoundError before its first batch is committed."""
    batches = checkpoint.commits()
    if not batches:
        raise FileNotFoundError(checkpoint.storage.path("commits"))
    plan, path = checkpoint.plan(batches[-1]), checkpoint.storage.path(f"offsets/{batches[-1]}")
    check_encoding(plan, path)
    return Encoding(plan.conf.get(_SETTING, Encoding.UNSAFE_ROW.value).lower())


def refuse_avro(checkpoint: Checkpoint) -> None:
    """CheckpointInvalid for rows in Avro of an operator that, as far as is known, cannot have them."""
    if encoding_of(checkpoint) is Encoding.AVRO:
        raise CheckpointInvalid(
            "The state's rows are encoded as avro, which can be read of a transformWithState only",
            where=checkpoint.storage.path("offsets"),
            next_step=f"Run the query on a new folder with {_SETTING}=unsaferow",
        )
