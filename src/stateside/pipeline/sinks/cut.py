"""The cut: how many rows a request has at most, the same in every attempt at a batch.

The parts of a repeated batch are recognised by their number, so a batch that was begun with one limit must be repeated
with it, even if the setting was changed in between. So the limit that is in force is noted beside the checkpoint. A
changed one takes effect with the second batch of a run: only the first can be a repeat.
"""

from __future__ import annotations

import json
from pathlib import Path

from stateside.pipeline.sinks.sink import BatchId
from stateside.storage import write_atomically


class Cut:
    """The limit in force, and its note."""

    def __init__(self, note: Path, rows_max: int, wanted_rows_max: int) -> None:
        self._note = note
        self._rows_max = rows_max
        self._wanted_rows_max = wanted_rows_max
        self._first: BatchId | None = None

    @classmethod
    def open(cls, note: Path, rows_max: int) -> Cut:
        """The cut of a view's sink, with the limit that it is to have from now on."""
        if not note.exists():
            _write(note, rows_max)
        return cls(note, int(json.loads(note.read_bytes())["rows_per_request_max"]), rows_max)

    def rows_max(self, batch: BatchId) -> int:
        """The limit for this batch."""
        self._first = self._first or batch
        if batch != self._first and self._rows_max != self._wanted_rows_max:
            _write(self._note, self._wanted_rows_max)
            self._rows_max = self._wanted_rows_max
        return self._rows_max


def _write(note: Path, rows_max: int) -> None:
    write_atomically(note, json.dumps({"rows_per_request_max": rows_max}).encode())
