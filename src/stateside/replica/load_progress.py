"""Progress of a bootstrap, for the log and for a display such as a progress bar.

The number of rows is unknown before they are read, but the sizes of the files are known. So progress of reading, the
first 40 % of the work, counts bytes: of partitions read, and within a partition by rows, at the other partitions' bytes
per row. The rest, storing the rows in LMDB, counts rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LOG_S = 5.0
WATCH_S = 0.2
READING_SHARE = 0.4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A bootstrap at one moment: its view and batch, the rows read so far, and the fraction done, from 0 to 1."""

    view: str
    batch: int
    rows: int
    done: float


Watch = Callable[[LoadProgress], None]


def nobody(progress: LoadProgress) -> None:
    """A watch that does nothing."""


class LoadCounter:
    """Counters of one bootstrap; reports to the watch every `WATCH_S`, and to the log every `LOG_S`."""

    def __init__(self, view: str, batch: int, total_bytes: int, watch: Watch) -> None:
        self._view, self._batch, self._watch = view, batch, watch
        self._total_bytes, self._read_bytes = max(total_bytes, 1), 0
        self._rows = self._rows_of_parts = self._stored_rows = 0
        self._level = logging.INFO
        self._begun_s = self._watched_s = self._logged_s = time.monotonic()

    def read(self, rows: int) -> None:
        """`rows` more rows of the present partition were read."""
        self._rows += rows
        self._tell()

    def end_of_part(self, size_bytes: int) -> None:
        """The present partition is read; its files had `size_bytes` bytes."""
        self._read_bytes, self._rows_of_parts = self._read_bytes + size_bytes, self._rows
        self._tell()

    def stored(self, rows: int) -> None:
        """`rows` more rows were stored. Reading has ended."""
        self._stored_rows += rows
        self._tell()

    def end(self) -> None:
        self._watch(LoadProgress(self._view, self._batch, self._rows, 1.0))
        self._log("was loaded")

    def _done(self) -> float:
        in_part = self._rows - self._rows_of_parts
        by_rows = self._read_bytes * in_part / self._rows_of_parts if self._rows_of_parts else 0
        reading = min(1.0, (self._read_bytes + by_rows) / self._total_bytes)
        storing = self._stored_rows / max(self._rows, 1)
        return READING_SHARE * reading + (1 - READING_SHARE) * storing

    def _tell(self) -> None:
        now_s = time.monotonic()
        if now_s - self._watched_s >= WATCH_S:
            self._watched_s = now_s
            self._watch(LoadProgress(self._view, self._batch, self._rows, self._done()))
        if now_s - self._logged_s >= LOG_S:
            self._logged_s, self._level = now_s, logging.WARNING  # a long one must be visible
            self._log(f"is being loaded, {self._done():.0%} done,")

    def _log(self, done: str) -> None:
        per_s = self._rows / max(time.monotonic() - self._begun_s, 1e-3)
        how = f"{self._rows:,} rows, {per_s:,.0f} rows/s"
        log.log(self._level, "view %s: batch %d %s from snapshots, %s", self._view, self._batch, done, how)
