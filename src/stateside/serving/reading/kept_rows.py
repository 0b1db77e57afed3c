"""Rows kept as answers show them, from one answer to the next, and always of the newest batch.

They are kept by the name that a key is asked for by, its parts with slashes between them: a table and not two, since
among many rows each further look at memory is what takes the time. When the replica moves on, the keys that its new
batches stored are let go, by what its history has of them (`changes`); the others' rows are as they were. Where the
history does not reach back, or says too much, all of them are let go.

Memory: `KEPT_BYTES_MAX` for each view and worker process, about; beyond that the older half goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from stateside.replica.applied import AppliedBatch
from stateside.replica.changes import touched
from stateside.replica.snapshot import Snapshot

KEPT_BYTES_MAX: Final = 64 << 20
NAME_CHARS_MAX: Final = 256  # longer names, and longer rows, are not kept
ROW_BYTES_MAX: Final = 4_096
TOUCHED_BYTES_MAX: Final = 512 << 10  # of history: read in a millisecond, while nothing else is answered
_OVERHEAD_BYTES: Final = 400  # of a row in memory, beside its own bytes: three objects and their places in two tables


class KeptRows:
    """The rows of one view, by name."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._place: object = None
        self._batch: AppliedBatch | None = None
        self._names: dict[bytes, str] = {}  # of the keys that are kept: the first that each was asked for by
        self.rows: dict[str, bytes] = {}

    def move(self, snapshot: Snapshot, batch: AppliedBatch) -> None:
        """Be of this snapshot from now on, which stands at this batch."""
        if self._place is not snapshot.place:
            self._let_go(None)
        elif self._batch is not None and batch != self._batch:
            self._let_go(touched(snapshot, self._batch, TOUCHED_BYTES_MAX))
        self._place, self._batch = snapshot.place, batch

    def keep(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Keep these names' rows, whose keys are in the middle."""
        for name, key, row in rows:
            if len(name) <= NAME_CHARS_MAX and len(row) <= ROW_BYTES_MAX and self._names.setdefault(key, name) == name:
                self._bytes += 0 if name in self.rows else len(row) + _OVERHEAD_BYTES
                self.rows[name] = row
        if self._bytes > self._bytes_max:
            for key, name in list(islice(self._names.items(), len(self._names) // 2)):
                self._drop(key, name)

    def _let_go(self, keys: Iterator[bytes] | None) -> None:
        if keys is None:
            self.rows.clear()
            self._names.clear()
            self._bytes = 0
            return
        for key in keys:
            name = self._names.get(key)
            if name is not None:
                self._drop(key, name)

    def _drop(self, key: bytes, name: str) -> None:
        del self._names[key]
        self._bytes -= len(self.rows.pop(name)) + _OVERHEAD_BYTES
