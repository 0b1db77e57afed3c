"""Translation: Spark's state as the replica's keys and rows.

Each kind of view (`Catalogue.kind`) has its translator; only `translator_of` knows which. `VariableTranslator` selects
a state variable's own column family, by name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from stateside.core.errors import CheckpointInvalid
from stateside.replica import lists
from stateside.replica.key_blocks import KeyEncoder
from stateside.replica.keys import KeyCodec
from stateside.replica.shard import Share
from stateside.spark_state.avro_row import encoding_of, refuse_avro
from stateside.spark_state.batch_log import Checkpoint, Commit
from stateside.spark_state.changelog import Changelog, StateChange, changelog_name, plain_row
from stateside.spark_state.column_families import ColumnFamilies, delimiter_of, split_entries
from stateside.spark_state.compression import damaged
from stateside.spark_state.provider import AnySnapshot
from stateside.spark_state.rocksdb_snapshot import StateSnapshot
from stateside.spark_state.slices import ChangeBlock
from stateside.spark_state.state_variables import LIST_STATE, KeyDecoder
from stateside.spark_state.types import read_schema
from stateside.views.catalogue import Catalogue
from stateside.views.state_catalogue import check_state, completed, served_variable

Rows = Iterable[lists.Change]


class VariableTranslator:
    """The replica's keys are the view's key columns, then a map's key or a timer's time, in byte order.

    Values stay as encoded by Spark. For a list the key is that of the whole list, and the change one of `lists`.
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
        path = self._storage.path(changelog_name(commit, self._catalogue.operator, partition))
        own = self._own(self._families.names(commit, partition, changelog))
        for change in changelog.changes:
            if change.family is None or (change.appended and change.family in own and self._delimiter is None):
                raise damaged(path, 0, f"this is no changelog of the variable {self._family}")
            if change.family in own:
                yield self._row(change, path)

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Iterator[lists.Change]:
        assert isinstance(snapshot, StateSnapshot), "Spark refuses a transformWithState on other stores than RocksDB"
        self._families.learn(partition, snapshot.families)
        for family in sorted(self._own(snapshot.families)):
            for change in snapshot.family_rows(family):
                yield self._row(change, snapshot.path)

    def _own(self, names: Mapping[int, str]) -> set[int]:
        """The present and former ids of the variable's own family."""
        own = {family for family, name in names.items() if name == self._family}
        if len(own) > 1:  # the variable was removed and created again
            served_variable(self._catalogue, self._storage)  # refuses another type
        return own

    def _row(self, change: StateChange, path: str) -> lists.Change:
        values = self._decoder.decode(change.key, path)
        key = self._codec.encode([values[index] for index in self._order])
        if self._delimiter is not None:
            return key, self._entries(change, self._delimiter, path)
        return key, None if change.value is None else plain_row(change.value, path)

    def _entries(self, change: StateChange, delimiter: bytes, path: str) -> lists.Entries:
        if change.value is None:
            return lists.Entries((), replacing=True)
        rows = (plain_row(entry, path) for entry in split_entries(change.value, delimiter, path))
        return lists.Entries(tuple(rows), replacing=not change.appended)


class Translator(Protocol):
    """Turns Spark's state into the replica's keys and rows."""

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        """The replica's changes by a partition's changelog."""

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        """The replica's rows in a snapshot of a partition."""


def translator_of(catalogue: Catalogue, checkpoint: Checkpoint, share: Share | None = None) -> Translator:
    """The translator of a view, or of one shard of its keys; ViewInvalid if the state is not the catalogue's."""
    catalogue.check_query(checkpoint.query_id())
    if catalogue.kind != "state-variable":
        refuse_avro(checkpoint)
    in_family = catalogue.kind == "state-variable" or (catalogue.kind == "join" and catalogue.family is not None)
    translator = (VariableTranslator if in_family else RowTranslator)(catalogue, checkpoint)
    if share is None:
        return translator
    key = completed(catalogue, checkpoint.storage).key
    return _SharedTranslator(translator, share, KeyCodec([column.asked_type for column in key]))


class RowTranslator:
    """The replica's keys are the view's key columns, in the view's order, in byte order."""

    def __init__(self, catalogue: Catalogue, checkpoint: Checkpoint) -> None:
        check_state(catalogue, checkpoint.storage)
        schema = read_schema(checkpoint.storage, catalogue.operator)
        self._prefixed = catalogue.kind == "session"
        self._state = checkpoint.storage.path(f"state/{catalogue.operator}")
        codec = KeyCodec([column.asked_type for column in catalogue.key])
        self._encoder = KeyEncoder(schema.key, [column.stored.index for column in catalogue.key], codec)

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        if not isinstance(changelog.changes, ChangeBlock):
            raise self._unexpected("it has column families, and the view is not of such a state")
        return chain.from_iterable(map(self._rows, changelog.changes.parts()))

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        return chain.from_iterable(map(self._rows, snapshot.blocks(prefixed=self._prefixed)))

    def _rows(self, block: ChangeBlock) -> list[tuple[bytes, bytes | None]]:
        """Roughly sorted: LMDB stores such rows much faster, and the exact sort has less to do."""
        try:
            keys = self._encoder.encode(block.keys, block.rests)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise self._unexpected(f"a key is not as the schema says, {error}") from error
        order = keys.rough_order()
        return list(zip(keys.part(order).array(), block.values.part(order).array(), strict=True))

    def _unexpected(self, reason: str) -> CheckpointInvalid:
        return CheckpointInvalid(
            f"The state cannot be read: {reason}",
            where=self._state,
            next_step="If another query ran on this checkpoint, run the view on a new folder",
        )


class _SharedTranslator:
    """A view's translator that omits the keys of other shards, in changes and in snapshots alike."""

    def __init__(self, translator: Translator, share: Share, codec: KeyCodec) -> None:
        self._translator, self._share, self._codec = translator, share, codec

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        return self._own(self._translator.changes(commit, partition, changelog))

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        return self._own(self._translator.snapshot(partition, snapshot))

    def _own(self, rows: Rows) -> Rows:
        has, leading = self._share.has, self._codec.leading
        return ((key, row) for key, row in rows if has(leading(key)))
