"""The state of a stream-stream join: the rows of each side that may still meet one of the other side.

Each side keeps its rows under the join's key and a number that counts them, and beside them how many there are:

    left-keyToNumValues, right-…       key := the join's key                  value := how many rows
    left-keyWithIndexToValue, right-…  key := the join's key, index (long)    value := the row's columns, matched

Of a key that has n rows, these stand at 0 to n - 1: if one leaves, the last one takes its place. So the second alone
tells all. Where they lie depends on `spark.sql.streaming.join.stateFormatVersion`; the operator's metadata shows it:

    1, 2  four stores (see `one_store`), metadata v1; 1, of old checkpoints, has no `matched`
    3     one store with four column families, metadata v2; RocksDB only
    4     one store with other families, where rows are lists by time: refused, Spark has it for tests only

The key's columns are called `field0`, `field1`, … whatever the query calls them.
"""

from __future__ import annotations

from stateside.checkpoint.catalogue import Catalogue, KeyColumn, Stored, ViewColumn
from stateside.checkpoint.column_names import apart
from stateside.checkpoint.families import read_families
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.one_store import one_store
from stateside.checkpoint.schema import Column, StateSchema, columns_of, read_schema
from stateside.checkpoint.served_types import unkeyable, unserved
from stateside.errors import CheckpointInvalid, ViewInvalid
from stateside.storage import Storage

OPERATOR = "symmetricHashJoin"
SIDES = ("left", "right")
_ENCODER = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}


def views_of_join(checkpoint: Checkpoint, operator: int) -> list[Catalogue]:
    """A view of each side's rows, called `left` and `right`; ViewInvalid if a column has a type that nobody serves."""
    return [_view(checkpoint.storage, operator, side) for side in SIDES]


def join_schema(storage: Storage, operator: int, *, store: str | None, family: str | None) -> StateSchema:
    """The columns of a store, or of a column family, of a join; FileNotFoundError before its first batch."""
    if store is not None:
        return read_schema(one_store(storage, operator, store), operator)
    families = read_families(storage, operator)
    found = families.get(family or "")
    if found is None or found.encoder != _ENCODER:
        raise CheckpointInvalid(
            f"The join's rows are not kept as known: {family} is not among {', '.join(sorted(families))}",
            where=storage.path(f"state/{operator}/_stateSchema"),
            next_step="Run the query on a new folder with spark.sql.streaming.join.stateFormatVersion=2 or 3",
        )
    return StateSchema(columns_of(found.key), columns_of(found.value))


def _view(storage: Storage, operator: int, side: str) -> Catalogue:
    _, metadata_name = Checkpoint(storage).operator_metadata(operator)
    name, in_families = f"{side}-keyWithIndexToValue", "/v2/" in metadata_name
    store, family = (None, name) if in_families else (name, None)
    schema = join_schema(storage, operator, store=store, family=family)
    for column in schema.key:
        _check(side, column, unkeyable(column.type))
    for column in schema.value:
        _check(side, column, unserved(column.type))
    names = apart([column.name for column in (*schema.key, *schema.value)])
    key = tuple(
        KeyColumn(name, column.type, Stored(place, column.name, column.type), column.name)
        for place, (name, column) in enumerate(zip(names, schema.key, strict=False))
    )
    columns = tuple(
        ViewColumn(name, column.type, "value", (Stored(place, column.name, column.type),), column.name)
        for place, (name, column) in enumerate(zip(names[len(key) :], schema.value, strict=True))
    )
    return Catalogue("", side, operator, key, columns, kind="join", store=store, family=family)


def _check(side: str, column: Column, instead: str | None) -> None:
    if instead:
        raise ViewInvalid(
            f"The {side} side of the join cannot be served: its column {column.name!r} has the type {column.type}",
            next_step=instead,
        )
