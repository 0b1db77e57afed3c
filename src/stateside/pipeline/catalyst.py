"""Spark's query plans as seen from Python: the few questions that deriving a catalogue asks of them.

Plans and expressions are trees of Scala objects behind py4j; nothing else in Stateside touches them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME_WINDOW, SESSION_WINDOW, WATERMARK_DELAY = "spark.timeWindow", "spark.sessionWindow", "spark.watermarkDelayMs"


def analysed_plan(frame: DataFrame) -> Any:
    """The plan as it was written, with all names resolved."""
    return frame._jdf.queryExecution().analyzed()


def optimised_plan(frame: DataFrame) -> Any:
    """The plan as it will run. The state follows this one: its groups, and its aggregates in the order they have."""
    optimiser = frame.sparkSession._jsparkSession.sessionState().optimizer()
    return optimiser.execute(analysed_plan(frame))


def sequence(scala: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [scala.apply(index) for index in range(scala.size())]


def kind(node: Any) -> str:
    """The class of a plan's node or of an expression."""
    return str(node.getClass().getSimpleName())


def type_text(node: Any) -> str:
    """The type of an expression, as Spark's schemas write it."""
    text = str(node.dataType().json())
    return json.dumps(json.loads(text), sort_keys=True) if text.startswith("{") else text.strip('"')


def tree(node: Any) -> Iterator[Any]:
    """The node and everything below it, parents first."""
    yield node
    for child in sequence(node.children()):
        yield from tree(child)


def expression_id(named: Any) -> int:
    """What tells a column from all others, whatever it is called."""
    return int(named.exprId().id())


def metadata(attribute: Any) -> dict[str, Any]:
    """What is noted on a column: that it is a window, or under which watermark it stands."""
    noted: dict[str, Any] = json.loads(attribute.metadata().json())
    return noted


class Definitions:
    """What the columns of some plans are made of."""

    def __init__(self, *plans: Any) -> None:
        self._aliases: dict[int, Any] = {}
        for plan in plans:
            for node in tree(plan):
                for expression in sequence(node.expressions()):
                    if kind(expression) == "Alias":
                        self._aliases.setdefault(expression_id(expression), expression)

    def of(self, named: Any) -> Any:
        """The expression behind a column, through all its renamings; the column itself if nothing is behind it."""
        followed: set[int] = set()
        while kind(named) in ("Alias", "AttributeReference") and expression_id(named) not in followed:
            followed.add(expression_id(named))
            alias = self._aliases.get(expression_id(named), named)
            named = alias.child() if kind(alias) == "Alias" else named
        return named
