"""Derives a view's catalogue from its query's plan, or refuses the view with the reason and the way round it.

Spark keeps, for each group, the buffers of its aggregate functions, in the order in which the functions first appear in
the select list of the optimised plan, equal ones once (pinned in `tests/semantics`). `aggregates` knows which can be
served. What would have to be computed after the aggregation is refused: the state does not hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateside.checkpoint.catalogue import Catalogue, KeyColumn, Stored, ViewColumn, Window
from stateside.checkpoint.computed import check_computed
from stateside.checkpoint.rollup_declarations import check_rollups
from stateside.checkpoint.types import Array, Map, Primitive, SparkType, Struct, parse_type
from stateside.checkpoint.unsafe_row import SERVED_TYPES
from stateside.errors import ViewInvalid
from stateside.pipeline.aggregates import NotServed, Served, serve
from stateside.pipeline.app import View
from stateside.pipeline.catalyst import (
    SESSION_WINDOW,
    TIME_WINDOW,
    WATERMARK_DELAY,
    Definitions,
    analysed_plan,
    expression_id,
    kind,
    metadata,
    optimised_plan,
    sequence,
    tree,
    type_text,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSION_START = "sessionStartTime"  # what Spark calls the session's start in the state's key
_MICROS_PER_MS = 1_000
_UNKEYABLE = "Cast it to a string before the groupBy"
_AFTER = {
    "Filter": ("it filters after the aggregation", "Filter before the groupBy, or let the reader leave rows out"),
    "Sort": ("it sorts after the aggregation", "Leave the ordering out: rows are served in the order of the key"),
    **dict.fromkeys(
        ("GlobalLimit", "LocalLimit", "Tail", "Offset"),
        ("it ends in a limit", "Leave the limit out: readers ask by key"),
    ),
}
_NO_AGGREGATION = "End in groupBy(…).agg(…), or keep state with transformWithState and name it with state="
_STATEFUL = {"Aggregate", "GlobalLimit", "FlatMapGroupsWithState", "TransformWithState", "TransformWithStateInPySpark"}
_STATEFUL |= {"FlatMapGroupsInPandasWithState", "TransformWithStateInPandas"}


def derive_catalogue(application: str, view: View, frame: DataFrame) -> Catalogue:
    """How the state of this view's query becomes the view's rows; ViewInvalid if it cannot be told."""
    if not frame.isStreaming:
        raise _refused(
            view,
            "its function returns a DataFrame that is not streaming",
            "Let it begin with the DataFrame that it is given",
        )
    plan = optimised_plan(frame)
    definitions = Definitions(analysed_plan(frame), plan)
    groups = _Groups(view, *_aggregation(view, plan), definitions)
    key = groups.key()
    columns = tuple(_columns(view, groups))
    _check_names(view, key, columns)
    catalogue = Catalogue(
        application=application,
        view=view.name,
        operator=0,  # the stateful operator nearest to the sink
        key=key,
        columns=columns,
        kind="session" if groups.session is not None else "aggregation",
        window=groups.window(),
        rollups=view.rollups,
        computed=view.computed,
        archive=view.archive if view.rows == "closed" else None,
    )
    check_rollups(catalogue)
    check_computed(catalogue)
    return catalogue


def _aggregation(view: View, plan: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """The aggregation that the query ends in, and its result: each column with the output that it shows."""
    if kind(plan) == "Project" and kind(plan.child()) == "Aggregate" and _only_renames(plan):
        below = plan.child()
        _check_shape(view, below)
        outputs: dict[int | None, Any] = {expression_id(each): each for each in sequence(below.aggregateExpressions())}
        return below, [(each, outputs[_shown_id(each)]) for each in sequence(plan.projectList())]
    _check_shape(view, plan)
    return plan, [(output, output) for output in sequence(plan.aggregateExpressions())]


def _only_renames(project: Any) -> bool:
    """Spark leaves such a projection behind where it has taken aggregates apart (as for count_if)."""
    return all(_shown_id(each) is not None for each in sequence(project.projectList()))


def _shown_id(named: Any) -> int | None:
    attribute = named.child() if kind(named) == "Alias" else named
    return expression_id(attribute) if kind(attribute) == "AttributeReference" else None


def _check_shape(view: View, plan: Any) -> None:
    """The query must end in its one aggregation."""
    top, kinds = kind(plan), [kind(node) for node in tree(plan)]
    if top != "Aggregate":
        if "Aggregate" in kinds and top in _AFTER:
            raise _refused(view, *_AFTER[top])
        if "Aggregate" in kinds and top == "Project":
            raise _refused(view, "it computes on, after the aggregation", "Let the reader compute it from the columns")
        raise _refused(view, f"its query ends in {top}, not in an aggregation", _NO_AGGREGATION)
    for node in tree(plan):
        joined = kind(node) == "Join" and all(child.isStreaming() for child in sequence(node.children()))
        if node is not plan and node.isStreaming() and (joined or kind(node) in _STATEFUL):
            raise _refused(
                view,
                f"below its aggregation there is another operator with state, {kind(node)}",
                "Make that one a view or a reaction of its own, and let this view read what it emits",
            )


@dataclass(frozen=True, slots=True)
class _Groups:
    """The grouping columns of a plan's top aggregation, in the order in which the state's key has them."""

    view: View
    plan: Any
    result: list[tuple[Any, Any]]
    definitions: Definitions

    @property
    def attributes(self) -> list[Any]:
        """The columns themselves."""
        return sequence(self.plan.groupingExpressions())

    @property
    def aggregates(self) -> list[Any]:
        """What of the select list is no grouping column, in order."""
        return [output for output in sequence(self.plan.aggregateExpressions()) if self.shown(output) is None]

    @property
    def session(self) -> int | None:
        """Which of the grouping columns is a session window."""
        places = [place for place, each in enumerate(self.attributes) if SESSION_WINDOW in metadata(each)]
        return places[0] if places else None

    def shown(self, output: Any) -> int | None:
        """Which grouping column the output shows; None if it is something else."""
        shown = _shown_id(output)
        places = [place for place, each in enumerate(self.attributes) if _shown_id(each) == shown]
        return places[0] if places and shown is not None else None

    def key(self) -> tuple[KeyColumn, ...]:
        """The view's key, in its declared order."""
        assert self.view.key, "a reaction has no catalogue"
        for each in self.attributes:
            if kind(each) != "AttributeReference":
                raise _refused(
                    self.view, f"it groups by the constant {each.sql()}", "Leave the constant out of the groupBy"
                )
        names = self._names()
        if sorted(names) != sorted(self.view.key):
            raise _refused(
                self.view,
                f"its key is {list(self.view.key)}, but it groups by {names}",
                "Give the view's key exactly the columns of the groupBy",
            )
        return tuple(self._column(names.index(name), name) for name in self.view.key)

    def window(self) -> Window | None:
        """The tumbling window among them, if there is one."""
        for place, attribute in enumerate(self.attributes):
            noted = metadata(attribute)
            if TIME_WINDOW in noted:
                size_us, offset_us = self._buckets(attribute)
                delay_ms = noted.get(WATERMARK_DELAY)
                delay_us = None if delay_ms is None else delay_ms * _MICROS_PER_MS
                return Window(self._names()[place], size_us, offset_us, delay_us)
        return None

    def _names(self) -> list[str]:
        """What each is called in the query's result; where it is not in it, as the state calls it."""
        names = [str(each.name()) for each in self.attributes]
        for column, output in reversed(self.result):
            place = self.shown(output)
            if place is not None:
                names[place] = str(column.name())
        return names

    def _column(self, place: int, name: str) -> KeyColumn:
        attribute = self.attributes[place]
        stored = Stored(place, str(attribute.name()), type_text(attribute))
        expression = str(self.definitions.of(attribute).sql())
        if not _keyable(stored.type):
            raise _refused(
                self.view, f"its key column {name!r} has the type {stored.type}, which keys cannot have", _UNKEYABLE
            )
        if self.session is None:
            return KeyColumn(name, stored.type, stored, expression)
        if place != self.session:
            return KeyColumn(
                name, stored.type, Stored(place - (place > self.session), stored.name, stored.type), expression
            )
        if WATERMARK_DELAY not in metadata(attribute):
            raise _refused(
                self.view, "its session windows have no watermark", "Call withWatermark on the time before the groupBy"
            )
        start = Stored(len(self.attributes) - 1, SESSION_START, "timestamp")
        return KeyColumn(name, stored.type, start, expression, whole=stored)

    def _buckets(self, window: Any) -> tuple[int, int]:
        """Size and offset of a tumbling window's buckets, out of the arithmetic that Spark has made of it."""
        made = self.definitions.of(window)
        remainders = [part for part in tree(made) if kind(part) == "Remainder"]
        if kind(made) != "CreateNamedStruct" or not remainders:
            raise _refused(
                self.view,
                "its windows slide, so that the state would hold a copy of each event for every window it is in",
                'Use buckets of the slide, F.window("time", slide), and let the reader sum a range of them',
            )
        return int(remainders[0].right().value()), int(remainders[0].left().right().value())


