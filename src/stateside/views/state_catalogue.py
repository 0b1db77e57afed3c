"""The state behind a catalogue, for every kind of view; and the completion of a state variable's catalogue.

Spark knows a processor's variables only once its `init` has run, so at the start the plan has only the grouping
columns. The rest is in the checkpoint from the first batch on, and every reader completes the catalogue from there:

    key      the grouping columns in the view's order, then those of the entry: a map's key, a list's `index` (from 0),
             a timer's `expires_ms`; a stored index counts in both together
    columns  the value's fields, then `expires_ms` where values expire; a stored index counts in these

where repeated names get a number (`column_types.apart`). So a value state has one row per key, a map or a list one row
per entry (as in Spark's own reader), and timers one row each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from stateside.core.errors import ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.avro_row import encoding_of
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.state_variables import VALUE_STATE, StateVariable, ValueDecoder, read_variables
from stateside.spark_state.types import StateSchema, read_schema
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.catalogue import Catalogue, KeyColumn, ViewColumn
from stateside.views.column_types import apart, unkeyable, unserved
from stateside.views.other_state import GroupDecoder, group_schema, join_schema


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
    named, middle = list(zip(names, others, strict=True)), len(variable.entry)
    entry = tuple(KeyColumn.of_state(name, index, column) for index, (name, column) in enumerate(named[:middle], shift))
    columns = tuple(ViewColumn.of_state(name, index, column) for index, (name, column) in enumerate(named[middle:]))
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
        raise _refused(
            catalogue,
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
            tuple(KeyColumn.of_state(column.name, index, column) for index, column in enumerate(variable.grouping)),
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
            raise _refused(
                catalogue,
                f"key column {index} should be {column.name} {column.type}, the state has "
                f"{found and f'{found.name} {found.type}'}",
                "The query was changed on an old checkpoint: start it on a new folder",
            )


def _check_columns(catalogue: Catalogue, variable: StateVariable) -> None:
    all_columns = (*variable.key, *variable.columns)
    for place, column in enumerate(all_columns):
        instead = (unkeyable if place < len(variable.key) else unserved)(column.type)
        if instead:
            raise _refused(
                catalogue,
                f"the field {column.name!r} of its state variable {variable.name!r} has the type {column.type}, which "
                "cannot be served",
                instead,
            )


def _refused(catalogue: Catalogue, reason: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(f"The view {catalogue.view!r} cannot be served: {reason}", next_step=next_step)
