"""Derives a view's catalogue from its query's plan, or refuses the view with the reason.

Spark keeps, for each group, the buffers of its aggregate functions, in the order in which the functions first appear in
the select list, equal ones once (pinned in `tests/semantics`). For `sum` of whole numbers, `count`, `min` and `max` the
one buffer is the result. What is not so simple is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stateside.checkpoint.catalogue import Catalogue, ViewColumn
from stateside.checkpoint.unsafe_row import SERVED_TYPES
from stateside.errors import ViewInvalid
from stateside.pipeline.app import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOLE_NUMBERS = {"byte", "short", "integer", "long"}
_ADVICE = "Let it select named columns, then end in groupBy(…).agg(…) with sums of whole numbers, counts, min and max"


def derive_catalogue(application: str, view: View, frame: DataFrame) -> Catalogue:
    """How the state of this view's query becomes the view's rows; ViewInvalid if it cannot be told."""
    if not frame.isStreaming:
        raise _refused(view, "its function returns a DataFrame that is not streaming")
    plan = frame._jdf.queryExecution().analyzed()
    if _kind(plan) != "Aggregate":
        raise _refused(view, f"its query ends in {_kind(plan)}, not in an aggregation")
    grouping = list(_grouping(view, _sequence(plan.groupingExpressions())))
    key = _key(view, grouping)
    columns = tuple(_columns(view, _sequence(plan.aggregateExpressions()), {c.name for c in grouping}))
    for column in (*key, *columns):
        if column.type not in SERVED_TYPES:
            raise _refused(view, f"its column {column.name!r} has the type {column.type}, which cannot be served yet")
    return Catalogue(application=application, view=view.name, operator=0, key=key, columns=columns)


def _grouping(view: View, expressions: Iterator[Any]) -> Iterator[ViewColumn]:
    for index, expression in enumerate(expressions):
        if _kind(expression) != "AttributeReference":
            raise _refused(view, f"it groups by {expression.sql()}; name that column in a select before the groupBy")
        yield ViewColumn(expression.name(), _type(expression), index, expression.sql())


def _key(view: View, grouping: list[ViewColumn]) -> tuple[ViewColumn, ...]:
    assert view.key, "a reaction has no catalogue"
    by_name = {column.name: column for column in grouping}
    if sorted(by_name) != sorted(view.key) or len(by_name) != len(grouping):
        raise _refused(view, f"its key is {list(view.key)}, but it groups by {[column.name for column in grouping]}")
    return tuple(by_name[name] for name in view.key)


def _columns(view: View, expressions: Iterator[Any], key: set[str]) -> Iterator[ViewColumn]:
    buffers: dict[str, int] = {}
    for expression in expressions:
        if _kind(expression) == "AttributeReference" and expression.name() in key:
            continue
        aggregate = _aggregate(view, expression)
        index = buffers.setdefault(aggregate.canonicalized().toString(), len(buffers))
        yield ViewColumn(expression.name(), _type(expression), index, aggregate.sql())


def _aggregate(view: View, expression: Any) -> Any:
    """The aggregate behind a column, if its one buffer is its result."""
    aggregate = expression.child() if _kind(expression) == "Alias" else expression
    if _kind(aggregate) != "AggregateExpression":
        raise _refused(view, f"its column {expression.name()!r} computes on, after the aggregation")
    function = aggregate.aggregateFunction()
    kind = _kind(function)
    plain = kind in {"Count", "Min", "Max"} or (kind == "Sum" and _type(function.child()) in _WHOLE_NUMBERS)
    if not plain or aggregate.isDistinct() or aggregate.filter().isDefined():
        raise _refused(view, f"its column {expression.name()!r} is {aggregate.sql()}, which cannot be served yet")
    return aggregate


def _sequence(scala: Any) -> Iterator[Any]:
    return (scala.apply(index) for index in range(scala.size()))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _type(expression: Any) -> str:
    return str(expression.dataType().json()).strip('"')


def _refused(view: View, reason: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view.name!r} cannot be served: {reason}", next_step=_ADVICE)
