"""Derives the catalogue of a view that serves a state variable of a `transformWithState`, or refuses the view.

A variable is a value, a map or a list state; `timers` stands for the timers that the processor has registered.

The plan tells the grouping columns; the variable's own columns are known, and checked, once the processor's `init` has
run: see `checkpoint.variable_catalogue`. What the query does with the rows that come out does not touch the state; only
another operator with state would, which Spark numbers from the sink down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateside.checkpoint.catalogue import Catalogue, KeyColumn, Stored
from stateside.checkpoint.computed import check_computed
from stateside.checkpoint.rollup_declarations import check_rollups
from stateside.checkpoint.served_types import unkeyable
from stateside.errors import ViewInvalid
from stateside.pipeline.app import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRANSFORM = "TransformWithStateInPySpark"
_STATELESS = {"Project", "Filter", "SubqueryAlias", "EventTimeWatermark"}
_ADVICE = "Let it select named columns, then end in groupBy(…).transformWithState(…) or transformWithStateInPandas(…)"


def derive_state_catalogue(application: str, view: View, frame: DataFrame) -> Catalogue:
    """What the plan tells of how a state variable becomes the view's rows; ViewInvalid if it cannot be one."""
    transform = _transform(view, frame._jdf.queryExecution().analyzed())
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
    """The `transformWithState` that the query ends in, under nothing but what has no state."""
    while _kind(plan) in _STATELESS:
        plan = plan.child()
    if _kind(plan) != _TRANSFORM:
        raise _refused(view, f"it has state={view.state!r}, but its query ends in {_kind(plan)}")
    return plan


def _key(view: View, transform: Any) -> tuple[KeyColumn, ...]:
    assert view.key, "a reaction has no catalogue"
    output = transform.child().output()
    grouping = [_column(output.apply(index), index) for index in range(transform.groupingAttributesLen())]
    by_name = {column.name: column for column in grouping}
    if sorted(by_name) != sorted(view.key) or len(by_name) != len(grouping):
        raise _refused(view, f"its key is {list(view.key)}, but it groups by {[column.name for column in grouping]}")
    for column in grouping:
        if unkeyable(column.type):
            raise _refused(view, f"its key {column.name!r} has the type {column.type}, which cannot be served")
    return tuple(by_name[name] for name in view.key)


def _column(attribute: Any, index: int) -> KeyColumn:
    name, type_ = attribute.name(), str(attribute.dataType().json()).strip('"')
    return KeyColumn(name, type_, Stored(index, name, type_), attribute.sql())


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _refused(view: View, reason: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view.name!r} cannot be served: {reason}", next_step=_ADVICE)
