"""Turns the changes of a state variable into those of a replica: of all column families its own, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.changelog import Change, Changelog, changelog_name, plain_row
from stateside.checkpoint.column_families import ColumnFamilies
from stateside.checkpoint.compression import damaged
from stateside.checkpoint.delta import Snapshot
from stateside.checkpoint.log import Checkpoint, Commit
from stateside.checkpoint.snapshot import StateSnapshot
from stateside.checkpoint.state_variables import KeyDecoder
from stateside.checkpoint.variable_catalogue import completed, served_variable
from stateside.replica.keys import KeyCodec


class VariableTranslator:
    """Keys become the replica's: the view's key columns, then a map's key, in byte order. Values stay UnsafeRows."""

    def __init__(self, catalogue: Catalogue, checkpoint: Checkpoint) -> None:
        complete = completed(catalogue, checkpoint.storage)
        self._catalogue, self._storage = complete, checkpoint.storage
        self._families = ColumnFamilies(checkpoint.storage, catalogue.operator)
        self._decoder = KeyDecoder(served_variable(catalogue, checkpoint.storage))
        self._codec = KeyCodec([column.asked_type for column in complete.key])
        self._order = [column.stored.index for column in complete.key]

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Iterator[tuple[bytes, bytes | None]]:
        """What a partition's changelog changes in the replica."""
        path = self._storage.path(changelog_name(commit, self._catalogue.operator, partition))
        own = self._own(self._families.names(commit, partition, changelog))
        for change in changelog.changes:
            if change.family is None or (change.appended and change.family in own):
                raise damaged(path, 0, "this is no changelog of value states and map states")
            if change.family in own:
                yield self._row(change, path)

    def snapshot(self, partition: int, snapshot: StateSnapshot | Snapshot) -> Iterator[tuple[bytes, bytes | None]]:
        """The replica's rows in a snapshot of a partition."""
        assert isinstance(snapshot, StateSnapshot), "Spark refuses a transformWithState on other stores than RocksDB"
        self._families.learn(partition, snapshot.families)
        for family in sorted(self._own(snapshot.families)):
            for change in snapshot.family_rows(family):
                yield self._row(change, snapshot.path)

    def _own(self, names: Mapping[int, str]) -> set[int]:
        """The ids that the variable's own family has, or had."""
        own = {family for family, name in names.items() if name == self._catalogue.family}
        if len(own) > 1:  # the variable was removed and made anew
            served_variable(self._catalogue, self._storage)  # refuses it if it is of another type now
        return own

    def _row(self, change: Change, path: str) -> tuple[bytes, bytes | None]:
        values = self._decoder.decode(change.key, path)
        row = None if change.value is None else plain_row(change.value, path)
        return self._codec.encode([values[index] for index in self._order]), row
