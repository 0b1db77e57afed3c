"""A new replica: an LMDB environment that is filled beside the one that readers have.

Its rows are put in order first (`runs`) and then appended: LMDB fills its pages one after the other, each to the end.
In any other order every transaction would copy much of what those before it had written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import lmdb

from stateside.replica import lists
from stateside.replica.environment import Databases, open_environment, sync, write
from stateside.replica.integrity import Integrity
from stateside.replica.ordered import Ordered
from stateside.replica.rollups import Rollups
from stateside.replica.runs import SortedRuns
from stateside.replica.share import Share
from stateside.replica.store import AppliedBatch


class NewReplica:
    """An environment that is filled while readers still have the old one; `ReplicaWriter.switch` lets it take over.

    Its rollups are kept from the first row on, so that readers never have rows without them. Nothing in it is durable
    before `finish`.
    """

    def __init__(self, folder: Path, name: str, rollups: Rollups, share: Share | None = None) -> None:
        self.folder = folder
        self._rollups = rollups
        self._opened = ExitStack()
        try:
            self._environment = open_environment(folder, sync=False)
            self._opened.callback(self._environment.close)
            self._runs = SortedRuns(folder)
            self._opened.callback(self._runs.close)
            self._databases = Databases(self._environment)
            self._note(b"replica", name.encode())
            self._note(b"rollups", rollups.as_json())
            if share is not None:
                self._note(b"share", str(share).encode())
        except BaseException:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def put(self, changes: Iterable[lists.Change]) -> None:
        """Take in some changes; of several to one key the last one counts, and those to a list follow each other."""
        given = list(changes)
        plain = lists.plain(given)
        if plain is None:
            write(self._environment, partial(self._settle, given))
        else:
            self._runs.add(plain)

    def finish(self, batch: AppliedBatch, stored: Callable[[int], None] = lambda rows: None) -> None:
        """Store the rows, note the batch that they stand at, make all of it durable, and let the environment go.

        Between transactions it tells how many rows were stored by the last one; an error from there ends it.
        """
        for rows in self._runs.merged():
            write(self._environment, partial(self._append, rows))
            stored(len(rows))
        self._note(b"batch", batch.as_json())
        sync(self._environment)
        Integrity(self.folder, self._environment, new=True).close()
        self.close()

    def close(self) -> None:
        """Let the environment go."""
        self._opened.close()

    def _settle(self, changes: list[lists.Change], transaction: lmdb.Transaction) -> None:
        """Lists are told by what comes after them: they are stored at once. A view that serves one has no rollups."""
        rows = Ordered(transaction, self._databases.rows)
        rows.put_all(lists.settled(changes, rows))

    def _append(self, rows: list[tuple[bytes, bytes]], transaction: lmdb.Transaction) -> None:
        Ordered(transaction, self._databases.rows).append(rows)
        self._rollups.add_all(iter(rows), Ordered(transaction, self._databases.rollups))

    def _note(self, name: bytes, content: bytes) -> None:
        write(self._environment, lambda transaction: transaction.put(name, content, db=self._databases.meta))
