"""The state of `flatMapGroupsWithState` and `applyInPandasWithState`: for each group what its function keeps of it.

    key   := the grouping columns
    value := groupState (struct of the state's fields; null while a group has a timeout and no state)
             timeoutTimestamp (long, milliseconds; -1 for none), where the query has timeouts

Python's state is stored field by field too, in the types of its declared schema. A view has the fields as columns, and
`timeout_ms`, which is null where there is none. An older format, 1, has no `groupState` and is refused.
"""

from __future__ import annotations

import json

from stateside.checkpoint.catalogue import Catalogue, KeyColumn, Stored, ViewColumn
from stateside.checkpoint.column_names import apart
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.schema import Column, StateSchema, columns_of, read_schema
from stateside.checkpoint.served_types import unkeyable, unserved
from stateside.checkpoint.unsafe_row import RowDecoder, Value
from stateside.errors import CheckpointInvalid, ViewInvalid
from stateside.storage import Storage

OPERATORS = ("flatMapGroupsWithState", "applyInPandasWithState")
TIMEOUT = Column("timeout_ms", "long")
_NO_TIMEOUT = -1


def views_of_groups(checkpoint: Checkpoint, operator: int) -> list[Catalogue]:
    """The view of all groups, called `groups`; ViewInvalid if a column has a type that nobody serves."""
    schema = group_schema(checkpoint.storage, operator)
    for place, column in enumerate((*schema.key, *schema.value)):
        _check(column, (unkeyable if place < len(schema.key) else unserved)(column.type))
    names = apart([column.name for column in (*schema.key, *schema.value)])
    key = tuple(
        KeyColumn(column.name, column.type, Stored(place, column.name, column.type), column.name)
        for place, column in enumerate(schema.key)
    )
    columns = tuple(
        ViewColumn(name, column.type, "value", (Stored(place, column.name, column.type),), column.name)
        for place, (name, column) in enumerate(zip(names[len(key) :], schema.value, strict=True))
    )
    return [Catalogue("", "groups", operator, key, columns, kind="groups")]


def group_schema(storage: Storage, operator: int) -> StateSchema:
    """The grouping columns, and the columns that `GroupDecoder` gives; FileNotFoundError before the first batch."""
    stored = read_schema(storage, operator)
    return StateSchema(stored.key, _fields(storage, operator, stored) + (TIMEOUT,) * (len(stored.value) - 1))


class GroupDecoder:
    """Decodes the rows of groups into the state's fields and the timeout."""

    def __init__(self, storage: Storage, operator: int) -> None:
        stored = read_schema(storage, operator)
        self._nothing = (None,) * len(_fields(storage, operator, stored))
        self._decoder = RowDecoder(stored.value)

    def decode(self, row: bytes) -> tuple[Value, ...]:
        """The values of the columns of `group_schema`."""
        state, *timeout = self._decoder.decode(row)
        fields = self._nothing if state is None else state
        assert isinstance(fields, tuple), "a struct decodes to a tuple"
        return (*fields, *(None if time_ms == _NO_TIMEOUT else time_ms for time_ms in timeout))


def _fields(storage: Storage, operator: int, stored: StateSchema) -> tuple[Column, ...]:
    names = [column.name for column in stored.value]
    if names not in (["groupState"], ["groupState", "timeoutTimestamp"]):
        raise CheckpointInvalid(
            f"The state of groups is not as known: its columns are {names}",
            where=storage.path(f"state/{operator}"),
            next_step="Run the query on a new folder, with spark.sql.streaming.flatMapGroupsWithState"
            ".stateFormatVersion=2",
        )
    return columns_of(json.loads(stored.value[0].type))


def _check(column: Column, instead: str | None) -> None:
    if instead:
        raise ViewInvalid(
            f"The groups cannot be served: the column {column.name!r} has the type {column.type}", next_step=instead
        )
