"""The catalogue of a view: how the rows of a state store become the view's rows.

The state holds aggregation buffers, not the declared columns. The runner derives from the query's plan which buffers
give which column and how (`aggregates`), and writes the result, as JSON, beside the checkpoint; readers need neither
the user's code nor Spark. The stored rows depend on the catalogue's `kind`:

    aggregation     key row: the grouping columns; value row: the buffers
    session         key row: the grouping columns without the session window, then the session's start;
                    value row: all grouping columns, the session window among them, then the buffers
    state-variable  one variable of a `transformWithState`, its name in `family`: see `state_catalogue`
    join            one side of a stream-stream join, in a `store` or a column `family`: see `state_catalogue`
    groups          the state of flatMapGroupsWithState or applyInPandasWithState: see `state_catalogue`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.core.json_file import JsonFile
from stateside.spark_state.types import Array, Column, Map, Primitive, SparkType, StateSchema, Struct, parse_type
from stateside.spark_state.unsafe_row import SERVED_TYPES

VERSION = 4
_VERSIONS = (2, 3, VERSION)  # 2 had no computed columns, 3 no archive

Kind = Literal["aggregation", "session", "state-variable", "join", "groups"]


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column of the state: its index in the key or value row, and its name and type there."""

    index: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a view's key: its name and Spark type, its place in the state's key, and its expression.

    Of a session window the state's key has the start only; `whole` is the place of the full window in the value row.
    """

    name: str
    type: str
    stored: StateColumn
    expression: str
    whole: StateColumn | None = None

    @classmethod
    def of_state(cls, name: str, index: int, column: Column) -> KeyColumn:
        """A column of the state's key, shown as it is."""
        return cls(name, column.type, StateColumn(index, column.name, column.type), column.name)

    @property
    def asked_type(self) -> str:
        """The type of the column in the replica's key and in readers' queries."""
        return self.stored.type if self.whole else self.type


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view: its name and Spark type, its aggregate (`aggregates`) and buffers, and its expression.

    Spark itself would let a `count` continue where a `sum` of the same type left off; `expression` distinguishes the
    two. `null_on_overflow` says what Spark returns for a number that grew too large: null, or else an error.
    """

    name: str
    type: str
    aggregate: str
    buffers: tuple[StateColumn, ...]
    expression: str
    null_on_overflow: bool = False

    @classmethod
    def of_state(cls, name: str, index: int, column: Column) -> ViewColumn:
        """A column of the state's value, shown as it is."""
        return cls(name, column.type, "value", (StateColumn(index, column.name, column.type),), column.name)

    def as_document(self) -> dict[str, Any]:
        """As in files and answers, where the aggregate is called the finaliser."""
        document = asdict(self)
        document["finaliser"] = document.pop("aggregate")
        return document

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ViewColumn:
        fields = dict(document)
        fields["aggregate"] = fields.pop("finaliser")
        return cls(**fields | {"buffers": tuple(StateColumn(**buffer) for buffer in fields["buffers"])})


@dataclass(frozen=True, slots=True)
class Computed:
    """A column computed by readers: a long, from the long column `of` by the function for the key's columns `by`.

    The view's table of functions (`functions`) has it under the texts of `by`. The state has no such column.
    """

    name: str
    of: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The tumbling window among the key's columns: the size of its buckets, and their offset from 1970.

    With a watermark, `delay_us` is its delay: a bucket leaves the state once the watermark has passed the bucket's end.
    """

    column: str
    size_us: int
    offset_us: int
    delay_us: int | None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A view as served: the key's columns in query order, then the values' columns.

    `rollups` has, for each coarser key with sums, its columns in query order. `computed` columns come after the others
    in rows and in rollups (see `functions`). Both belong to the replica: the state has neither.

    `archive` is the table for rows that leave the state, each once, with its sealing batch and the same columns except
    the computed ones; None without an archive.

    `query` is the id of the only query that an inferred catalogue is valid for (see `inference`); None if derived from
    a plan. An inferred catalogue need not show all columns of the state.
    """

    application: str
    view: str
    operator: int
    key: tuple[KeyColumn, ...]
    columns: tuple[ViewColumn, ...]
    kind: Kind = "aggregation"
    window: Window | None = None
    family: str | None = None
    store: str | None = None  # the view's own, where the operator has several in a partition
    rollups: tuple[tuple[str, ...], ...] = ()
    query: str | None = None
    computed: tuple[Computed, ...] = ()
    archive: str | None = None

    def as_json(self) -> bytes:
        return CATALOGUE.encode(self)

    def as_document(self) -> dict[str, Any]:
        return asdict(self) | {"columns": [column.as_document() for column in self.columns]}

    @classmethod
    def parse(cls, content: bytes, where: str) -> Catalogue:
        """The catalogue in a file's content."""
        return CATALOGUE.decode(content, where)

    @classmethod
    def load(cls, path: Path) -> Catalogue:
        return cls.parse(path.read_bytes(), str(path))

    def check(self, schema: StateSchema) -> None:
        """ViewInvalid for a state other than the one this catalogue was derived for."""
        wholes = [column.whole for column in self.key if column.whole]
        buffers = {buffer.index: buffer for column in self.columns for buffer in column.buffers}
        others = len(self.key) if self.kind == "session" else 0  # columns of the value row that are no buffers
        self._check("key", [column.stored for column in self.key], schema.key, len(self.key))
        count = others + len(buffers) if self.query is None else len(schema.value)
        self._check("value", [*wholes, *buffers.values()], schema.value, count)

    def check_query(self, query: str | None) -> None:
        """ViewInvalid for a query other than the one the catalogue was inferred from."""
        if self.query is not None and self.query != query:
            raise ViewInvalid(
                f"The view {self.view!r} was inferred from the query {self.query}, the checkpoint is of {query} now",
                next_step="Wait a moment: the server infers the views",
            )

    def _check(self, part: str, declared: Sequence[StateColumn], found: Sequence[Column], count: int) -> None:
        if len(found) != count:
            raise self._unfit(f"its {part} should have {count} columns, the state's has {len(found)}")
        for column in declared:
            there = found[column.index] if column.index < len(found) else None
            if there is None or there.name != column.name or parse_type(there.type) != parse_type(column.type):
                raise self._unfit(
                    f"{part} column {column.index} should be {column.name} {column.type}, the state has "
                    f"{there and f'{there.name} {there.type}'}"
                )

    def _unfit(self, difference: str) -> ViewInvalid:
        return ViewInvalid(
            f"The view {self.view!r} does not fit its state: {difference}",
            next_step="The query was changed on an old checkpoint: start it on a new folder",
        )


