"""A removal of duplicates below an aggregation by period: two operators with state that must agree on what is late."""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from .harness import Feed, Lab
from .monthly_model import UniqueModel, compared_runs
from .months import WATERMARK_KEY, clock, epoch_ms, local_ms, month_end, totals, totals_in_state, usage

pytestmark = pytest.mark.spark

MARCH_10_MS = local_ms(2026, 3, 10)
MARCH_END_MS = local_ms(2026, 4)
EMMA = ("emma", MARCH_END_MS)
NO_CLOCK = "kind != 'clock' OR at < TIMESTAMP'1900-01-01 00:00:00'"
Event = dict[str, Any]


def test_both_operators_close_a_period_in_the_same_batch(lab: Lab, feed: Feed) -> None:
    """Billing removes duplicates below its aggregation. Were the watermark of the upper operator a batch behind that
    of the lower one, invoices would come a batch later than without the removal.
    """
    feed.add(event("a", 1), event("a", 1), event("b", 10))
    feed.add(event("a", 1), clock(MARCH_END_MS - 1))
    feed.add(clock(MARCH_END_MS))

    emitted = lab.run(unique_totals(feed.stream()))

    assert {batch: totals(rows) for batch, rows in emitted.items() if rows} == {3: {EMMA: 11}}
    assert totals_in_state(lab.state()) == {}
    assert remembered(lab) == set()


def test_both_operators_drop_as_late_what_the_watermark_of_the_batch_before_had_passed(lab: Lab, feed: Feed) -> None:
    """The late sweep knows one rule. If the removal of duplicates dropped a row by another watermark than the
    aggregation, the row would be on no invoice and in no note.
    """
    feed.add(event("a", 1))
    feed.add(clock(MARCH_END_MS))
    feed.add(event("b", 10), event("a", 1))  # batch 2: its own watermark has passed March, batch 1's has not
    feed.add(event("c", 100), event("a", 1))  # batch 3: late, the new one and the duplicate

    kept: list[dict[tuple[str, int], int]] = []
    query = lab.run_into(lambda frame, _: kept.append(totals(frame.collect())), unique_totals(feed.stream()))

    assert [lab.checkpoint.watermark_ms(batch) for batch in (1, 2)] == [MARCH_10_MS, MARCH_END_MS]
    assert kept[2:] == [{EMMA: 11}, {}]
    aggregation, removal = query.recentProgress[3]["stateOperators"]
    assert (removal["numRowsDroppedByWatermark"], aggregation["numRowsDroppedByWatermark"]) == (2, 0)
    assert remembered(lab) == set()


def test_the_first_row_of_an_id_counts_in_the_order_in_which_the_partitions_were_read(lab: Lab, feed: Feed) -> None:
    """An id that comes with two contents in one batch: billing and its auditor count the first in the journal. Spark
    promises no such order; in one process it keeps to that of the partitions.
    """
    feed.add(*(event(f"e{number % 50}", number) for number in range(500)))
    lab.run(unique_totals(feed.stream().repartitionByRange(4, "amount")))
    assert totals_in_state(lab.state()) == {EMMA: sum(range(50))}


def test_the_event_time_itself_must_not_reach_the_removal_beside_the_period(lab: Lab, feed: Feed) -> None:
    """Spark refuses two event-time columns in the first batch, not at the start, and also where only one is a key. One
    that nothing above it uses is gone by then.
    """
    feed.add(event("a", 1))
    with pytest.raises(StreamingQueryException, match="More than one event time columns are available"):
        lab.run(newest(unique(feed.stream(), sf.col("at"))))


def test_an_alias_with_empty_metadata_makes_an_event_time_a_plain_column(lab: Lab, feed: Feed) -> None:
    """The way to keep an event's own time beside its period."""
    feed.add(event("a", 1))
    lab.run(newest(unique(feed.stream(), sf.col("at").alias("at", metadata={}))))
    assert [epoch_ms(row.value["max"]) for row in lab.state().collect()] == [MARCH_10_MS]


