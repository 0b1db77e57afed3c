"""Inference: the views of a query that Stateside did not start, from its checkpoint alone.

Each stateful operator is a view; so is each state variable of a `transformWithState`, and each side of a join. A view's
name is that of the checkpoint's folder, followed by the operator's number if there are several, and by the variable's
or side's name. `WAYS` has the inference for each operator, by Spark's name; an operator without one is refused by name.

Rows are served as stored, as Spark's own `statestore` reader shows them: a key's columns by their names, then the
aggregation's buffers, raw (`value` in `aggregates`). Without the query's plan a sum and a count are not known to be an
average; a declaration (`declaration_file`) can say so. Repeated names get a number: sum, sum_2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stateside.core.errors import CheckpointInvalid, StatesideError, ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import AGGREGATION, SUPPORTED, Checkpoint
from stateside.spark_state.types import (
    Array,
    Column,
    Map,
    Primitive,
    SparkType,
    StateSchema,
    Struct,
    parse_type,
    read_schema,
)
from stateside.views.catalogue import Catalogue, KeyColumn, Kind, StateColumn, ViewColumn, apart, key_columns
from stateside.views.state_catalogue import served_variable, views_of_groups, views_of_join, views_of_variables

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARS_MAX = 100
_AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
_SESSION_WINDOWS = [Struct(("start", "end"), (Primitive(time),) * 2) for time in ("timestamp", "timestamp_ntz")]
_NOTHING = {"void", "null"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A view that cannot be served, and the reason with the next step, in a sentence or two."""

    view: str
    why: str


@dataclass(frozen=True, slots=True)
class Inferred:
    """The views inferred for a query, and those refused."""

    query: str
    views: tuple[Catalogue, ...]
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator: its checkpoint, query and number, and the name for its view.

    `settings` are those that Spark recorded with the query's batches.
    """

    storage: Storage
    query: str
    number: int
    view: str
    settings: Mapping[str, str]

    def catalogue(
        self, key: Sequence[KeyColumn], columns: Iterable[ViewColumn], kind: Kind = "aggregation"
    ) -> Catalogue:
        return Catalogue(
            application=self.storage.root,
            view=self.view,
            operator=self.number,
            key=tuple(key),
            columns=tuple(columns),
            kind=kind,
            query=self.query,
        )


Way = Callable[[Operator], Iterator[Catalogue | Refusal]]


def infer(storage: Storage, name: str) -> Inferred | None:
    """The views of the query in a checkpoint, named after `name`; None before its first committed batch with state.

    A problem with one operator is a refusal and leaves the others alone; CheckpointInvalid if nothing can be inferred.
    """
    checkpoint = Checkpoint(storage)
    query, commits, numbers = checkpoint.query_id(), checkpoint.commits(), checkpoint.operators()
    if query is None or not commits or not numbers:
        return None
    settings, base = checkpoint.plan(commits[-1]).conf, safe_name(name)
    found: list[Catalogue | Refusal] = []
    for number in numbers:
        view = base if len(numbers) == 1 else f"{base}-{number}"
        found += _views_of(checkpoint, Operator(storage, query, number, view, settings))
    if checkpoint.query_id() != query:
        return None  # replaced just now: the files read may be of both queries
    views = tuple(each for each in found if isinstance(each, Catalogue))
    return Inferred(query, views, tuple(each for each in found if isinstance(each, Refusal)))


def safe_name(text: str) -> str:
    """The text as a view's name, without characters special in paths and addresses."""
    return _UNSAFE.sub("-", text).strip("-")[:_NAME_CHARS_MAX] or "view"


def _views_of(checkpoint: Checkpoint, operator: Operator) -> list[Catalogue | Refusal]:
    try:
        return [_named_apart(view) for view in _way(checkpoint, operator)(operator)]
    except FileNotFoundError as error:
        return [Refusal(operator.view, f"A file that tells of its state is missing: {error}. {SUPPORTED}.")]
    except StatesideError as error:
        return [Refusal(operator.view, str(error))]


def _named_apart(view: Catalogue | Refusal) -> Catalogue | Refusal:
    """The view; a refusal if a struct in it has two fields of one name, because an answer would lose one."""
    if isinstance(view, Refusal):
        return view
    types = {column.name: column.type for column in view.key} | {column.name: column.type for column in view.columns}
    for name, type_ in types.items():
        if _doubled(parse_type(type_)):
            return Refusal(view.view, f"In its column {name} two fields have one name. Let the query rename one.")
    return view


def _doubled(type_: SparkType) -> bool:
    match type_:
        case Struct(names, types):
            return len(set(names)) < len(names) or any(map(_doubled, types))
        case Array(element):
            return _doubled(element)
        case Map(key, value):
            return _doubled(key) or _doubled(value)
    return False


