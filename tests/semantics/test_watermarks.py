"""Which watermark evicts, which one drops late rows, and what a restart makes of both."""

import random
from typing import Any

import pytest

from .harness import Feed, Lab
from .monthly_model import Model, compared_runs
from .months import clock, local_ms, monthly_totals, totals, totals_in_state, usage

pytestmark = pytest.mark.spark

MARCH_10_MS = local_ms(2026, 3, 10)
MARCH_END_MS = local_ms(2026, 4)  # in summer time: the clocks changed on 29 March
OCTOBER_10_MS = local_ms(2026, 10, 10)
OCTOBER_END_MS = local_ms(2026, 11)  # in winter time: the clocks changed on 25 October
Event = dict[str, Any]
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
@pytest.mark.parametrize(("inside_ms", "end_ms"), [(MARCH_10_MS, MARCH_END_MS), (OCTOBER_10_MS, OCTOBER_END_MS)])
def test_a_batch_emits_and_evicts_the_groups_whose_period_end_is_at_or_below_its_own_watermark(
    lab: Lab, feed: Feed, inside_ms: int, end_ms: int, offset_ms: int
) -> None:
    """Billing seals a month when the watermark reaches its end. Were the comparison strict, or the time zone's
    clock change ignored, invoices would come a batch late or an hour off.
    """
    feed.add(usage("emma", 1, inside_ms))
    feed.add(clock(end_ms + offset_ms))

    emitted = lab.run(monthly_totals(feed.stream()))

    assert [lab.checkpoint.watermark_ms(batch) for batch in (0, 1, 2)] == [0, inside_ms, end_ms + offset_ms]
    emma = ("emma", end_ms)
    is_sealed = offset_ms >= 0
    assert [emma in totals(emitted[batch]) for batch in (0, 1, 2)] == [False, False, is_sealed]
    assert (emma in totals_in_state(lab.state())) == (not is_sealed)


@pytest.mark.parametrize(("offset_ms", "emitted_total", "held_total"), [(-1, None, 111), (0, 11, None), (1, 11, None)])
def test_a_batch_drops_as_late_what_the_watermark_of_the_batch_before_it_had_passed(
    lab: Lab, feed: Feed, offset_ms: int, emitted_total: int | None, held_total: int | None
) -> None:
    """The late sweep reads a batch's rows back and takes those at or below the watermark of the batch before.
    With any other rule a row would be both on the invoice and in a correction note, or in neither.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS + offset_ms))
    feed.add(usage("emma", 10, MARCH_10_MS))  # batch 2: its own watermark has passed March, batch 1's has not
    feed.add(usage("emma", 100, MARCH_10_MS))  # batch 3: the watermark of batch 2 has passed March

    emitted = lab.run(monthly_totals(feed.stream()))

    assert [lab.checkpoint.watermark_ms(batch) for batch in (1, 2)] == [MARCH_10_MS, MARCH_END_MS + offset_ms]
    emma = ("emma", MARCH_END_MS)
    assert totals(emitted[2]).get(emma) == emitted_total
    assert emma not in totals(emitted[3])
    assert totals_in_state(lab.state()).get(emma) == held_total


def test_a_batch_without_data_counts_as_the_batch_before(lab: Lab, feed: Feed) -> None:
    """The late sweep goes by batch numbers alone. If batches without data were skipped, it would credit rows
    that Spark had dropped: here the same rows as in the test above, but batch 2 carries no data and seals the
    month.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS))
    first = lab.run(monthly_totals(feed.stream()))
    feed.add(usage("emma", 10, MARCH_10_MS))
    second = lab.run(monthly_totals(feed.stream()))

    assert lab.checkpoint.offsets(2).sources == lab.checkpoint.offsets(1).sources
    assert totals(first[2]) == {("emma", MARCH_END_MS): 1}
    assert second == {3: []}


