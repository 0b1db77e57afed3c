"""Translation: what Spark stored, as the replica's keys and rows.

Each kind of view (`Catalogue.kind`) has its translator; `translator_of` is the one place that knows which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.changelog import Change, Changelog
from stateside.checkpoint.delta import Snapshot
from stateside.checkpoint.encoding import refuse_avro
from stateside.checkpoint.log import Checkpoint, Commit
from stateside.checkpoint.schema import read_schema
from stateside.checkpoint.snapshot import StateSnapshot
from stateside.checkpoint.unsafe_row import RowDecoder
from stateside.checkpoint.variable_catalogue import check_state
from stateside.replica import lists
from stateside.replica.keys import KeyCodec
from stateside.replica.variables import VariableTranslator

Rows = Iterator[lists.Change]
AnySnapshot = StateSnapshot | Snapshot


class Translator(Protocol):
    """Turns what Spark stored into the replica's keys and rows."""

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        """What a partition's changelog changes in the replica."""

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        """The replica's rows in a snapshot of a partition."""


def translator_of(catalogue: Catalogue, checkpoint: Checkpoint) -> Translator:
    """The translator of a view; ViewInvalid if the checkpoint's state is not the catalogue's."""
    if catalogue.kind != "state-variable":
        refuse_avro(checkpoint)
    in_family = catalogue.kind == "state-variable" or (catalogue.kind == "join" and catalogue.family is not None)
    kind = VariableTranslator if in_family else RowTranslator
    return kind(catalogue, checkpoint)


class RowTranslator:
    """Turns the state's keys into the replica's: the view's key columns, in the view's order, in byte order."""

    def __init__(self, catalogue: Catalogue, checkpoint: Checkpoint) -> None:
        check_state(catalogue, checkpoint.storage)
        schema = read_schema(checkpoint.storage, catalogue.operator)
        self._prefixed = catalogue.kind == "session"
        self._decoder = RowDecoder(schema.key)
        # Of a key in two parts the last column, the session's start, stands by itself.
        self._first_decoder, self._rest_decoder = RowDecoder(schema.key[:-1]), RowDecoder(schema.key[-1:])
        self._codec = KeyCodec([column.asked_type for column in catalogue.key])
        self._order = [column.stored.index for column in catalogue.key]

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Iterator[tuple[bytes, bytes | None]]:
        """What a partition's changelog changes in the replica."""
        return self._rows(changelog.changes)

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Iterator[tuple[bytes, bytes | None]]:
        """The replica's rows in a snapshot of a partition."""
        return self._rows(snapshot.rows(prefixed=self._prefixed))

    def _rows(self, changes: Iterable[Change]) -> Iterator[tuple[bytes, bytes | None]]:
        return ((self._key(change), change.value) for change in changes)

    def _key(self, change: Change) -> bytes:
        if change.key_rest is None:
            values = self._decoder.decode(change.key)
        else:
            values = self._first_decoder.decode(change.key) + self._rest_decoder.decode(change.key_rest)
        return self._codec.encode([values[index] for index in self._order])
