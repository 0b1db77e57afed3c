"""Until when a batch of a source that only Spark knows, such as Kafka, was up to date: told while batches run, too."""

from __future__ import annotations

from typing import Any

from stateside.pipeline.progress import caught_up_us

TRIGGER_US = 1_794_807_467_984_000


def progress(end: Any = 12, latest: Any = 12, **changes: Any) -> dict[str, Any]:
    """As Spark 4.2 reports a batch of its Kafka source."""
    offsets = {
        "endOffset": {"billing": {"0": end}},
        "latestOffset": latest if latest is None else {"billing": {"0": latest}},
    }
    times = {"durationMs": {"addBatch": 900, "latestOffset": 3}, "timestamp": "2026-11-16T05:37:47.984Z"}
    return {**times, "sources": [{"description": "KafkaV2[Subscribe[billing]]", **offsets}], **changes}


def test_a_batch_that_read_to_the_sources_end_was_up_to_date_when_its_trigger_began() -> None:
    """Found by chaos: under steady load a query is never idle, and its answers seemed to grow old without an end."""
    assert caught_up_us(progress()) == TRIGGER_US


def test_a_batch_that_left_something_or_does_not_know_claims_nothing() -> None:
    assert caught_up_us(progress(end=11)) is None
    assert caught_up_us(progress(latest=None)) is None
    assert caught_up_us(progress(sources=[])) is None


def test_a_batch_that_an_earlier_run_planned_claims_nothing() -> None:
    assert caught_up_us(progress(durationMs={"addBatch": 900})) is None
