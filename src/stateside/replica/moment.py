"""A moment: a snapshot that is kept for a few milliseconds, and answers one short question after the other.

Each of them would cost as much for the snapshot as for the row. It is always of the newest batch: the environment's
checksums say which transaction was published last, and if it is another one, another snapshot is taken. It is let go
after `MOMENT_S` at the latest, so that it holds back hardly any old pages, and sees that another environment took this
one's place by hand.
"""

from __future__ import annotations

import time
from typing import Final

from stateside.replica.reader import Begun, Opened, ReplicaReader
from stateside.replica.snapshot import Snapshot

MOMENT_S: Final = 0.005


class Moment:
    """For one thread, which sees to it that `release` is called in time: also when no question comes any more."""

    def __init__(self, replica: ReplicaReader) -> None:
        self._replica = replica
        self._kept: tuple[Opened, Begun, Snapshot] | None = None
        self._until_s = 0.0

    def snapshot(self) -> Snapshot:
        """The one that is kept, if nothing newer is there, or another one; errors as for `ReplicaReader.snapshot`."""
        if self._kept is not None:
            opened, begun, snapshot = self._kept
            if opened.newest() == begun.number and time.monotonic() < self._until_s:
                return snapshot
            self.release()
        return self._take()

    def release(self) -> None:
        """Let go what is kept, if anything."""
        if self._kept is not None:
            opened, begun, _ = self._kept
            self._kept = None
            opened.end(begun.transaction)
            self._replica.give_back(opened)

    def _take(self) -> Snapshot:
        opened = self._replica.take()
        try:
            begun = self._replica.begin(opened)
        except BaseException:
            self._replica.give_back(opened)
            raise
        snapshot = Snapshot(begun.tables)
        self._kept = opened, begun, snapshot
        self._until_s = time.monotonic() + MOMENT_S
        return snapshot
