"""How far a load is: for the log, and for whoever wants to show it, as a bar for instance.

How many rows there are nobody knows before they were read, but the sizes of the files are known. So the first share of
the work is told by bytes: of partitions that were read, and within one by the rows that the others had for their size.
The rest, putting the rows into LMDB, is told by rows.
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
    """A load at one moment: its view and batch, the rows read so far, and the share of the work done, from 0 to 1."""

    view: str
    batch: int
    rows: int
    done: float


Watch = Callable[[LoadProgress], None]


def nobody(progress: LoadProgress) -> None:
    """Watches nothing."""


class LoadCounter:
    """Counts for one load; tells the watch several times a second and the log, if it takes long, every few seconds."""

    def __init__(self, view: str, batch: int, total_bytes: int, watch: Watch) -> None:
        self._view, self._batch, self._watch = view, batch, watch
        self._total_bytes, self._read_bytes = max(total_bytes, 1), 0
        self._rows = self._rows_of_parts = self._stored_rows = 0
        self._level = logging.INFO
        self._begun_s = self._watched_s = self._logged_s = time.monotonic()

    def read(self, rows: int) -> None:
        """So many rows more of the present partition were read."""
        self._rows += rows
        self._tell()

    def end_of_part(self, size_bytes: int) -> None:
        """That partition's files had so many bytes."""
        self._read_bytes, self._rows_of_parts = self._read_bytes + size_bytes, self._rows
        self._tell()

    def stored(self, rows: int) -> None:
        """So many rows more were stored. None are read any more."""
        self._stored_rows += rows
        self._tell()

    def end(self) -> None:
        """The load is done."""
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
            self._logged_s, self._level = now_s, logging.WARNING  # a long one is for everybody to see
            self._log(f"is being loaded, {self._done():.0%} done,")

    def _log(self, done: str) -> None:
        per_s = self._rows / max(time.monotonic() - self._begun_s, 1e-3)
        how = f"{self._rows:,} rows, {per_s:,.0f} rows/s"
        log.log(self._level, "view %s: batch %d %s from snapshots, %s", self._view, self._batch, done, how)
