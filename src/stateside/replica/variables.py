"""Turns the changes of a state variable into those of a replica: of all column families its own, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.changelog import Change, Changelog, changelog_name, plain_row
from stateside.checkpoint.column_families import ColumnFamilies
from stateside.checkpoint.compression import damaged
from stateside.checkpoint.delta import Snapshot
from stateside.checkpoint.encoding import encoding_of
from stateside.checkpoint.list_values import delimiter_of, split_entries
from stateside.checkpoint.log import Checkpoint, Commit
from stateside.checkpoint.snapshot import StateSnapshot
from stateside.checkpoint.state_variables import LIST_STATE, KeyDecoder
from stateside.checkpoint.variable_catalogue import check_state, completed, served_variable
from stateside.replica import lists
from stateside.replica.keys import KeyCodec


class VariableTranslator:
    """Keys become the replica's: the view's key columns, then a map's key or a timer's time, in byte order.

    Values stay as Spark encoded them. Of a list the key is that of the whole list, and the change one of `lists`.
    """

    def __init__(self, catalogue: Catalogue, checkpoint: Checkpoint) -> None:
        complete = completed(catalogue, checkpoint.storage)
        check_state(complete, checkpoint.storage)
        self._catalogue, self._storage = complete, checkpoint.storage
        self._families = ColumnFamilies(checkpoint.storage, catalogue.operator)
        variable = served_variable(catalogue, checkpoint.storage)
        self._family = variable.name
        self._delimiter = delimiter_of(checkpoint) if variable.kind == LIST_STATE else None
        self._decoder = KeyDecoder(variable, encoding_of(checkpoint))
        key = complete.key[:-1] if variable.kind == LIST_STATE else complete.key
        self._codec = KeyCodec([column.asked_type for column in key])
        self._order = [column.stored.index for column in key]

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Iterator[lists.Change]:
        """What a partition's changelog changes in the replica."""
        path = self._storage.path(changelog_name(commit, self._catalogue.operator, partition))
        own = self._own(self._families.names(commit, partition, changelog))
        for change in changelog.changes:
            if change.family is None or (change.appended and change.family in own and self._delimiter is None):
                raise damaged(path, 0, f"this is no changelog of the variable {self._family}")
            if change.family in own:
                yield self._row(change, path)

    def snapshot(self, partition: int, snapshot: StateSnapshot | Snapshot) -> Iterator[lists.Change]:
        """The replica's rows in a snapshot of a partition."""
        assert isinstance(snapshot, StateSnapshot), "Spark refuses a transformWithState on other stores than RocksDB"
        self._families.learn(partition, snapshot.families)
        for family in sorted(self._own(snapshot.families)):
            for change in snapshot.family_rows(family):
                yield self._row(change, snapshot.path)

    def _own(self, names: Mapping[int, str]) -> set[int]:
        """The ids that the variable's own family has, or had."""
        own = {family for family, name in names.items() if name == self._family}
        if len(own) > 1:  # the variable was removed and made anew
            served_variable(self._catalogue, self._storage)  # refuses it if it is of another type now
        return own

    def _row(self, change: Change, path: str) -> lists.Change:
        values = self._decoder.decode(change.key, path)
        key = self._codec.encode([values[index] for index in self._order])
        if self._delimiter is not None:
            return key, self._entries(change, self._delimiter, path)
        return key, None if change.value is None else plain_row(change.value, path)

    def _entries(self, change: Change, delimiter: bytes, path: str) -> lists.Entries:
        if change.value is None:
            return lists.Entries((), replacing=True)
        rows = (plain_row(entry, path) for entry in split_entries(change.value, delimiter, path))
        return lists.Entries(tuple(rows), replacing=not change.appended)
