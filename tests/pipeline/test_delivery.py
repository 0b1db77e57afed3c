"""Delivery, without Spark: when a batch is held, and when it may not be written at all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateside.core.errors import CheckpointAway, JournalAway, LeadershipLost, SinkAway
from stateside.core.layout import Layout
from stateside.core.storage import Storage, write_atomically
from stateside.pipeline.sinks.sink import BatchId
from stateside.pipeline.view_query import BatchDelivery
from stateside.spark_state.batch_log import Checkpoint


class Rows:
    """A batch's rows, as Spark hands them over."""

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.table({"n": [1]})


class Notebook:
    """A sink that is away for some attempts, and then writes."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.written: list[int] = []

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.written.append(batch.batch)


@pytest.fixture
def checkpoint(layout: Layout) -> Checkpoint:
    write_atomically(layout.root / "metadata", b'{"id": "query"}')
    write_atomically(layout.root / "offsets" / "7", b"v1")
    return Checkpoint(Storage.at(layout.root))


@pytest.mark.parametrize(
    "error", [SinkAway("It is away"), JournalAway("It is away"), OSError(28, "No space left on device")]
)
def test_a_batch_is_held_while_something_is_away_and_written_once_when_it_is_back(
    checkpoint: Checkpoint, error: Exception
) -> None:
    notebook = Notebook(error, error)
    BatchDelivery(notebook, checkpoint, float("inf"))(Rows(), 7)  # type: ignore[arg-type]
    assert notebook.written == [7]


@pytest.mark.parametrize("gone", ["metadata", "offsets/7"])
def test_a_batch_whose_plan_is_away_is_not_delivered(checkpoint: Checkpoint, layout: Layout, gone: str) -> None:
    """Spark made a folder again and planned the batch there: when the checkpoint is back, it is planned again."""
    (layout.root / gone).unlink()
    notebook = Notebook()
    with pytest.raises(CheckpointAway, match="plan of batch 7 is away"):
        BatchDelivery(notebook, checkpoint, float("inf"))(Rows(), 7)  # type: ignore[arg-type]
    assert notebook.written == []


def test_who_does_not_lead_any_more_writes_nothing(checkpoint: Checkpoint) -> None:
    def lost() -> None:
        raise LeadershipLost("Another leads")

    notebook = Notebook()
    delivery = BatchDelivery(notebook, checkpoint, float("inf"), lost)
    with pytest.raises(LeadershipLost):
        delivery(Rows(), 7)  # type: ignore[arg-type]
    assert notebook.written == [] and isinstance(delivery.error, LeadershipLost)


def test_a_leadership_that_is_lost_while_a_batch_is_held_ends_the_wait(checkpoint: Checkpoint) -> None:
    asked: list[int] = []

    def lost_later() -> None:
        asked.append(1)
        if len(asked) > 2:
            raise LeadershipLost("Another leads")

    with pytest.raises(LeadershipLost):
        BatchDelivery(Notebook(*[SinkAway("It is away")] * 99), checkpoint, float("inf"), lost_later)(Rows(), 7)  # type: ignore[arg-type]
