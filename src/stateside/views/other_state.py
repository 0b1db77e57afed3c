"""State of joins and of groups: schemas and views of stateful operators other than aggregations and state variables.

Groups (`flatMapGroupsWithState`, `applyInPandasWithState`): per group, the state that its function keeps.

    key   := the grouping columns
    value := groupState (struct of the state's fields; null while a group has a timeout and no state)
             timeoutTimestamp (long, milliseconds; -1 for none), where the query has timeouts

Python's state is stored field by field too, in the types of its declared schema. A view has the fields as columns, and
`timeout_ms`, null without a timeout. The older format 1 has no `groupState` and is refused.

Stream-stream joins: the rows of each side that may still match a row of the other side. Each side keeps its rows under
the join's key and a running number, and beside them their count:

    left-keyToNumValues, right-…       key := the join's key                  value := how many rows
    left-keyWithIndexToValue, right-…  key := the join's key, index (long)    value := the row's columns, matched

The n rows of a key have the indexes 0 to n - 1: when one leaves, the last one takes its index. So the second store
alone has everything. The location depends on `spark.sql.streaming.join.stateFormatVersion`, visible in the operator's
metadata:

    1, 2  four stores, metadata v1; 1, of old checkpoints, has no `matched`
    3     one store with four column families, metadata v2; RocksDB only
    4     one store with other families, where rows are lists by time: refused, Spark has it for tests only

The key's columns are called `field0`, `field1`, … whatever the query calls them.

One of several stores (`one_store`): most operators have one store per partition, in `state/OPERATOR/PARTITION/`. A
stream-stream join has four, each in a folder of its own; `commits/N` names their files in this order:

    state/OPERATOR/PARTITION/left-keyToNumValues/     left-keyWithIndexToValue/
                             right-keyToNumValues/    right-keyWithIndexToValue/

Inside such a folder the layout is the usual one. So readers of a checkpoint need no special case: `StoreCheckpoint`
shows them a checkpoint in which the files of one store appear in the usual place.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint, Commit
from stateside.spark_state.column_families import read_families
from stateside.spark_state.types import Column, StateSchema, columns_of, read_schema
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.catalogue import Catalogue, KeyColumn, ViewColumn
from stateside.views.column_types import apart, unkeyable, unserved

OPERATORS = ("flatMapGroupsWithState", "applyInPandasWithState")
TIMEOUT = Column("timeout_ms", "long")
_NO_TIMEOUT = -1


def views_of_groups(checkpoint: Checkpoint, operator: int) -> list[Catalogue]:
    """The view of all groups, called `groups`; ViewInvalid for a column of an unserved type."""
    schema = group_schema(checkpoint.storage, operator)
    for place, column in enumerate((*schema.key, *schema.value)):
        _check_group(column, (unkeyable if place < len(schema.key) else unserved)(column.type))
    names = apart([column.name for column in (*schema.key, *schema.value)])
    key = tuple(KeyColumn.of_state(column.name, place, column) for place, column in enumerate(schema.key))
    columns = tuple(
        ViewColumn.of_state(name, place, column)
        for place, (name, column) in enumerate(zip(names[len(key) :], schema.value, strict=True))
    )
    return [Catalogue("", "groups", operator, key, columns, kind="groups")]


def group_schema(storage: Storage, operator: int) -> StateSchema:
    """The grouping columns, and the columns of `GroupDecoder`; FileNotFoundError before the first batch."""
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


def _check_group(column: Column, instead: str | None) -> None:
    if instead:
        raise ViewInvalid(
            f"The groups cannot be served: the column {column.name!r} has the type {column.type}", next_step=instead
        )


JOIN_STORES = tuple(
    f"{side}-{part}" for side in ("left", "right") for part in ("keyToNumValues", "keyWithIndexToValue")
)


@dataclass(frozen=True, slots=True)
class StoreStorage(Storage):
    """A checkpoint's folder in which one store of an operator appears in place of its partitions."""

    operator: int
    store: str

    def path(self, relative: str) -> str:
        """The whole path of a file; a file of the operator's partition is mapped into the store's own folder."""
        moved = re.sub(rf"^(state/{self.operator}/\d+)(?=/|$)", rf"\1/{self.store}", relative)
        return Storage.path(self, moved)


class StoreCheckpoint(Checkpoint):
    """A checkpoint in which one operator appears to have a single store."""

    def __init__(self, storage: StoreStorage) -> None:
        super().__init__(storage)
        self._operator, self._place = str(storage.operator), JOIN_STORES.index(storage.store)

    def commit(self, batch: int) -> Commit:
        """The batch's commit, with the ids of this store's files alone."""
        commit = super().commit(batch)
        if self._operator not in commit.state_ids:
            return commit
        with self._reading(f"commits/{batch}"):
            ids = [[partition[self._place]] for partition in commit.state_ids[self._operator]]
        return replace(commit, state_ids={**commit.state_ids, self._operator: ids})


def checkpoint_of(catalogue: Catalogue, storage: Storage) -> Checkpoint:
    """The checkpoint for a view's replica: of several stores the view's own."""
    if catalogue.store is None:
        return Checkpoint(storage)
    return StoreCheckpoint(one_store(storage, catalogue.operator, catalogue.store))


def one_store(storage: Storage, operator: int, store: str) -> StoreStorage:
    """The checkpoint's folder as if the operator had this store only."""
    return StoreStorage(storage.filesystem, storage.root, operator, store)


OPERATOR = "symmetricHashJoin"
SIDES = ("left", "right")
_ENCODER = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}


def views_of_join(checkpoint: Checkpoint, operator: int) -> list[Catalogue]:
    """A view of each side's rows, called `left` and `right`; ViewInvalid for a column of an unserved type."""
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
        _check_side(side, column, unkeyable(column.type))
    for column in schema.value:
        _check_side(side, column, unserved(column.type))
    names = apart([column.name for column in (*schema.key, *schema.value)])
    key = tuple(
        KeyColumn.of_state(name, place, column)
        for place, (name, column) in enumerate(zip(names, schema.key, strict=False))
    )
    columns = tuple(
        ViewColumn.of_state(name, place, column)
        for place, (name, column) in enumerate(zip(names[len(key) :], schema.value, strict=True))
    )
    return Catalogue("", side, operator, key, columns, kind="join", store=store, family=family)


def _check_side(side: str, column: Column, instead: str | None) -> None:
    if instead:
        raise ViewInvalid(
            f"The {side} side of the join cannot be served: its column {column.name!r} has the type {column.type}",
            next_step=instead,
        )