def test_a_restart_judges_late_rows_by_the_offsets_file_of_the_batch_before(lab: Lab, feed: Feed) -> None:
    """The sweep after a restart uses the same rule as before it. If Spark took the watermark of the commit log
    instead (`nextBatchWatermarkMs`), the row of batch 2 would be dropped and swept up by nobody.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS))
    with lab.conf({NO_DATA_BATCHES: "false"}):
        assert sorted(lab.run(monthly_totals(feed.stream()))) == [0, 1]
        feed.add(usage("emma", 10, MARCH_10_MS))
        second = lab.run(monthly_totals(feed.stream()))
        feed.add(usage("emma", 100, MARCH_10_MS))
        third = lab.run(monthly_totals(feed.stream()))

    assert lab.checkpoint.commit(1).metadata["nextBatchWatermarkMs"] == MARCH_END_MS
    assert totals(second[2]) == {("emma", MARCH_END_MS): 11}
    assert third == {3: []}


def test_a_restart_does_not_run_the_batch_without_data_that_is_still_due(lab: Lab, feed: Feed) -> None:
    """A job that stops just before it seals a month does not seal it when it comes back, but with the next row.
    The runner must therefore append a clock row after a start, or invoices wait for the first event.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS))
    with lab.conf({NO_DATA_BATCHES: "false"}):
        lab.run(monthly_totals(feed.stream()))

    assert lab.run(monthly_totals(feed.stream())) == {}
    feed.add(clock(MARCH_END_MS))
    assert totals(lab.run(monthly_totals(feed.stream()))[2]) == {("emma", MARCH_END_MS): 1}


def test_update_mode_evicts_and_drops_by_the_same_watermarks(lab: Lab, feed: Feed) -> None:
    """A view in update mode that has a period loses its sealed rows in the same batch as billing does in append
    mode, but emits nothing for it; so only append mode can hand rows over to the archive.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS))
    feed.add(usage("emma", 10, MARCH_10_MS))  # batch 2: not late yet, and evicted at once
    feed.add(usage("emma", 100, MARCH_10_MS))  # batch 3: late

    emitted = lab.run(monthly_totals(feed.stream()), mode="update")

    emma = ("emma", MARCH_END_MS)
    assert [totals(emitted[batch]).get(emma) for batch in (0, 1, 2, 3)] == [1, None, 11, None]
    assert emma not in totals_in_state(lab.state())


def test_the_watermark_of_a_batch_is_in_the_commit_of_the_batch_before(lab: Lab, feed: Feed) -> None:
    """A stamp shows the watermark of `offsets/N`, what is sealed; the commit's value is already the next one.
    The watermark is the largest time seen minus the delay, and it never goes back.
    """
    for at_ms in (MARCH_10_MS, MARCH_10_MS + 5_000, MARCH_10_MS + 1_000):
        feed.add(usage("emma", 1, at_ms))
    lab.run(monthly_totals(feed.stream(), delay="2 seconds"))

    watermarks_ms = [lab.checkpoint.watermark_ms(batch) for batch in lab.checkpoint.committed()]
    next_ms = [lab.checkpoint.commit(batch).metadata["nextBatchWatermarkMs"] for batch in lab.checkpoint.committed()]
    assert watermarks_ms == [0, MARCH_10_MS - 2_000, MARCH_10_MS + 3_000]
    assert next_ms == [MARCH_10_MS - 2_000, MARCH_10_MS + 3_000, MARCH_10_MS + 3_000]


def test_spark_counts_late_groups_and_not_late_rows(lab: Lab, feed: Feed) -> None:
    """Rows are aggregated before late ones are dropped, so Spark's own metric cannot tell how many rows the
    late sweep must find; the sweep needs a count of its own.
    """
    feed.add(clock(MARCH_END_MS))
    feed.add()
    feed.add(*[usage(customer, 1, MARCH_10_MS + i) for i in range(5) for customer in ("emma", "omar")])
    query = lab.run_into(lambda frame, _: frame.collect(), monthly_totals(feed.stream()))

    last = query.recentProgress[-1]
    assert last["numInputRows"] == 10
    assert last["stateOperators"][0]["numRowsDroppedByWatermark"] == 2


def test_the_rule_holds_over_many_batches_with_crashes_and_restarts(lab: Lab, feed: Feed) -> None:
    """Sealing and sweeping rely on both rules together, on any sequence of batches. A model of five lines must
    predict each emitted row and each held row of a run whose rows lie within a millisecond of three month ends.
    """
    chance = random.Random(2026)
    runs = compared_runs(lab, feed, Model(), monthly_totals, lambda near_ms: _rows_near(near_ms, chance))
    assert len(list(runs)) == 4


def _rows_near(moments_ms: list[int], chance: random.Random) -> list[Event]:
    times_ms = [chance.choice(moments_ms) + chance.randint(-1, 1) for _ in range(chance.randint(1, 3))]
    return [usage(chance.choice(["emma", "omar"]), chance.randint(1, 9), at_ms) for at_ms in times_ms]
