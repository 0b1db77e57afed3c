"""The state that a catalogue describes, for every kind of view; and the completion of a state variable's catalogue.

Spark knows a processor's variables only once its `init` has run, so at the start the plan has only the grouping
columns. The rest is in the checkpoint from the first batch on, and every reader completes the catalogue from there:

    key      the grouping columns in the view's order, then those of the entry: a map's key, a list's `index` (from 0),
             a timer's `expires_ms`; a stored index counts in both together
    columns  the value's fields, then `expires_ms` where values expire; a stored index counts in these

where repeated names get a number (`apart`). So a value state has one row per key, a map or a list one row per entry (as
in Spark's own reader), and timers one row each.

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
from typing import Protocol

from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.avro_row import encoding_of
from stateside.spark_state.batch_log import Checkpoint, Commit
from stateside.spark_state.column_families import read_families
from stateside.spark_state.state_variables import VALUE_STATE, StateVariable, ValueDecoder, read_variables
from stateside.spark_state.types import Column, StateSchema, columns_of, read_schema
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.catalogue import Catalogue, apart, key_columns, refused, unkeyable, unserved, value_columns

TIMEOUT = Column("timeout_ms", "long")
SIDES = ("left", "right")
JOIN_STORES = tuple(f"{side}-{part}" for side in SIDES for part in ("keyToNumValues", "keyWithIndexToValue"))
_NO_TIMEOUT = -1
_ENCODER = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}


class Decoder(Protocol):
    """Decodes the rows of a replica, for any kind of view."""

    def decode(self, row: bytes) -> tuple[Value, ...]:
        """The row's values, in the order that the catalogue's `index` counts in."""


def check_state(catalogue: Catalogue, storage: Storage) -> None:
    """ViewInvalid for a state that does not fit the catalogue; FileNotFoundError before there is a state."""
    if catalogue.kind == "state-variable":
        served_variable(catalogue, storage)
    else:
        catalogue.check(stored_schema(catalogue, storage))


def completed(catalogue: Catalogue, storage: Storage) -> Catalogue:
    """The catalogue with all columns of its variable; of other kinds, unchanged. Errors as for `check_state`."""
    if catalogue.kind != "state-variable":
        return catalogue
    variable = served_variable(catalogue, storage)
    shift = len(variable.grouping)
    grouping = tuple(column for column in catalogue.key if column.stored.index < shift)
    others = (*variable.entry, *variable.columns)
    names = apart([column.name for column in (*variable.grouping, *others)])[shift:]
    entry = key_columns(names[: len(variable.entry)], variable.entry, shift)
    columns = value_columns(names[len(variable.entry) :], variable.columns)
    return replace(catalogue, key=grouping + entry, columns=columns)


def value_decoder(catalogue: Catalogue, storage: Storage) -> Decoder:
    """The decoder of the replica's rows into the values that the columns' `index` counts in."""
    if catalogue.kind == "state-variable":
        variable, encoding = served_variable(catalogue, storage), encoding_of(Checkpoint(storage))
        return ValueDecoder(variable, encoding, lambda: served_variable(catalogue, storage).stored)
    if catalogue.kind == "groups":
        return GroupDecoder(storage, catalogue.operator)
    return RowDecoder(stored_schema(catalogue, storage).value)


def stored_schema(catalogue: Catalogue, storage: Storage) -> StateSchema:
    """The columns of the state of a view of any other kind; FileNotFoundError before there is a state."""
    if catalogue.kind == "join":
        return join_schema(storage, catalogue.operator, store=catalogue.store, family=catalogue.family)
    if catalogue.kind == "groups":
        return group_schema(storage, catalogue.operator)
    return read_schema(storage, catalogue.operator)


def served_variable(catalogue: Catalogue, storage: Storage) -> StateVariable:
    """The variable served by the view; ViewInvalid if it does not exist or cannot be served.

    One side of a join in column families is stored like a value state.
    """
    assert catalogue.family is not None, "a state variable's catalogue has its name"
    if catalogue.kind == "join":
        schema = stored_schema(catalogue, storage)
        return StateVariable(catalogue.family, VALUE_STATE, False, schema.key, (), schema.value)
    variables = read_variables(storage, catalogue.operator)
    variable = variables.get(catalogue.family)
    if variable is None:
        raise refused(
            catalogue.view,
            f"its query has no state variable {catalogue.family!r}",
            f"Variables that it has: {', '.join(sorted(variables)) or 'none'}",
        )
    _check_key(catalogue, variable)
    _check_columns(catalogue, variable)
    return variable


def views_of_variables(checkpoint: Checkpoint, operator: int) -> list[Catalogue]:
    """A view of each variable of a `transformWithState`, with the variable's name, and `timers`.

    A variable that cannot be served is refused when its catalogue is completed.
    """
    return [
        Catalogue(
            "",
            name,
            operator,
            key_columns([column.name for column in variable.grouping], variable.grouping),
            (),
            kind="state-variable",
            family=name,
        )
        for name, variable in read_variables(checkpoint.storage, operator).items()
    ]


def _check_key(catalogue: Catalogue, variable: StateVariable) -> None:
    for column in catalogue.key:
        index = column.stored.index
        found = variable.key[index] if index < len(variable.key) else None
        if found is None or (found.name, found.type) != (column.stored.name, column.type):
            raise refused(
                catalogue.view,
                f"key column {index} should be {column.name} {column.type}, the state has "
                f"{found and f'{found.name} {found.type}'}",
                "The query was changed on an old checkpoint: start it on a new folder",
            )


def _check_columns(catalogue: Catalogue, variable: StateVariable) -> None:
    all_columns = (*variable.key, *variable.columns)
    for place, column in enumerate(all_columns):
        instead = (unkeyable if place < len(variable.key) else unserved)(column.type)
        if instead:
            raise refused(
                catalogue.view,
                f"the field {column.name!r} of its state variable {variable.name!r} has the type {column.type}, which "
                "cannot be served",
                instead,
            )


def views_of_groups(checkpoint: Checkpoint, operator: int) -> list[Catalogue]:
    """The view of all groups, called `groups`; ViewInvalid for a column of an unserved type."""
    whole = Catalogue("", "groups", operator, (), (), kind="groups")
    return [_as_stored(whole, group_schema(checkpoint.storage, operator), "The groups")]


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
    view = Catalogue("", side, operator, (), (), kind="join", store=store, family=family)
    return _as_stored(view, schema, f"The {side} side of the join")


def _as_stored(view: Catalogue, schema: StateSchema, what: str) -> Catalogue:
    """The view with all columns of its state, as they are."""
    columns, keys = (*schema.key, *schema.value), len(schema.key)
    for place, column in enumerate(columns):
        instead = (unkeyable if place < keys else unserved)(column.type)
        if instead:
            raise ViewInvalid(
                f"{what} cannot be served: the column {column.name!r} has the type {column.type}", next_step=instead
            )
    names = apart(column.name for column in columns)
    key, values = key_columns(names[:keys], schema.key), value_columns(names[keys:], schema.value)
    return replace(view, key=key, columns=values)
