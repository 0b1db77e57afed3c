"""Delivery: hands a query's batches to its sink, and holds a batch while the sink's other side is away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stateside.checkpoint.log import Checkpoint
from stateside.errors import ArchiveInvalid, CheckpointAway, JournalAway, SinkAway
from stateside.pipeline.sinks.sink import BatchId, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 10.0
_AWAY = (SinkAway, ArchiveInvalid, JournalAway, OSError)  # a table that is gone, a full disk: it may come back

log = logging.getLogger(__name__)


def always() -> None:
    """Who runs without a lease may always write."""


class Delivery:
    """What Spark calls for each batch of a query (`foreachBatch`): one action on its rows, once.

    While the other side is away the batch is held here, uncommitted, and tried again with longer and longer pauses.
    Spark waits meanwhile, events stay in the journal, and readers keep the last batch. `holding` says why.
    """

    def __init__(
        self, sink: Sink, checkpoint: Checkpoint, hold_s_max: float, may_write: Callable[[], None] = always
    ) -> None:
        """`may_write` is asked before each attempt, and raises LeadershipLost if this process may not any more."""
        self._sink = sink
        self._checkpoint = checkpoint
        self._hold_s_max = hold_s_max
        self._may_write = may_write
        self._stopping = threading.Event()
        self.holding: str | None = None
        self.error: Exception | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Deliver the batch; raises only what holding does not help against, or what outlasts it."""
        try:
            self._deliver(rows, BatchId(self._query_of(batch), batch))
        except Exception as error:
            self.error = error  # Spark tells it on as text only
            raise
        finally:
            self.holding = None

    def stop(self) -> None:
        """Hold no longer: the batch that is held fails, uncommitted, and is repeated by the next run."""
        self._stopping.set()

    def _deliver(self, rows: DataFrame, batch: BatchId) -> None:
        table = rows.toArrow()
        pause_s, deadline = PAUSE_S_MIN, time.monotonic() + self._hold_s_max
        while True:
            try:
                self._may_write()
                return self._sink.write(table, batch)
            except _AWAY as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
                self._hold(batch, str(error))
                if self._stopping.wait(min(pause_s, left_s)):
                    raise
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _query_of(self, batch: int) -> str:
        """The query's id; CheckpointAway if its checkpoint, or the batch's plan in it, is not there.

        Spark itself does not notice: it would write the plan of the next batch into a new folder. If the batch were
        delivered then, and the checkpoint came back without that plan, other events would get the batch's number.
        """
        query = self._checkpoint.query_id()
        if query is None or not self._checkpoint.storage.exists(f"offsets/{batch}"):
            raise CheckpointAway(
                f"The checkpoint with the plan of batch {batch} is away",
                where=self._checkpoint.storage.root,
                next_step="Bring it back: nothing of the batch was delivered, and the view waits",
            )
        return query

    def _hold(self, batch: BatchId, why: str) -> None:
        if why != self.holding:
            log.warning("batch %d is held: %s", batch.batch, why)
        self.holding = why