def _columns(view: View, groups: _Groups) -> Iterator[ViewColumn]:
    places = dict(_places(view, groups))
    for column, output in groups.result:
        if groups.shown(output) is None:
            served, begin = places[expression_id(output)]
            expression = str(groups.definitions.of(column).sql())
            yield _column(view, str(column.name()), expression, output, served, begin)


def _places(view: View, groups: _Groups) -> Iterator[tuple[int, tuple[Served, int]]]:
    """For each aggregate, by its id, how it is served and where its buffers begin in the value row."""
    kept: list[tuple[Served, int]] = []
    end = 0 if groups.session is None else len(groups.attributes)  # a session's row begins with its grouping columns
    for output in groups.aggregates:
        served = serve(output.child() if kind(output) == "Alias" else output)
        if isinstance(served, NotServed):
            text = f"{str(output.name())!r}, {groups.definitions.of(output).sql()}"
            raise _refused(view, f"its column {text}, {served.reason}", served.instead)
        begin = next((place for other, place in kept if other.same(served)), end)
        if begin == end:
            kept.append((served, begin))
            end += len(served.buffers())
        yield expression_id(output), (served, begin)


def _column(view: View, name: str, expression: str, output: Any, served: Served, begin: int) -> ViewColumn:
    reason = _unserved(parse_type(type_text(output)))
    if reason or "collate" in type_text(output):
        raise _refused(
            view, f"its column {name!r} has the type {type_text(output)}", reason or "Cast it to a plain string"
        )
    buffers = tuple(
        Stored(begin + place, str(buffer.name()), type_text(buffer)) for place, buffer in enumerate(served.buffers())
    )
    return ViewColumn(name, type_text(output), served.finaliser, buffers, expression, served.null_on_overflow)