def _catalogue(document: dict[str, Any]) -> Catalogue:
    key = tuple(_key_column(column) for column in document.pop("key"))
    columns = tuple(ViewColumn.parse(column) for column in document.pop("columns"))
    window = document.pop("window")
    rollups = tuple(tuple(names) for names in document.pop("rollups", ()))
    window = Window(**window) if window else None
    computed = tuple(_computed(column) for column in document.pop("computed", ()))
    return Catalogue(**document, key=key, columns=columns, window=window, rollups=rollups, computed=computed)


CATALOGUE = JsonFile(
    "The catalogue",
    _catalogue,
    Catalogue.as_document,
    damage=CheckpointInvalid,
    next_step="Delete this file and start the view again: run rewrites it",
    versions=_VERSIONS,
    indent=2,
)


def _computed(document: dict[str, Any]) -> Computed:
    return Computed(**document | {"by": tuple(document["by"])})


def _key_column(document: dict[str, Any]) -> KeyColumn:
    stored, whole = StateColumn(**document.pop("stored")), document.pop("whole")
    return KeyColumn(**document, stored=stored, whole=StateColumn(**whole) if whole else None)


def refused(view: str, reason: str, next_step: str) -> ViewInvalid:
    """The error for a view that is refused rather than served wrongly."""
    return ViewInvalid(f"The view {view!r} cannot be served: {reason}", next_step=next_step)


def key_columns(names: Iterable[str], columns: Iterable[Column], first: int = 0) -> tuple[KeyColumn, ...]:
    """Columns of the state's key, from the index `first` on, shown as they are under these names."""
    named = enumerate(zip(names, columns, strict=True), first)
    return tuple(KeyColumn.of_state(name, index, column) for index, (name, column) in named)


def value_columns(names: Iterable[str], columns: Iterable[Column]) -> tuple[ViewColumn, ...]:
    """The columns of the state's value, shown as they are under these names."""
    named = enumerate(zip(names, columns, strict=True))
    return tuple(ViewColumn.of_state(name, index, column) for index, (name, column) in named)


def unserved(type_: str) -> str | None:
    """What to do instead of serving a column of this type; None if the type can be served."""
    try:
        return _unserved(parse_type(type_))
    except CheckpointInvalid as error:
        return error.what


def unkeyable(type_: str) -> str | None:
    """What to do instead of querying by a column of this type; None if the type can be in a key."""
    if "collate" in type_:
        return "Group by a plain string: what a collation takes for equal has several texts"
    return unserved(type_) or _unkeyable(parse_type(type_))


def _unserved(type_: SparkType) -> str | None:
    match type_:
        case Primitive(name):
            return None if name in SERVED_TYPES or name.startswith("interval") else "Keep it as a string"
        case Array(element):
            return _unserved(element)
        case Map(key, value):
            return _unserved(key) or _unserved(value)
        case Struct(names, types):
            if len(set(names)) < len(names):
                return "Give each of its fields a name of its own"
            return next(filter(None, map(_unserved, types)), None)
    return None


def _unkeyable(type_: SparkType) -> str | None:
    match type_:
        case Primitive(name) if name.startswith("interval"):
            return "Nobody can ask by an interval: keep it as a number of seconds or months, or in the value"
        case Array() | Map():
            return "Nobody can ask by a list or a map: keep it as a string, or in the value"
        case Struct(_, types):
            return next(filter(None, map(_unkeyable, types)), None)
    return None


def apart(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names made unique, and different from `taken`: a second `size` becomes `size_2`, or `size_3` if that exists.

    A name that is given literally keeps its form, wherever it comes.
    """
    asked, used = list(names), set(taken)
    given: list[str] = []
    for name in asked:
        number, free = 1, name
        while free in used or (number > 1 and free in asked):
            number += 1
            free = f"{name}_{number}"
        used.add(free)
        given.append(free)
    return given
