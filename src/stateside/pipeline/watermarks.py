"""Watermarks: the event columns that feed them, and the events that come too late for them.

Lineage: a far-future value in a column that feeds a watermark would close all windows, whatever the event's own time.
So the source compares these columns with the append time too, where they are declared timestamps; a watermark on any
other column is refused here.

Late sweep: batch N of an aggregation drops the rows whose time, or end of their window, is not beyond the watermark of
batch N-1. Where the batch reports dropped rows, its range of the source is read again, as a batch, and the view's own
function is applied to exactly those rows. The sweep depends on the events of the range and on Spark's offset log alone,
and runs before the batch is committed: a repeated batch finds the same late events, and a sink or the table of dead
letters stores them once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import open_journal
from stateside.journal.contract import PARTITION
from stateside.pipeline.app import View
from stateside.pipeline.dead_letters import Refusals, Validator
from stateside.pipeline.derivation import analysed_plan, expression_id, kind, metadata, sequence, tree, type_text
from stateside.pipeline.kafka_source import KafkaEvents
from stateside.pipeline.sources import JournalEvents, KafkaTopic, Reading, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from stateside.spark_state.batch_log import BatchRange

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


LATE: Final = "late"  # the reason of a dead letter
_WATERMARK: Final = "spark.watermarkDelayMs"  # in the metadata of an event-time column
_STATEFUL: Final = ("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join", "GlobalLimit")
_PASSING: Final = ("Filter", "SubqueryAlias", "Generate")  # operators that keep the columns of their input
_UNREAD: Final = Position.of({PARTITION: 0})


def late_column(view: str, frame: DataFrame) -> int:
    """The number of the grouping column by which a streaming view's aggregation drops late rows.

    ViewInvalid if late rows cannot be found: without such a column, or with further stateful operators.
    """
    stateful = [node for node in tree(analysed_plan(frame)) if kind(node) in _STATEFUL or "WithState" in kind(node)]
    if [kind(node) for node in stateful] != ["Aggregate"]:
        found = ", ".join(kind(node) for node in stateful) or "no aggregation"
        raise _no_late(view, f"is for views with one aggregation and no other stateful operator; here is: {found}")
    grouping = [_metadata(each) for each in sequence(stateful[0].groupingExpressions())]
    timed = [number for number, noted in enumerate(grouping) if _WATERMARK in noted]
    if not timed:
        raise _no_late(view, "needs a watermark, and the event time or its window among the grouping columns")
    if "spark.sessionWindow" in grouping[timed[0]]:
        raise _no_late(view, "is not for session windows: late events would have changed their bounds")
    return timed[0]


def _metadata(expression: Any) -> dict[str, Any]:
    return metadata(expression) if kind(expression) in ("AttributeReference", "Alias") else {}


def _no_late(view: str, why: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view!r}: late= {why}", next_step="Leave late= out: late rows are then counted only")


def rows_dropped(query: StreamingQuery) -> int:
    """The rows that the running batch has dropped as late, once its rows were computed."""
    nodes = tree(query._jsq.streamingQuery().lastExecution().executedPlan())
    metrics = (node.metrics().get("numRowsDroppedByWatermark") for node in nodes)
    return sum(int(metric.get().value()) for metric in metrics if metric.isDefined())


@dataclass(frozen=True, slots=True)
class LateSweep:
    """Finds the late events of a view's batches."""

    view: View
    source: Source
    reading: Reading
    layout: Layout
    column: int  # as from `late_column`

    def check(self, session: SparkSession) -> None:
        """ViewInvalid if the source cannot be read again or, for dead letters, if rows do not show their event."""
        if self._events(session, _UNREAD, _UNREAD).isStreaming:
            raise _no_late(self.view.name, "needs a source that can be read again: the journal or Kafka")
        if self.view.late == "dead_letters":
            if not isinstance(self.source, JournalEvents):
                raise _no_late(self.view.name, "makes dead letters of the journal's events only; give it a sink")
            self._with_offsets(session, _UNREAD, _UNREAD)

    def rows(self, session: SparkSession, batch: BatchRange) -> pa.Table:
        """The view's rows of a batch's late events alone, with the columns of the view's own rows."""
        plan = self._plan(self._events(session, *self._part(batch)))
        aggregate = _aggregate(plan)
        late = self._late(session, aggregate, aggregate.child(), batch)
        changed = aggregate.withNewChildren(_seq(session, [late]))
        return _frame(session, _replaced(session, plan, aggregate, changed)).toArrow()

    def write_letters(self, session: SparkSession, batch: BatchRange) -> None:
        """Write a batch's late events for the table of dead letters, which takes them up after the commit."""
        assert self.reading.refused is not None
        refusals, why = Refusals(Validator(self.reading.refused, None)), (LATE, _detail(batch))
        logs = open_journal(self.layout.journal).logs()
        for partition, offsets in self._late_offsets(session, batch).items():
            for first, events in logs[partition].batches(offsets[0], offsets[-1] + 1):
                mine = [offset for offset in offsets if first <= offset < first + events.num_rows]
                rows = events.take(pa.array([offset - first for offset in mine], pa.int64()))
                refusals.add_events(partition, rows, mine, [why] * len(mine))
        refusals.flush()

    def _late_offsets(self, session: SparkSession, batch: BatchRange) -> dict[str, list[int]]:
        """The offsets of the late events, ascending, by partition. With `explode`, several rows may be of one event."""
        aggregate, child, carried = self._with_offsets(session, *self._part(batch))
        late = self._late(session, aggregate, child, batch)
        project = _jvm(session).org.apache.spark.sql.catalyst.plans.logical.Project(_seq(session, carried), late)
        found: dict[str, list[int]] = {}
        for row in _frame(session, project).distinct().toArrow().sort_by("offset").to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
        return found

    def _with_offsets(self, session: SparkSession, start: Position, stop: Position) -> tuple[Any, Any, list[Any]]:
        """The aggregation, its input with the partition and offset of each row's event, and these two columns."""
        assert isinstance(self.source, JournalEvents)
        added = () if "partition" in self.source.columns else ("partition",)
        source = replace(self.source, columns=(*self.source.columns, *added))
        events = source.load(session, replace(self.reading, part=(start, stop)))
        outputs = {each.name(): each for each in sequence(analysed_plan(events).output())}
        aggregate = _aggregate(self._plan(events.drop(*added)))
        carried = [outputs["partition"], outputs["offset"]]
        return aggregate, _carrying(session, self.view.name, aggregate.child(), carried), carried

    def _events(self, session: SparkSession, start: Position, stop: Position) -> DataFrame:
        return self.source.load(session, replace(self.reading, part=(start, stop)))

    def _plan(self, events: DataFrame) -> Any:
        return analysed_plan(self.view.query(events, self.layout))

    def _part(self, batch: BatchRange) -> tuple[Position, Position]:
        """The range, of a journal without the positions of its nodes' logs."""
        if not isinstance(self.source, JournalEvents):
            return batch.start, batch.stop
        names = open_journal(self.layout.journal).logs()
        start, stop = (Position.of({name: at[name] for name in names}) for at in (batch.start, batch.stop))
        return start, stop

    def _late(self, session: SparkSession, aggregate: Any, child: Any, batch: BatchRange) -> Any:
        """The rows of the aggregation's input `child` that Spark has dropped, by its own rule."""
        jvm = _jvm(session).org.apache.spark.sql.catalyst
        time = aggregate.groupingExpressions().apply(self.column)
        if type_text(time).startswith("{"):  # a window
            time = jvm.expressions.GetStructField(time, 1, _jvm(session).scala.Option.apply(None))
        parser = session._jsparkSession.sessionState().sqlParser()
        watermark = parser.parseExpression(f"timestamp_micros({batch.watermark_before_us}L)")
        return jvm.plans.logical.Filter(jvm.expressions.LessThanOrEqual(time, watermark), child)


