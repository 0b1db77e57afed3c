"""The rows that Spark gets of events: the envelope's columns, those that were asked for, and the payload's fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from stateside.errors import ViewInvalid
from stateside.journal.payload import check_fields, fitted
from stateside.pipeline.dead_letters import Refusals, passed

ENVELOPE: Final = (
    "offset long, id string, entity string, type string, time timestamp, appended timestamp, "
    "tags array<string>, payload string"
)
ENVELOPE_NAMES: Final = tuple(column.split()[0] for column in ENVELOPE.split(", "))
CHOSEN: Final = {  # columns that are there only if they are asked for: no older query's schema changes
    "partition": "string",
    "sequence": "long",
    "version": "int",
    "metadata": "map<string,string>",
    "data": "binary",
    "extra": "string",
}
_MAP: Final = pa.map_(pa.string(), pa.string())


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """The columns that the option `columns` names, separated by commas; ViewInvalid for one that there is not."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    unknown = [name for name in names if name not in CHOSEN]
    if unknown or len(set(names)) < len(names):
        raise ViewInvalid(
            f"The columns {text!r} cannot be added to events", next_step=f"Name some of {', '.join(CHOSEN)}, each once"
        )
    return names


def ddl(chosen: Sequence[str], fields: str | None) -> str:
    """All columns, as DDL: there is no JVM here to parse it."""
    added = ", ".join(f"{name} {CHOSEN[name]}" for name in chosen)
    return ", ".join(filter(None, (ENVELOPE, added, fields)))


class EventRows:
    """Makes rows of events. `schema` is what Spark expects."""

    def __init__(self, schema: pa.Schema, chosen: Sequence[str]) -> None:
        self._schema, self._chosen = schema, tuple(chosen)
        first_field = len(ENVELOPE_NAMES) + len(self._chosen)
        self._fields = pa.schema([schema.field(index) for index in range(first_field, len(schema))])
        check_fields(self._fields)
        twice = {name for name in schema.names if schema.names.count(name) > 1}
        if twice:
            raise ViewInvalid(
                f"There are two columns {min(twice)!r}",
                next_step="Leave one of them out of the source's fields and columns",
            )

    def of(
        self,
        partition: str,
        first: int,
        batch: pa.RecordBatch,
        wanted: pa.Array | None,
        refusals: Refusals | None = None,
    ) -> list[pa.RecordBatch]:
        """The batch, which begins at this offset of a partition, as Spark wants it; types to the letter.

        With `refusals`, events that do not fit or are dated too far ahead go there. Without, each is a row, and one
        that does not fit has nulls for all fields.
        """
        offsets = pa.array(np.arange(first, first + batch.num_rows))
        count = batch.num_rows if wanted is None else wanted.true_count
        if not count:
            return []
        if count < batch.num_rows:
            offsets, batch = offsets.filter(wanted), batch.filter(wanted)
        fields, misfits = fitted(batch.column("payload"), self._fields)
        columns = [
            offsets,
            *(batch.column(name) for name in ENVELOPE_NAMES[1:]),
            *(_column(name, partition, batch) for name in self._chosen),
            *fields.columns,
        ]
        table = pa.Table.from_arrays(columns, names=self._schema.names)
        if refusals is not None:
            good = passed(refusals, partition, offsets, batch, misfits, fields)
            table = table if good is None else table.filter(good)
        return list(table.cast(self._schema).combine_chunks().to_batches())


def _column(name: str, partition: str, batch: pa.RecordBatch) -> pa.Array:
    if name == "partition":
        return pa.array([partition]).take(pa.array(np.zeros(batch.num_rows, np.int8)))
    column = batch.column(name)
    return column if name not in _READ else _READ[name](column)


def _maps(texts: pa.Array) -> pa.Array:
    """JSON objects of texts as maps."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _MAP)
    return pa.array([None if text is None else list(json.loads(text).items()) for text in texts.to_pylist()], _MAP)


_READ: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {"metadata": _maps}
