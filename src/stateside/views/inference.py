"""Inferred views: what can be served of a query that somebody else wrote, told from its checkpoint alone.

Each stateful operator is a view; each state variable of a `transformWithState` is one, each side of a join. Its name is
the checkpoint's folder's, followed by the operator's number if there are several, and by the variable's or side's name.
`WAYS` has, for each operator by Spark's name for it, how its views are inferred; one without a way is refused by name.

Rows are served as they are stored, as Spark's own `statestore` reader shows them: a key's columns by their names, then
the aggregation's buffers, raw (`value` in `finalise`). Without the query's plan nobody knows that a sum and a count are
an average; a declaration (`declared`) can say so. Where a name comes twice, the later ones get a number: sum, sum_2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stateside.core.errors import CheckpointInvalid, StatesideError, ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import AGGREGATION, SUPPORTED, Checkpoint
from stateside.spark_state.schema import Column, StateSchema, read_schema
from stateside.spark_state.types import Array, Map, Primitive, SparkType, Struct, parse_type
from stateside.views.catalogue import Catalogue, KeyColumn, Kind, StateColumn, ViewColumn
from stateside.views.column_types import apart
from stateside.views.other_state import views_of_groups, views_of_join
from stateside.views.state_catalogue import served_variable, views_of_variables

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARS_MAX = 100
_AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
_SESSION_WINDOWS = [Struct(("start", "end"), (Primitive(time),) * 2) for time in ("timestamp", "timestamp_ntz")]
_NOTHING = {"void", "null"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A view that cannot be served, and the reason with what to do, as a sentence or two."""

    view: str
    why: str


@dataclass(frozen=True, slots=True)
class Inferred:
    """What could be told of a query's views."""

    query: str
    views: tuple[Catalogue, ...]
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator: of which query, in which checkpoint, under which number; and what its view is to be called.

    `settings` are those that Spark noted with the query's batches.
    """

    storage: Storage
    query: str
    number: int
    view: str
    settings: Mapping[str, str]

    def catalogue(
        self, key: Sequence[KeyColumn], columns: Iterable[ViewColumn], kind: Kind = "aggregation"
    ) -> Catalogue:
        """The view of this operator."""
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
    """The views of the query in a checkpoint, called after this name; None before it has finished a batch with state.

    What is wrong with one operator is a refusal and does no harm to the others; CheckpointInvalid if nothing can be
    told at all.
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
        return None  # replaced just now: what was read may be of both
    views = tuple(each for each in found if isinstance(each, Catalogue))
    return Inferred(query, views, tuple(each for each in found if isinstance(each, Refusal)))


def safe_name(text: str) -> str:
    """The text as a view's name: what has a meaning in paths and addresses is left out."""
    return _UNSAFE.sub("-", text).strip("-")[:_NAME_CHARS_MAX] or "view"


def _views_of(checkpoint: Checkpoint, operator: Operator) -> list[Catalogue | Refusal]:
    try:
        return [_named_apart(view) for view in _way(checkpoint, operator)(operator)]
    except FileNotFoundError as error:
        return [Refusal(operator.view, f"A file that tells of its state is missing: {error}. {SUPPORTED}.")]
    except StatesideError as error:
        return [Refusal(operator.view, str(error))]


def _named_apart(view: Catalogue | Refusal) -> Catalogue | Refusal:
    """The view, unless a struct in it has two fields of one name: in an answer one of them would be lost."""
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
    """An aggregation, with a window among its key's columns or not.

    In Spark's state format 1 its value row has the key's columns once more, in front: they are shown once.
    """
    schema = read_schema(operator.storage, operator.number)
    doubled = operator.settings.get(_AGGREGATION_FORMAT) == "1" and _begins(schema.value, schema.key)
    key = key_columns(schema.key)
    yield operator.catalogue(key, _buffers(schema.value, len(schema.key) if doubled else 0, key))


def _deduplication(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """A row for each key that was seen; within a watermark with the time until which it is remembered."""
    schema = read_schema(operator.storage, operator.number)
    key = key_columns(schema.key)
    yield operator.catalogue(key, _buffers(schema.value, 0, key))


def _session(operator: Operator) -> Iterator[Catalogue | Refusal]:
    """A session window: the value row begins with all grouping columns; of the window the state's key has the start."""
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
    """Which of the grouping columns is the session window."""
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
    """What a function keeps of each group."""
    for catalogue in views_of_groups(Checkpoint(operator.storage), operator.number):
        yield replace(catalogue, application=operator.storage.root, view=operator.view, query=operator.query)


def _named(operator: Operator, catalogues: Sequence[Catalogue]) -> Iterator[Catalogue]:
    """One operator's views, called after it and their own names."""
    names = apart(f"{operator.view}-{safe_name(catalogue.view)}" for catalogue in catalogues)
    for name, catalogue in zip(names, catalogues, strict=True):
        yield replace(catalogue, application=operator.storage.root, view=name, query=operator.query)


def key_columns(columns: Sequence[Column]) -> list[KeyColumn]:
    """Key columns that stand in the state's key as they are."""
    names = apart(column.name for column in columns)
    return [
        KeyColumn(name, column.type, StateColumn(index, column.name, column.type), column.name)
        for index, (name, column) in enumerate(zip(names, columns, strict=True))
    ]


def _buffers(columns: Sequence[Column], begin: int, key: Sequence[KeyColumn]) -> list[ViewColumn]:
    """The value row's columns from this place on, raw; those that are always null are left out."""
    stored = [StateColumn(index, column.name, column.type) for index, column in enumerate(columns) if index >= begin]
    stored = [each for each in stored if each.type not in _NOTHING]
    names = apart((each.name for each in stored), taken=[column.name for column in key])
    return [ViewColumn(name, each.type, "value", (each,), each.name) for name, each in zip(names, stored, strict=True)]


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
