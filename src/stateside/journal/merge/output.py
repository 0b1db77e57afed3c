"""Output: merged events on their way into the partitions, until there are enough of them for a frame."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa

from stateside.journal.merge.columns import Piece


class Output:
    """The pieces of each partition, in order. A run of rows of one batch becomes one piece."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Piece]] = defaultdict(list)
        self.events = self.bytes = 0
        self._runs: dict[str, list[int]] = defaultdict(list)
        self._log, self._first, self._batch = "", 0, None

    def begin(self, log: str, first: int, batch: pa.RecordBatch) -> None:
        """What comes next are rows of this batch, whose first event has this offset in its log."""
        self._log, self._first, self._batch = log, first, batch

    def add(self, partition: str, row: int) -> None:
        """A row of the batch."""
        self._runs[partition].append(row)
        self.events += 1

    def add_piece(self, partition: str, piece: Piece) -> None:
        """Events that come from somewhere else, behind the rows so far."""
        self._end_run(partition)
        self._add(partition, piece)
        self.events += len(piece.offsets)

    def end(self) -> None:
        """No more rows of this batch."""
        for partition in list(self._runs):
            self._end_run(partition)
        self._batch = None

    def _end_run(self, partition: str) -> None:
        rows = self._runs.pop(partition, None)
        if not rows or self._batch is None:
            return
        whole = len(rows) == self._batch.num_rows
        batch = self._batch if whole else self._batch.take(pa.array(rows))
        self._add(partition, Piece(self._log, [self._first + row for row in rows], batch))

    def _add(self, partition: str, piece: Piece) -> None:
        self.pieces[partition].append(piece)
        self.bytes += piece.batch.nbytes