def _jvm(session: SparkSession) -> Any:
    return session._jvm


def _aggregate(plan: Any) -> Any:
    return next(node for node in tree(plan) if kind(node) == "Aggregate")


def _frame(session: SparkSession, plan: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    made = _jvm(session).org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return ClassicDataFrame(made, session)


def _seq(session: SparkSession, elements: Sequence[Any]) -> Any:
    return _jvm(session).PythonUtils.toSeq(list(elements))


def _replaced(session: SparkSession, plan: Any, old: Any, new: Any) -> Any:
    """The plan with the node `new` in place of `old`."""
    if plan.equals(old):
        return new
    return plan.withNewChildren(
        _seq(session, [_replaced(session, each, old, new) for each in sequence(plan.children())])
    )


def _carrying(session: SparkSession, view: str, plan: Any, carried: Sequence[Any]) -> Any:
    """The plan with these columns of its source added to its output; ViewInvalid at an operator that loses them."""
    if {expression_id(each) for each in carried} <= {expression_id(each) for each in sequence(plan.output())}:
        return plan
    logical = _jvm(session).org.apache.spark.sql.catalyst.plans.logical
    if kind(plan) not in (*_PASSING, "Project"):
        raise _no_late(view, f"cannot tell the events of rows after {kind(plan)}; give it a sink")
    child = _carrying(session, view, plan.child(), carried)
    if kind(plan) == "Project":
        return logical.Project(_seq(session, [*sequence(plan.projectList()), *carried]), child)
    return plan.withNewChildren(_seq(session, [child]))


def _detail(batch: BatchRange) -> str:
    watermark = datetime.fromtimestamp(batch.watermark_before_us / 1_000_000, UTC)
    return f"its row was closed: the watermark stood at {watermark:%Y-%m-%dT%H:%M:%S.%f}Z"
