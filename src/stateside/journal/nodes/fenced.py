"""The log of an epoch as its owner writes it: a journal whose end mark moves for the owner only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from stateside.clock import Clock
from stateside.journal.nodes.epoch import Fence
from stateside.journal.segment import DurableEnd
from stateside.journal.writer import SEGMENT_BYTES_MAX, JournalWriter


class FencedLog(JournalWriter):
    """A journal's writer that looks into `epoch` between the sync of a frame and its end mark: JournalFenced.

    Whatever moves the mark goes by there: an append, a new segment, and what recovery finds behind the mark.
    """

    def __init__(
        self, directory: Path, fence: Fence, *, clock: Clock, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self._fence = fence
        super().__init__(directory, clock=clock, segment_bytes_max=segment_bytes_max)

    @contextmanager
    def turn(self) -> Iterator[DurableEnd]:
        """A turn in which the caller looks, decides and then perhaps stores; tells where the log ends."""
        with self._turn():
            yield self._end

    def store(self, batch: pa.RecordBatch) -> None:
        """Store a batch that has its sequences already, in a turn."""
        self._store(batch)

    def sync_mark(self) -> None:
        """Have the end mark durable: it does not go back any more, not even by a loss of power."""
        with self._breaking("The end mark failed to sync"):
            os.fdatasync(self._mark)

    def _publish(self) -> None:
        """The frame is stored by now: who cannot look does not know whether it counts, and takes nothing more."""
        with self._breaking("The node's epoch cannot be read"):
            self._fence.check()
        super()._publish()

    def _open_mark(self) -> None:
        """Which makes the mark if there is none yet."""
        self._fence.check()
        super()._open_mark()
