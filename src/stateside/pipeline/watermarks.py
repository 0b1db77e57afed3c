"""Watermark lineage: the event columns behind a view's watermark, whose times must be checked against the append time.

A far-future value in a watermark column would close all windows, whatever the event's own time is. So the source checks
these columns too, where they are declared timestamps; a watermark on any other column is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stateside.core.errors import ViewInvalid
from stateside.pipeline.derivation import analysed_plan, expression_id, kind, sequence, tree
from stateside.pipeline.kafka_source import KafkaEvents
from stateside.pipeline.sources import JournalEvents, KafkaTopic, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHECKED: Final = frozenset({"time", "appended"})
_CHECKED_ON_KAFKA: Final = frozenset({"time"})  # `appended` is in the message, so the producer sets it


def times_to_check(view: str, source: Source, events: DataFrame, frame: DataFrame) -> tuple[str, ...]:
    """The event fields, besides `time`, that feed the view's watermarks.

    ViewInvalid for a watermark from any other column: the source could not keep it from running ahead.
    """
    if not isinstance(source, JournalEvents | KafkaEvents | KafkaTopic) or not source.dead_letters:
        return ()
    lineage = _Lineage.of(events, frame)
    checked = _CHECKED_ON_KAFKA if isinstance(source, KafkaEvents) else _CHECKED
    found: set[str] = set()
    for watermark in lineage.watermarks:
        columns = lineage.columns_of(watermark)
        if isinstance(source, KafkaTopic):
            _check_topic(view, source, watermark.name, columns)
            continue
        others = _other_columns(watermark.name, columns, checked)
        if others is None or not others <= _timestamps(events):
            raise _not_checked(view, watermark.name)
        found |= others
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class _Attribute:
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class _Lineage:
    """Columns with watermarks, the events' columns, and the inputs of derived columns; by expression id."""

    watermarks: Sequence[_Attribute]
    given: Mapping[int, str]
    made_of: Mapping[int, frozenset[int]]

    @classmethod
    def of(cls, events: DataFrame, frame: DataFrame) -> _Lineage:
        nodes = list(tree(analysed_plan(frame)))
        leaves = [node for node in nodes if not node.children().size()]  # a self-join reads twice
        outputs = [analysed_plan(events), *leaves]
        given = {expression_id(each): each.name() for output in outputs for each in sequence(output.output())}
        made_of = {
            expression_id(each): frozenset(expression_id(part) for part in sequence(each.references().toSeq()))
            for node in nodes
            for each in sequence(node.expressions())
            if kind(each) == "Alias"
        }
        marked = [node.eventTime() for node in nodes if kind(node) == "EventTimeWatermark"]
        return cls([_Attribute(each.name(), expression_id(each)) for each in marked], given, made_of)

    def columns_of(self, attribute: _Attribute) -> frozenset[str] | None:
        """The event columns behind this attribute; None if the plan does not show them, such as after a Python map."""
        found: set[str] = set()
        left = [attribute.number]
        while left:
            number = left.pop()
            if number in self.given:
                found.add(self.given[number])
            elif number in self.made_of:
                left.extend(self.made_of[number])
            else:
                return None
        return frozenset(found)


def _other_columns(watermark: str, columns: frozenset[str] | None, checked: frozenset[str]) -> frozenset[str] | None:
    """The columns that the source does not check already; None if unknown."""
    if columns is None:  # made in Python, say: a column with a checked name passes
        return frozenset() if watermark in checked else None
    return columns - checked


def _check_topic(view: str, source: KafkaTopic, watermark: str, columns: frozenset[str] | None) -> None:
    """A topic's messages have their time in the source's `time` field, or in Kafka's own `timestamp`."""
    time = source.time or "timestamp"
    if columns == frozenset({time}) or (columns is None and watermark == time):
        return
    raise ViewInvalid(
        f"The view {view!r} sets its watermark on {watermark!r}, and its source does not say that this is the "
        f"time of the messages of {source.topic!r}: one dated far ahead would close all windows",
        next_step=f"Name the field that has the time: sources.kafka(…, time={watermark!r})",
    )


def _not_checked(view: str, watermark: str) -> ViewInvalid:
    return ViewInvalid(
        f"The view {view!r} sets its watermark on {watermark!r}, which is made neither of the events' time nor of "
        "declared timestamps: an event dated far ahead would close all windows",
        next_step="Set it on `time`, or on a field that is declared as a timestamp; or read the source with "
        "dead_letters=False, and guard the watermark in the view",
    )


def _timestamps(events: DataFrame) -> frozenset[str]:
    return frozenset(field.name for field in events.schema if field.dataType.typeName().startswith("timestamp"))
