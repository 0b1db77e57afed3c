"""What the whole pipeline makes of a journal, in Spark, is right at every stop: the audit says so, and its replica."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from stateside.billing.audit import Audit, audit, live_rows
from stateside.billing.pipeline import app
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.journal import JournalWriter
from stateside.replica.tail import Tail
from stateside.testing import run_to
from tests.billing.story import BATCHES, at, call
from tests.sizes import sized

pytestmark = pytest.mark.spark

STOPS = sized(("2026-02-11", "2026-03-11"), ("2026-01-20", "2026-02-11", "2026-02-13", "2026-03-11"))


def audited(layout: Layout) -> Audit:
    tail = Tail(layout.view("bill"))
    tail.step()
    tail.close()
    return audit(layout, live_rows(layout))


def test_the_books_of_a_story_are_right_also_when_an_invoiced_event_comes_again(
    spark: SparkSession, layout: Layout
) -> None:
    """Each stop of the query is audited, on the ledger of the one before. Then an invoiced event comes again."""
    stops = 0
    for day, events in BATCHES:
        with JournalWriter(layout.journal, clock=ManualClock(at(day))) as writer:
            writer.append(events, compare_ids=False)  # some come twice: as other producers have them on Kafka
        if day in STOPS:
            run_to(app, layout, spark)
            found = audited(layout)
            assert found.differences() == []
            stops += 1
    assert stops == len(STOPS)
    counts = found.counts
    assert (counts["events"], counts["open"], counts["invoiced"] + counts["corrected"]) == (22, 1, 8)
    assert [counts[name] for name in ("duplicates", "dead_letters", "reference", "clock")] == [0, 6, 5, 2]
    with JournalWriter(layout.journal, clock=ManualClock(at("2026-03-12"))) as writer:
        writer.append([call("1", "emma", "2026-01-10", 98)], compare_ids=False)
    run_to(app, layout, spark)
    found = audited(layout)
    assert found.differences() == []
    assert [found.counts[name] - counts[name] for name in ("events", "corrected", "dead_letters")] == [1, 0, 1]
