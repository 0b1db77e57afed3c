"""Derivation of a view's catalogue from its query's plan; a view that cannot be served is refused with a way round.

Aggregations: Spark keeps, for each group, the buffers of its aggregate functions, in the order in which the functions
first appear in the select list of the optimised plan, equal ones once (pinned in `tests/semantics`). `serve` decides
which aggregates can be served, and names an alternative for the others. Computation after the aggregation is refused:
the state does not hold its result.

State variables of `transformWithState`: a value, a map or a list state; `timers` stands for the timers that the
processor has registered. The plan has the grouping columns; the variable's own columns are known, and checked, once the
processor's `init` has run (`views.state_catalogue`). What the query does with the emitted rows does not touch the
state; only another stateful operator would, because Spark numbers operators from the sink down.

Plans and expressions are trees of Scala objects reached through py4j.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateside.core.errors import ViewInvalid
from stateside.pipeline.app import View
from stateside.spark_state.types import Array, Map, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import SERVED_TYPES
from stateside.views.aggregates import AGGREGATES, Aggregate, UnscaledAverage, UnscaledSum, check_rollups
from stateside.views.catalogue import Catalogue, KeyColumn, StateColumn, ViewColumn, Window, unkeyable
from stateside.views.functions import check_computed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRANSFORM = "TransformWithStateInPySpark"
_STATELESS = {"Project", "Filter", "SubqueryAlias", "EventTimeWatermark"}
_ADVICE = "Let it select named columns, then end in groupBy(…).transformWithState(…) or transformWithStateInPandas(…)"


def derive_state_catalogue(application: str, view: View, frame: DataFrame) -> Catalogue:
    """The part of a state variable's catalogue that the plan determines; ViewInvalid if the view cannot be served."""
    transform = _transform(view, analysed_plan(frame))
    catalogue = Catalogue(
        application=application,
        view=view.name,
        operator=0,
        key=_key(view, transform),
        columns=(),
        kind="state-variable",
        family=view.state,
        rollups=view.rollups,
        computed=view.computed,
    )
    check_rollups(catalogue)
    check_computed(catalogue)
    return catalogue


def _transform(view: View, plan: Any) -> Any:
    """The `transformWithState` at the query's end, below stateless operators only."""
    while kind(plan) in _STATELESS:
        plan = plan.child()
    if kind(plan) != _TRANSFORM:
        raise _state_refused(view, f"it has state={view.state!r}, but its query ends in {kind(plan)}")
    return plan


def _key(view: View, transform: Any) -> tuple[KeyColumn, ...]:
    assert view.key, "a reaction has no catalogue"
    output = transform.child().output()
    grouping = [_state_key_column(output.apply(index), index) for index in range(transform.groupingAttributesLen())]
    by_name = {column.name: column for column in grouping}
    if sorted(by_name) != sorted(view.key) or len(by_name) != len(grouping):
        raise _state_refused(
            view, f"its key is {list(view.key)}, but it groups by {[column.name for column in grouping]}"
        )
    for column in grouping:
        if unkeyable(column.type):
            raise _state_refused(view, f"its key {column.name!r} has the type {column.type}, which cannot be served")
    return tuple(by_name[name] for name in view.key)


def _state_key_column(attribute: Any, index: int) -> KeyColumn:
    name, type_ = attribute.name(), str(attribute.dataType().json()).strip('"')
    return KeyColumn(name, type_, StateColumn(index, name, type_), attribute.sql())


def _state_refused(view: View, reason: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view.name!r} cannot be served: {reason}", next_step=_ADVICE)


TIME_WINDOW, SESSION_WINDOW, WATERMARK_DELAY = "spark.timeWindow", "spark.sessionWindow", "spark.watermarkDelayMs"


def analysed_plan(frame: DataFrame) -> Any:
    """The plan as written, with all names resolved."""
    return frame._jdf.queryExecution().analyzed()


def optimised_plan(frame: DataFrame) -> Any:
    """The plan that will run. The state follows this plan: its groups, and its aggregates in order."""
    optimiser = frame.sparkSession._jsparkSession.sessionState().optimizer()
    return optimiser.execute(analysed_plan(frame))


