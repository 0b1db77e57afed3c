"""A new replica: an LMDB environment that is filled beside the one that readers have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import lmdb

from stateside.replica import lists
from stateside.replica.environment import Databases, open_environment, write
from stateside.replica.ordered import Ordered
from stateside.replica.rollups import Rollups
from stateside.replica.store import AppliedBatch


class NewReplica:
    """An environment that is filled while readers still have the old one; `ReplicaWriter.switch` lets it take over.

    Its rollups are kept from the first row on, so that readers never have rows without them. Nothing in it is durable
    before `finish`.
    """

    def __init__(self, folder: Path, name: str, rollups: Rollups) -> None:
        self.folder = folder
        self._rollups = rollups
        self._environment = open_environment(folder, sync=False)
        self._databases = Databases(self._environment, create=True)
        self._note(b"replica", name.encode())
        self._note(b"rollups", rollups.as_json())

    def put(self, changes: Iterable[lists.Change]) -> None:
        """Apply some changes, in one transaction; of several to one key the last one counts."""
        given = list(changes)

        def put(transaction: lmdb.Transaction) -> None:
            rows = Ordered(transaction, self._databases.rows)
            last = sorted(dict(lists.settled(given, rows)).items())  # by their keys, of which none is there twice
            if self._rollups.kept:
                self._rollups.move(last, rows, Ordered(transaction, self._databases.rollups))
            else:
                rows.put_all(last)

        write(self._environment, put)

    def finish(self, batch: AppliedBatch) -> None:
        """Note the batch that the rows stand at, make all of it durable, and let the environment go."""
        self._note(b"batch", batch.as_json())
        self._environment.sync(True)
        self.close()

    def close(self) -> None:
        """Let the environment go."""
        self._environment.close()

    def _note(self, name: bytes, content: bytes) -> None:
        write(self._environment, lambda transaction: transaction.put(name, content, db=self._databases.meta))
