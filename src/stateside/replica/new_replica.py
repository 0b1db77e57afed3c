"""A new replica: an LMDB environment that is filled beside the one that readers have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import lmdb

from stateside.replica.store import AppliedBatch, open_environment, short_key, stored_row, write


class NewReplica:
    """An environment that is filled while readers still have the old one; `ReplicaWriter.switch` lets it take over.

    Nothing in it is durable before `finish`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._environment = open_environment(folder, sync=False)
        self._rows = self._environment.open_db(b"rows")
        self._meta = self._environment.open_db(b"meta")
        write(self._environment, lambda transaction: transaction.put(b"replica", name.encode(), db=self._meta))

    def put(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Apply some changes, in one transaction."""
        last = dict(changes)
        rows = sorted((short_key(key), stored_row(key, row)) for key, row in last.items() if row is not None)
        gone = [short_key(key) for key, row in last.items() if row is None]

        def put(transaction: lmdb.Transaction) -> None:
            for key in gone:
                transaction.delete(key, db=self._rows)
            with transaction.cursor(db=self._rows) as cursor:
                cursor.putmulti(rows)

        write(self._environment, put)

    def finish(self, batch: AppliedBatch) -> None:
        """Note the batch that the rows stand at, make all of it durable, and let the environment go."""
        write(self._environment, lambda transaction: transaction.put(b"batch", batch.as_json(), db=self._meta))
        self._environment.sync(True)
        self.close()

    def close(self) -> None:
        """Let the environment go."""
        self._environment.close()