def _check_names(view: View, key: Sequence[KeyColumn], columns: Sequence[ViewColumn]) -> None:
    counted = Counter([*(column.name for column in key), *(column.name for column in columns)])
    twice = [name for name, times in counted.items() if times > 1]
    if twice:
        raise _refused(view, f"two of its columns are called {twice[0]!r}", "Give each a name of its own with alias(…)")


def _keyable(type_: str) -> bool:
    def whole(part: SparkType) -> bool:
        if isinstance(part, Struct):
            return all(map(whole, part.types))
        return not isinstance(part, Array | Map) and _unserved(part) is None

    return "collate" not in type_ and whole(parse_type(type_))


def _unserved(type_: SparkType) -> str | None:
    """What to do instead of serving a column of this type; None if it can be served."""
    match type_:
        case Primitive(name):
            return None if name in SERVED_TYPES else "Cast it to a string, or to a number of seconds or months"
        case Map():
            return "A map has no order; take map_entries(…) of it, or one column for each key"
        case Array(element):
            return _unserved(element)
        case Struct(names, types):
            if len(set(names)) < len(names):
                return "Give each of its fields a name of its own"
            return next(filter(None, map(_unserved, types)), None)
    return None


def _refused(view: View, reason: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view.name!r} cannot be served: {reason}", next_step=next_step)
