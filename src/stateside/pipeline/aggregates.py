"""Which aggregates can be served, how each is finalised, and what to do instead of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stateside.pipeline.catalyst import kind, sequence, tree, type_text

_PLAIN = {
    "Count": "count",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
}
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
    """An aggregate that can be served: itself, its finaliser, and whether Spark answers null where it overflows."""

    aggregate: Any
    finaliser: str
    null_on_overflow: bool = False

    def buffers(self) -> list[Any]:
        """The buffers that Spark keeps for it."""
        return sequence(self.aggregate.aggregateFunction().aggBufferAttributes())

    def same(self, other: Served) -> bool:
        """Whether Spark keeps one set of buffers for both."""
        return bool(self.aggregate.deterministic() and self.aggregate.semanticEquals(other.aggregate))


@dataclass(frozen=True, slots=True)
class NotServed:
    """An expression that cannot be served: why, and what to do instead."""

    reason: str
    instead: str


def serve(expression: Any) -> Served | NotServed:
    """How a column's expression, out of the optimised plan, can be served."""
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


def _aggregate(aggregate: Any) -> Served | NotServed:
    function = aggregate.aggregateFunction()
    name = kind(function)
    if aggregate.isDistinct():
        return NotServed("has a DISTINCT, for which all values would have to be kept", _BY_GROUPS)
    if name in _PLAIN:
        return Served(aggregate, _PLAIN[name])
    if name == "Sum":
        return _sum(aggregate, function)
    if name == "Average":
        decimal = type_text(function.child()).startswith("decimal")
        return Served(aggregate, "decimal_average" if decimal else "average", _lenient(function.evalMode()))
    return NotServed("is an aggregate that cannot be served", _INSTEAD.get(name, _OTHERWISE))


def _sum(aggregate: Any, function: Any) -> Served:
    lenient = _lenient(function.evalContext().evalMode())
    if type_text(function).startswith("decimal"):
        return Served(aggregate, "decimal_sum", lenient)
    return Served(aggregate, "try_sum" if function.aggBufferAttributes().size() > 1 else "sum", lenient)


def _unscaled_sum(made: Any) -> Served | NotServed:
    """MakeDecimal(sum(UnscaledValue(x))): the optimiser's form of a sum of small decimals."""
    function = made.child().aggregateFunction()
    if kind(function) != "Sum" or kind(function.child()) != "UnscaledValue" or made.child().isDistinct():
        return NotServed("computes on, after the aggregation", _COMPUTE_LATER)
    return Served(made.child(), "unscaled_sum", bool(made.nullOnOverflow()))


def _is_average(divided: Any) -> bool:
    """Whether it is avg(UnscaledValue(x)) / 10^scale: the optimiser's form of an average of small decimals."""
    if kind(divided) != "Divide" or kind(divided.left()) != "AggregateExpression":
        return False
    function = divided.left().aggregateFunction()
    return kind(function) == "Average" and kind(function.child()) == "UnscaledValue"


def _unscaled_average(cast: Any) -> Served | NotServed:
    divided = cast.child()
    scale = int(type_text(cast).removesuffix(")").rpartition(",")[2])
    if not type_text(cast).startswith("decimal") or divided.right().value() != 10.0 ** (scale - 4):
        return NotServed("computes on, after the aggregation", _COMPUTE_LATER)
    return Served(divided.left(), "unscaled_average")


def _lenient(mode: Any) -> bool:
    return str(mode.toString()) != "ANSI"