def sequence(scala: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [scala.apply(index) for index in range(scala.size())]


def kind(node: Any) -> str:
    """The class of a plan's node or of an expression."""
    return str(node.getClass().getSimpleName())


def type_text(node: Any) -> str:
    """The type of an expression, in the form of Spark's schemas."""
    text = str(node.dataType().json())
    return json.dumps(json.loads(text), sort_keys=True) if text.startswith("{") else text.strip('"')


def tree(node: Any) -> Iterator[Any]:
    """The node and all nodes below, parents first."""
    yield node
    for child in sequence(node.children()):
        yield from tree(child)


def expression_id(named: Any) -> int:
    """The identity of a column, independent of its name."""
    return int(named.exprId().id())


def metadata(attribute: Any) -> dict[str, Any]:
    """The metadata of a column: window and watermark."""
    noted: dict[str, Any] = json.loads(attribute.metadata().json())
    return noted


class Definitions:
    """The defining expressions of the columns in some plans."""

    def __init__(self, *plans: Any) -> None:
        self._aliases: dict[int, Any] = {}
        for plan in plans:
            for node in tree(plan):
                for expression in sequence(node.expressions()):
                    if kind(expression) == "Alias":
                        self._aliases.setdefault(expression_id(expression), expression)

    def of(self, named: Any) -> Any:
        """The expression behind a column, through all renamings; the column itself if it has no definition."""
        followed: set[int] = set()
        while kind(named) in ("Alias", "AttributeReference") and expression_id(named) not in followed:
            followed.add(expression_id(named))
            alias = self._aliases.get(expression_id(named), named)
            named = alias.child() if kind(alias) == "Alias" else named
        return named


_BY_GROUPS = "Group by that column as well and let the reader count the rows"
_BY_MOMENTS = "Serve sum(x), sum(x * x) and count(x) as columns of their own, and let the reader compute it from them"
_BY_STATE = "Serve max_by, first or last of it, or keep it yourself with transformWithState"
_BY_RANGES = "Group by ranges of that column as well and count: the reader finds the percentile in the counts"
_INSTEAD = {
    **dict.fromkeys(("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis"), _BY_MOMENTS),
    **dict.fromkeys(("Corr", "CovPopulation", "CovSample"), _BY_MOMENTS),
    **dict.fromkeys(("CollectList", "CollectSet", "ListAgg", "CollectTopK", "MaxMinByK"), _BY_STATE),
    **dict.fromkeys(("Percentile", "ApproximatePercentile", "Mode", "PercentileCont", "PercentileDisc"), _BY_RANGES),
    "HyperLogLogPlusPlus": _BY_GROUPS,
}
_OTHERWISE = (
    "Build it from sum, count, avg, min, max, first, last, max_by or min_by, or keep it with transformWithState"
)
_COMPUTE_LATER = "Serve the parts that it is computed from as columns of their own, and let the reader compute it"


@dataclass(frozen=True, slots=True)
class Served:
    """Spark's expression of an aggregate, its class here, and whether Spark returns null on overflow."""

    expression: Any
    aggregate: type[Aggregate]
    null_on_overflow: bool = False

    def buffers(self) -> list[Any]:
        """The buffers that Spark keeps for the aggregate."""
        return sequence(self.expression.aggregateFunction().aggBufferAttributes())

    def same(self, other: Served) -> bool:
        """Whether Spark keeps one set of buffers for both."""
        return bool(self.expression.deterministic() and self.expression.semanticEquals(other.expression))


@dataclass(frozen=True, slots=True)
class NotServed:
    """An expression that cannot be served: the reason and an alternative."""

    reason: str
    instead: str


def serve(expression: Any) -> Served | NotServed:
    """How an expression of the optimised plan can be served."""
    match kind(expression):
        case "AggregateExpression":
            return _aggregate(expression)
        case "MakeDecimal" if kind(expression.child()) == "AggregateExpression":
            return _unscaled_sum(expression)
        case "Cast" if _is_average(expression.child()):
            return _unscaled_average(expression)
    if any(kind(part) == "AggregateExpression" for part in tree(expression)):
        return NotServed("computes on, after the aggregation", _COMPUTE_LATER)
    return NotServed("computes on, after the aggregation", "Compute it before the groupBy, and group by it")


def _aggregate(expression: Any) -> Served | NotServed:
    function = expression.aggregateFunction()
    name = kind(function)
    if expression.isDistinct():
        return NotServed("has a DISTINCT, for which all values would have to be kept", _BY_GROUPS)
    types = [parse_type(type_text(buffer)) for buffer in sequence(function.aggBufferAttributes())]
    for each in AGGREGATES.values():
        if each.function == name and each.fits(types):
            return Served(expression, each, _is_null_on_overflow(function))
    return NotServed("is an aggregate that cannot be served", _INSTEAD.get(name, _OTHERWISE))


def _unscaled_sum(made: Any) -> Served | NotServed:
    """MakeDecimal(sum(UnscaledValue(x))): the optimiser's form of a sum of small decimals."""
    function = made.child().aggregateFunction()
    if kind(function) != "Sum" or kind(function.child()) != "UnscaledValue" or made.child().isDistinct():
        return NotServed("computes on, after the aggregation", _COMPUTE_LATER)
    return Served(made.child(), UnscaledSum, bool(made.nullOnOverflow()))


def _is_average(divided: Any) -> bool:
    """Match avg(UnscaledValue(x)) / 10^scale: the optimiser's form of an average of small decimals."""
    if kind(divided) != "Divide" or kind(divided.left()) != "AggregateExpression":
        return False
    function = divided.left().aggregateFunction()
    return kind(function) == "Average" and kind(function.child()) == "UnscaledValue"


def _unscaled_average(cast: Any) -> Served | NotServed:
    divided = cast.child()
    scale = int(type_text(cast).removesuffix(")").rpartition(",")[2])
    if not type_text(cast).startswith("decimal") or divided.right().value() != 10.0 ** (scale - 4):
        return NotServed("computes on, after the aggregation", _COMPUTE_LATER)
    return Served(divided.left(), UnscaledAverage)


def _is_null_on_overflow(function: Any) -> bool:
    """Only sums and averages have a mode: an error (ANSI), or null."""
    if kind(function) == "Sum":
        return str(function.evalContext().evalMode().toString()) != "ANSI"
    return kind(function) == "Average" and str(function.evalMode().toString()) != "ANSI"


SESSION_START = "sessionStartTime"  # Spark's name for the session's start in the state's key
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
    """The mapping from the query's state to the view's rows; ViewInvalid if it cannot be derived."""
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
    """The aggregation at the query's end, and its result: each column with the aggregation's output."""
    if kind(plan) == "Project" and kind(plan.child()) == "Aggregate" and _only_renames(plan):
        below = plan.child()
        _check_shape(view, below)
        outputs: dict[int | None, Any] = {expression_id(each): each for each in sequence(below.aggregateExpressions())}
        return below, [(each, outputs[_shown_id(each)]) for each in sequence(plan.projectList())]
    _check_shape(view, plan)
    return plan, [(output, output) for output in sequence(plan.aggregateExpressions())]


def _only_renames(project: Any) -> bool:
    """Spark leaves such a projection where it has split aggregates (as for count_if)."""
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
    """The grouping columns of a plan's top aggregation, in the order of the state's key."""

    view: View
    plan: Any
    result: list[tuple[Any, Any]]
    definitions: Definitions

    @property
    def attributes(self) -> list[Any]:
        return sequence(self.plan.groupingExpressions())

    @property
    def aggregates(self) -> list[Any]:
        """The outputs of the select list other than grouping columns, in order."""
        return [output for output in sequence(self.plan.aggregateExpressions()) if self.shown(output) is None]

    @property
    def session(self) -> int | None:
        """The index of the session window among the grouping columns."""
        places = [place for place, each in enumerate(self.attributes) if SESSION_WINDOW in metadata(each)]
        return places[0] if places else None

    def shown(self, output: Any) -> int | None:
        """The index of the grouping column in the output; None for any other output."""
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
        """The tumbling window among the grouping columns, if there is one."""
        for place, attribute in enumerate(self.attributes):
            noted = metadata(attribute)
            if TIME_WINDOW in noted:
                size_us, offset_us = self._buckets(attribute)
                delay_ms = noted.get(WATERMARK_DELAY)
                delay_us = None if delay_ms is None else delay_ms * _MICROS_PER_MS
                return Window(self._names()[place], size_us, offset_us, delay_us)
        return None

    def _names(self) -> list[str]:
        """The columns' names in the query's result; for columns missing there, the names in the state."""
        names = [str(each.name()) for each in self.attributes]
        for column, output in reversed(self.result):
            place = self.shown(output)
            if place is not None:
                names[place] = str(column.name())
        return names

    def _column(self, place: int, name: str) -> KeyColumn:
        attribute = self.attributes[place]
        stored = StateColumn(place, str(attribute.name()), type_text(attribute))
        expression = str(self.definitions.of(attribute).sql())
        if not _keyable(stored.type):
            raise _refused(
                self.view, f"its key column {name!r} has the type {stored.type}, which keys cannot have", _UNKEYABLE
            )
        if self.session is None:
            return KeyColumn(name, stored.type, stored, expression)
        if place != self.session:
            return KeyColumn(
                name, stored.type, StateColumn(place - (place > self.session), stored.name, stored.type), expression
            )
        if WATERMARK_DELAY not in metadata(attribute):
            raise _refused(
                self.view, "its session windows have no watermark", "Call withWatermark on the time before the groupBy"
            )
        start = StateColumn(len(self.attributes) - 1, SESSION_START, "timestamp")
        return KeyColumn(name, stored.type, start, expression, whole=stored)

    def _buckets(self, window: Any) -> tuple[int, int]:
        """Size and offset of a tumbling window's buckets, from the arithmetic in Spark's plan."""
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
    shown = [(column, output) for column, output in groups.result if groups.shown(output) is None]
    for column, output in shown:
        _check_type(view, str(column.name()), type_text(output))
    places = dict(_places(view, groups))
    for column, output in shown:
        served, begin = places[expression_id(output)]
        expression = str(groups.definitions.of(column).sql())
        yield _column(str(column.name()), expression, output, served, begin)


def _places(view: View, groups: _Groups) -> Iterator[tuple[int, tuple[Served, int]]]:
    """For each aggregate, by expression id: how it is served, and where its buffers begin in the value row."""
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


def _check_type(view: View, name: str, type_: str) -> None:
    reason = _unserved(parse_type(type_))
    if reason or "collate" in type_:
        raise _refused(view, f"its column {name!r} has the type {type_}", reason or "Cast it to a plain string")


def _column(name: str, expression: str, output: Any, served: Served, begin: int) -> ViewColumn:
    buffers = tuple(
        StateColumn(begin + place, str(buffer.name()), type_text(buffer))
        for place, buffer in enumerate(served.buffers())
    )
    return ViewColumn(name, type_text(output), served.aggregate.name, buffers, expression, served.null_on_overflow)


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
    """The alternative to serving a column of this type; None if it can be served."""
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
