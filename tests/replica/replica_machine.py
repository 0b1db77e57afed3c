"""A replica that lives on: batches, restarts, other declarations and loads in any order, and what it must then have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stateside.core import generations
from stateside.core.positions import Position
from stateside.replica.bootstrap import NewReplica
from stateside.replica.rollup_tables import Rollups
from stateside.replica.store import AppliedBatch, ReplicaWriter

from .rollup_rows import CODEC, Key, Row

Batch = list[tuple[Key, Row | None]]


class ReplicaMachine(RuleBasedStateMachine):
    """A replica whose writer ends and begins again between all that it does; `check` looks at it meanwhile."""

    def begin(self) -> None:
        """A replica with nothing in it."""
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "replica"
        self.rows, self.next, self.past = dict[Key, Row](), 0, dict[int, dict[Key, Row]]()

    @abstractmethod
    def rollups(self) -> Rollups:
        """Those that are declared."""

    @abstractmethod
    def check(self) -> None:
        """Compare what readers have with `rows`, and as of each batch with `past`."""

    def reopen(self) -> None:
        """A new writer."""
        self.writer = ReplicaWriter(self.path)
        self.writer.keep_rollups(self.rollups())

    def take(self, batch: Batch) -> None:
        """One more batch."""
        self.writer.apply(self._applied(), _encoded(batch))
        for key, row in batch:
            self.rows.pop(key, None) if row is None else self.rows.update({key: row})
        self.past[self.next] = dict(self.rows)
        self.next += 1

    @rule()
    def delete_all(self) -> None:
        self.take([(key, None) for key in self.rows])

    def declared_anew(self) -> None:
        """Other rollups: of batches before the newest there are none."""
        self.past = {batch: rows for batch, rows in self.past.items() if batch == self.next - 1}

    def fill_another(self, parts: Sequence[Batch]) -> None:
        """Fill a new replica, which takes the old one's place with its rollups in it."""
        folder = generations.next_folder(self.writer.directory)
        new = NewReplica(folder, self.writer.name(), self.rollups())
        for part in parts:
            new.put(_encoded(part))
        new.finish(self._applied())
        self.writer.switch(folder)
        self.rows = {key: row for key, row in dict(chain.from_iterable(parts)).items() if row is not None}
        self.past, self.next = {self.next: dict(self.rows)}, self.next + 1
        self.writer.close()
        self.check()  # before any writer makes them again
        self.reopen()

    @invariant()
    def readers_have_what_there_must_be(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            self.check()
            self.reopen()

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            self.folder.cleanup()

    def _applied(self) -> AppliedBatch:
        return AppliedBatch("q", self.next, Position.start(), 0, 0)


def _encoded(batch: Batch) -> list[tuple[bytes, bytes | None]]:
    return [(CODEC.encode(key), None if row is None else row.encoded()) for key, row in batch]
