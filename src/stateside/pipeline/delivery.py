"""Delivery: hands a query's batches to its sink, and holds a batch while the sink's other side is away."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from stateside.checkpoint.log import Checkpoint
from stateside.errors import ArchiveInvalid, SinkAway
from stateside.pipeline.sinks.sink import BatchId, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 10.0
_AWAY = (SinkAway, ArchiveInvalid, OSError)  # a table that is gone, a full disk: it may come back

log = logging.getLogger(__name__)


class Delivery:
    """What Spark calls for each batch of a query (`foreachBatch`): one action on its rows, once.

    While the other side is away the batch is held here, uncommitted, and tried again with longer and longer pauses.
    Spark waits meanwhile, events stay in the journal, and readers keep the last batch. `holding` says why.
    """

    def __init__(self, sink: Sink, checkpoint: Checkpoint, hold_s_max: float) -> None:
        self._sink = sink
        self._checkpoint = checkpoint
        self._hold_s_max = hold_s_max
        self._stopping = threading.Event()
        self.holding: str | None = None
        self.error: Exception | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Deliver the batch; raises only what holding does not help against, or what outlasts it."""
        query = self._checkpoint.query_id()
        assert query is not None, "Spark writes the query's id before its first batch"
        try:
            self._deliver(rows, BatchId(query, batch))
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
                return self._sink.write(table, batch)
            except _AWAY as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
                self._hold(batch, str(error))
                if self._stopping.wait(min(pause_s, left_s)):
                    raise
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _hold(self, batch: BatchId, why: str) -> None:
        if why != self.holding:
            log.warning("batch %d is held: %s", batch.batch, why)
        self.holding = why