def test_a_filter_of_clock_rows_below_the_removal_keeps_their_effect_on_both_operators(lab: Lab, feed: Feed) -> None:
    """Clock rows would otherwise be remembered as ids, and be a group of their own."""
    feed.add(event("a", 1), clock(MARCH_10_MS))
    assert lab.run(unique_totals(feed.stream())) == {0: [], 1: []}
    assert set(totals_in_state(lab.state())) == {EMMA}
    assert remembered(lab) == {("a", MARCH_END_MS)}
    feed.add(clock(MARCH_END_MS))
    assert [totals(rows) for rows in lab.run(unique_totals(feed.stream())).values()] == [{}, {EMMA: 1}]


def test_a_python_function_over_arrow_below_the_watermark_changes_none_of_this(lab: Lab, feed: Feed) -> None:
    """A view may have such a function (`mapInArrow`): rows that it marks as bad are filtered before the watermark."""
    schema = "id string, customer string, kind string, amount long, at timestamp, reason string"

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            bad = pa.array(["bad" if amount < 0 else None for amount in batch["amount"].to_pylist()], pa.string())
            yield batch.append_column("reason", bad)

    feed.add(event("a", 1), event("b", -1) | {"at_ms": local_ms(2999, 1)})
    feed.add(clock(MARCH_END_MS), event("a", 1))
    rated = feed.stream().select("id", "customer", "kind", "amount", "at").mapInArrow(judge, schema)
    emitted = lab.run(unique_totals(rated.where("reason IS NULL")))
    assert {batch: totals(rows) for batch, rows in emitted.items() if rows} == {2: {EMMA: 1}}


def test_the_rule_holds_for_both_operators_over_many_batches_with_crashes_and_restarts(lab: Lab, feed: Feed) -> None:
    """A model that has one notion of late must predict each emitted row, each held row and each remembered id of a
    run whose rows lie within a millisecond of three month ends, and whose ids come again and again.
    """
    chance = random.Random(2027)
    model = UniqueModel()
    for _ in compared_runs(lab, feed, model, unique_totals, lambda near_ms: _rows_near(near_ms, chance)):
        assert remembered(lab) == model.seen


def unique(stream: DataFrame, *more: Column) -> DataFrame:
    """Usage with its period, without clock rows, each id once."""
    marked = stream.withWatermark("at", "0 seconds").where(NO_CLOCK)
    period_end = month_end("at").alias("period_end", metadata={WATERMARK_KEY: 0})
    return marked.select("id", "customer", "amount", period_end, *more).dropDuplicates(["id", "period_end"])


def unique_totals(stream: DataFrame) -> DataFrame:
    """A total for each customer and month in which each id counts once."""
    return unique(stream).groupBy("customer", "period_end").agg(sf.sum("amount").alias("total"))


def newest(rows: DataFrame) -> DataFrame:
    return rows.groupBy("customer", "period_end").agg(sf.max("at").alias("newest"))


def event(id_: str, amount: int) -> Event:
    return usage("emma", amount, MARCH_10_MS) | {"id": id_}


def remembered(lab: Lab) -> set[tuple[str, int]]:
    """The ids, each with its period, that the removal of duplicates holds."""
    reader = lab.spark.read.format("statestore").option("operatorId", 1)
    return {(row.key.id, epoch_ms(row.key.period_end)) for row in reader.load(str(lab.checkpoint.path)).collect()}


def _rows_near(moments_ms: list[int], chance: random.Random) -> list[Event]:
    times_ms = [chance.choice(moments_ms) + chance.randint(-1, 1) for _ in range(chance.randint(2, 5))]
    ids = [chance.choice("abcdef") for _ in times_ms]
    return [
        usage("omar" if id_ in "abc" else "emma", ord(id_), at_ms) | {"id": id_}
        for id_, at_ms in zip(ids, times_ms, strict=True)
    ]
