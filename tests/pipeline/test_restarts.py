"""When a query is started again: pure, with a clock in the hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import CheckpointAway, JournalAway, LeadershipLost, PipelineFailed, SinkAway, SinkRefused
from stateside.pipeline.failures import Failure, judge, judge_start
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.view_query import PAUSE_S_MAX, Restarts, ViewQuery

BAD = Failure("it raised.", worth_retrying=True)
AWAY = Failure("the disk is full.", worth_retrying=True, away=True)


def test_a_failure_is_tried_again_with_growing_pauses_until_it_is_given_up() -> None:
    restarts, pauses = Restarts(3, 1.0, float("inf")), []
    for _ in range(3):
        assert restarts.plan(BAD, 7, 100.0)
        pauses.append(restarts.due_s - 100.0)
    assert pauses == [1.0, 2.0, 4.0]
    assert restarts.why == "it raised. Restart 3 of 3 in 4 s"
    assert not restarts.plan(BAD, 7, 100.0)


def test_a_finished_batch_ends_the_row() -> None:
    restarts = Restarts(1, 1.0, float("inf"))
    assert restarts.plan(BAD, 7, 0.0)
    assert restarts.plan(BAD, 8, 0.0)
    assert not restarts.plan(BAD, 8, 0.0)


def test_what_is_away_is_tried_again_however_often_for_as_long_as_batches_are_held() -> None:
    restarts = Restarts(2, 1.0, 3_600.0)
    assert all(restarts.plan(AWAY, None, float(second)) for second in range(3_600))
    assert (restarts.count, restarts.why) == (0, "the disk is full.")
    assert restarts.plan(AWAY, None, 3_600.0) and restarts.plan(AWAY, None, 3_601.0)
    assert not restarts.plan(AWAY, None, 3_602.0)


def test_what_was_away_and_came_back_has_all_its_time_again() -> None:
    restarts = Restarts(0, 1.0, 10.0)
    assert restarts.plan(AWAY, 7, 0.0)
    assert restarts.plan(AWAY, 8, 10.0)
    assert restarts.plan(AWAY, None, 19.0)
    assert not restarts.plan(AWAY, None, 20.0)


@given(st.lists(st.tuples(st.booleans(), st.none() | st.integers(0, 3)), max_size=50))
def test_no_pause_is_longer_than_the_longest(story: list[tuple[bool, int | None]]) -> None:
    restarts = Restarts(10**6, 1.0, float("inf"))
    for away, batch in story:
        assert restarts.plan(AWAY if away else BAD, batch, 5.0)
        assert 5.0 < restarts.due_s <= 5.0 + PAUSE_S_MAX


@pytest.mark.parametrize(
    ("told", "away"),
    [
        ("java.io.IOException: No space left on device", True),
        ("java.io.FileNotFoundException: /d/offsets/.1.tmp (Permission denied)", True),
        ("java.io.IOException: Read-only file system", True),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.", True),
        ("java.lang.RuntimeException: it raised", False),
        ("[CONCURRENT_STREAM_LOG_UPDATE] … No space left on device", False),
    ],
)
def test_what_is_away_is_told_from_what_failed(told: str, away: bool) -> None:
    assert judge(RuntimeError(told)).away is away


@pytest.mark.parametrize(
    ("told", "which"),
    [
        (
            "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Some data may have been lost because they are not available in Kafka "
            "any more; either …\nIf you don't want your streaming query to fail on such cases, set the source option "
            "failOnDataLoss to false.\nReason: Partitions HashSet(orders-1) have been deleted. SQLSTATE: 22000",
            "Partitions HashSet(orders-1) have been deleted",
        ),
        (
            "Some data may have been lost because they are not available in Kafka any more;\nReason:\n"
            "Partition orders-0 offset was changed from 12 to 3.\nThis could be either 1) …",
            "Partition orders-0 offset was changed from 12 to 3",
        ),
    ],
)
def test_events_that_kafka_lost_end_a_view_for_good_without_the_advice_to_ignore_it(told: str, which: str) -> None:
    failure = judge(RuntimeError(f"[STREAM_FAILED] Query terminated with exception: {told}"))
    assert (failure.worth_retrying, failure.lasting) == (False, True)
    assert failure.why.startswith(f"Kafka does not have any more what the view reads next: {which}. Either the topic")
    assert "failOnDataLoss" not in failure.why


def test_a_start_that_fails_is_judged_like_a_failure_while_it_runs() -> None:
    full = OSError(28, "No space left on device")
    assert judge_start(full) == Failure("[Errno 28] No space left on device.", True, away=True)
    assert judge_start(CheckpointAway("It is away")).away
    assert not judge_start(SinkRefused("It is refused")).worth_retrying
    away = SinkAway("It is away")
    away.__cause__ = full
    assert judge_start(away).worth_retrying, "a sink's disk is not Spark's JVM"
    gone = PipelineFailed("It did not start")
    gone.__cause__ = ConnectionRefusedError()
    assert not judge_start(gone).worth_retrying


def test_a_journal_that_is_away_holds_a_view_and_a_leadership_that_is_lost_ends_it() -> None:
    name = f"{JournalAway.__module__}.{JournalAway.__name__}"
    journal = f"Traceback (most recent call last):\n  File\n{name}: The journal is away (j)."
    assert judge(RuntimeError(journal)) == Failure("The journal is away (j).", True, away=True)
    assert judge(None, JournalAway("It is away")).away and judge(None, CheckpointAway("It is away")).away
    lost = judge(None, LeadershipLost("Another leads"))
    assert not lost.worth_retrying and not lost.lasting
    assert not judge(None, SinkAway("It is away")).away, "it was held before, for as long as it may be"


class EndingQuery:
    """A query that ends by itself after it was asked so often whether it is active."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's own name
        self.looks -= 1
        return self.looks >= 0

    def exception(self) -> None:
        return None


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("replays", [True, False])
def test_a_query_that_ends_by_itself_while_it_is_looked_at_has_not_failed(looks: int, replays: bool) -> None:
    launched = []

    class Looked(ViewQuery):
        def __init__(self) -> None:
            self._query, self.replays = EndingQuery(looks), replays  # type: ignore[assignment]
            self._settings, self._delivery = RunSettings(until_caught_up=not replays), None
            self._caught_up, self._verified = False, True

        def _launch(self) -> None:
            launched.append(1)

        def _has_its_checkpoint(self) -> bool:
            return True

    query = Looked()
    for _ in range(3):
        query._tend()
    assert query.caught_up is not replays and bool(launched) is replays