def _way(checkpoint: Checkpoint, operator: Operator) -> Way:
    try:
        metadata, path = checkpoint.operator_metadata(operator.number)
    except FileNotFoundError:
        raise CheckpointInvalid(
            f"The stateful operator {operator.number} has no metadata: an older Spark made this checkpoint",
            where=checkpoint.storage.path(f"state/{operator.number}"),
            next_step=SUPPORTED,
        ) from None
    name = str(metadata.get("operatorInfo", {}).get("operatorName"))
    if name in WAYS:
        return WAYS[name]
    reason = _NOTHING_TO_ASK.get(name, "which is not known")
    raise ViewInvalid(
        f"The stateful operator {operator.number} is a {name}, {reason}",
        where=checkpoint.storage.path(path),
        next_step=f"Operators that are served: {', '.join(WAYS)}",
    )


def _aggregation(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """An aggregation, with or without a window among its key's columns.

    In Spark's state format 1 the value row repeats the key's columns in front: the view shows them once.
    """
    schema = read_schema(operator.storage, operator.number)
    doubled = operator.settings.get(_AGGREGATION_FORMAT) == "1" and _begins(schema.value, schema.key)
    key = key_columns(apart(column.name for column in schema.key), schema.key)
    yield operator.catalogue(key, _buffers(schema.value, len(schema.key) if doubled else 0, key))


def _deduplication(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """A row for each key seen; within a watermark with the time until which the key is remembered."""
    schema = read_schema(operator.storage, operator.number)
    key = key_columns(apart(column.name for column in schema.key), schema.key)
    yield operator.catalogue(key, _buffers(schema.value, 0, key))


def _session(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """A session window: the value row begins with all grouping columns; the state's key has only the window's start."""
    schema = read_schema(operator.storage, operator.number)
    place = _session_place(operator, schema)
    grouping = schema.value[: len(schema.key)]
    names = apart(column.name for column in grouping)
    keys = []
    for index, (name, column) in enumerate(zip(names, grouping, strict=True)):
        stored = StateColumn(index, column.name, column.type)
        if index == place:
            start = len(schema.key) - 1
            at = StateColumn(start, schema.key[start].name, schema.key[start].type)
            keys.append(KeyColumn(name, column.type, at, column.name, whole=stored))
        else:
            at = StateColumn(index - (index > place), column.name, column.type)
            keys.append(KeyColumn(name, column.type, at, column.name))
    ordered = [*(each for each in keys if each.whole is None), *(each for each in keys if each.whole)]
    yield operator.catalogue(ordered, _buffers(schema.value, len(grouping), keys), "session")


def _session_place(operator: Operator, schema: StateSchema) -> int:
    """The index of the session window among the grouping columns."""
    *others, start = schema.key
    grouping = list(schema.value[: len(schema.key)])
    for place, column in enumerate(grouping):
        rest = grouping[:place] + grouping[place + 1 :]
        if parse_type(column.type) in _SESSION_WINDOWS and _begins(rest, others) and start.type == "timestamp":
            return place
    raise CheckpointInvalid(
        "The session window cannot be told among the columns "
        f"{[column.name for column in schema.value]} of the state's values",
        where=operator.storage.path(f"state/{operator.number}"),
        next_step=SUPPORTED,
    )


def _variables(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """A view for each state variable, and one for the timers."""
    for catalogue in _named(operator, views_of_variables(Checkpoint(operator.storage), operator.number)):
        try:
            served_variable(catalogue, operator.storage)
            yield catalogue
        except ViewInvalid as error:
            yield Refusal(catalogue.view, str(error))


def _join(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """A view for each side of a stream-stream join."""
    yield from _named(operator, views_of_join(Checkpoint(operator.storage), operator.number))


def _groups(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """The state that a function keeps per group."""
    for catalogue in views_of_groups(Checkpoint(operator.storage), operator.number):
        yield replace(catalogue, application=operator.storage.root, view=operator.view, query=operator.query)


def _named(operator: Operator, catalogues: Sequence[Catalogue]) -> Iterator[Catalogue]:
    """One operator's views, named after the operator and their own names."""
    names = apart(f"{operator.view}-{safe_name(catalogue.view)}" for catalogue in catalogues)
    for name, catalogue in zip(names, catalogues, strict=True):
        yield replace(catalogue, application=operator.storage.root, view=name, query=operator.query)


def _buffers(columns: Sequence[Column], begin: int, key: Sequence[KeyColumn]) -> list[ViewColumn]:
    """The value row's columns from `begin` on, raw, without columns of type void."""
    stored = [each for each in list(enumerate(columns))[begin:] if each[1].type not in _NOTHING]
    names = apart((column.name for _, column in stored), taken=[column.name for column in key])
    return [ViewColumn.of_state(name, *each) for name, each in zip(names, stored, strict=True)]


def _begins(columns: Sequence[Column], first: Sequence[Column]) -> bool:
    return list(columns[: len(first)]) == list(first)


WAYS: dict[str, Way] = {
    AGGREGATION: _aggregation,
    "sessionWindowStateStoreSaveExec": _session,
    "dedupe": _deduplication,
    "dedupeWithinWatermark": _deduplication,
    "transformWithStateExec": _variables,
    "transformWithStateInPandasExec": _variables,
    "transformWithStateInPySparkExec": _variables,
    "symmetricHashJoin": _join,
    "flatMapGroupsWithState": _groups,
    "applyInPandasWithState": _groups,
}
_NOTHING_TO_ASK = {
    "globalLimit": "which keeps no more than the number of rows so far: there is nothing to ask by key",
}
