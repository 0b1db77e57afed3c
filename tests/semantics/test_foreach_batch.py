"""What runs, and what is on the disk, while `foreachBatch` has a batch in its hands."""

from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from .checkpoint_files import versions_and_ids
from .harness import Feed, Lab
from .months import usage

pytestmark = pytest.mark.spark

CUSTOMERS = ("emma", "omar", "lena")


@pytest.mark.parametrize(
    ("actions", "evaluations"),
    [
        pytest.param([], 0, id="no action"),
        pytest.param([DataFrame.collect], 3, id="one action"),
        pytest.param([DataFrame.toArrow], 3, id="one action in Arrow"),
        pytest.param([DataFrame.collect, DataFrame.collect], 6, id="two actions"),
        pytest.param([DataFrame.persist, DataFrame.collect, DataFrame.collect], 3, id="two actions on a kept frame"),
    ],
)
def test_every_action_on_a_batch_runs_its_plan_once_more(
    lab: Lab, feed: Feed, actions: list[Callable[[DataFrame], object]], evaluations: int
) -> None:
    """Sinks call one action on a batch, once. A second one would read the journal again and, in a plan that is
    not deterministic, write something other than what was counted.
    """
    rows_seen = lab.spark.sparkContext.accumulator(0)

    @sf.udf("long")
    def seen(amount):  # type: ignore[no-untyped-def]  # Spark takes hints for a kind of vectorised function
        rows_seen.add(1)
        return amount

    feed.add(*[usage(customer, 1, 0) for customer in CUSTOMERS])
    stream = feed.stream().select("customer", seen("amount"))
    lab.run_into(lambda frame, _: [action(frame) for action in actions], stream)

    assert rows_seen.value == evaluations


def test_a_second_action_on_a_stateful_batch_writes_its_state_a_second_time(lab: Lab, feed: Feed) -> None:
    """With state, a second action reuses the shuffle but updates the stores again, from the version before: the
    values stay right, and each partition gets a second file that no commit names. Readers must go by the
    commit.
    """
    for _ in range(2):
        feed.add(*[usage(customer, 1, 0) for customer in CUSTOMERS])
    lab.run_into(lambda frame, _: (frame.collect(), frame.collect()), _counts(feed), mode="update")

    assert {row.key.customer: row.value["count"] for row in lab.state().collect()} == dict.fromkeys(CUSTOMERS, 2)
    for partition in (0, 1):
        files = versions_and_ids(lab.checkpoint.state_folder(partition=partition), "changelog")
        assert [version for version, _ in files] == [1, 1, 2, 2]
        assert {(batch + 1, lab.checkpoint.state_ids(batch)[partition][0]) for batch in (0, 1)} < set(files)


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param(lambda frame, _: None, id="no action"),
        pytest.param(lambda frame, _: frame.take(1), id="an action that stops at the first partition"),
        pytest.param(lambda frame, _: frame.where("false").collect(), id="an action that is optimised away"),
    ],
)
def test_a_stateful_batch_fails_if_the_sink_did_not_run_all_partitions(
    lab: Lab, feed: Feed, sink: Callable[[DataFrame, int], object]
) -> None:
    """A sink must consume all of a stateful batch, also where it wants nothing of it. Spark does not commit
    such a batch, so state is never lost in silence, and a right sink can take over.
    """
    feed.add(*[usage(customer, 1, 0) for customer in CUSTOMERS])
    with pytest.raises(StreamingQueryException, match=r"CheckpointInfo length: [01], numPartitions: 2"):
        lab.run_into(sink, _counts(feed), mode="update")

    assert lab.checkpoint.committed() == []
    assert sorted(row.customer for row in lab.run(_counts(feed), mode="update")[0]) == sorted(CUSTOMERS)


def test_a_batch_that_failed_in_the_sink_is_retried_with_its_number_and_its_offsets(lab: Lab, feed: Feed) -> None:
    """Sinks are idempotent by batch number: a retry after a restart must bring the same rows under the same
    number, even if more data came in meanwhile. Otherwise an invoice could be skipped or sent twice.
    """
    feed.add(usage("emma", 1, 0))
    lab.run(_counts(feed), mode="update")
    feed.add(usage("omar", 1, 0))
    attempts: list[tuple[int, list[Row]]] = []

    def failing_sink(frame: DataFrame, batch: int) -> None:
        attempts.append((batch, frame.collect()))
        raise RuntimeError("the sink's table is gone")

    with pytest.raises(StreamingQueryException, match="the sink's table is gone"):
        lab.run_into(failing_sink, _counts(feed), mode="update")
    planned = (lab.checkpoint.path / "offsets" / "1").read_text()
    feed.add(usage("lena", 1, 0))
    retried = lab.run(_counts(feed), mode="update")

    assert attempts == [(1, retried[1])]
    assert [row.customer for row in retried[1]] == ["omar"]
    assert (lab.checkpoint.path / "offsets" / "1").read_text() == planned
    assert lab.checkpoint.committed() == [0, 1, 2]


def test_a_batch_is_committed_after_the_sink_returned_and_after_its_state_was_written(lab: Lab, feed: Feed) -> None:
    """The exactly-once protocol in order: offsets, state, sink, commit. The replica takes the commit for a
    promise that all files of the batch are there; a sink takes the missing commit for a promise that the batch
    can be repeated.
    """
    feed.add(*[usage(customer, 1, 0) for customer in CUSTOMERS])
    seen: list[tuple[list[int], list[int], list[tuple[int, str]]]] = []

    def look() -> None:
        files = [versions_and_ids(lab.checkpoint.state_folder(partition=p), "changelog") for p in (0, 1)]
        seen.append((lab.checkpoint.planned(), lab.checkpoint.committed(), files[0] + files[1]))

    def sink(frame: DataFrame, _batch: int) -> None:
        lab.checkpoint.state_folder(partition=1).mkdir(parents=True, exist_ok=True)
        look()
        frame.collect()
        look()

    lab.run_into(sink, _counts(feed), mode="update")

    named = [(1, ids[0]) for ids in lab.checkpoint.state_ids(0)]
    assert seen == [([0], [], []), ([0], [], named)]
    assert lab.checkpoint.committed() == [0]


def _counts(feed: Feed) -> DataFrame:
    return feed.stream().groupBy("customer").count()
