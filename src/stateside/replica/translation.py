"""Translation: what Spark stored, as the replica's keys and rows.

Each kind of view (`Catalogue.kind`) has its translator; `translator_of` is the one place that knows which.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import Protocol

from stateside.checkpoint.blocks import Block
from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.changelog import Changelog
from stateside.checkpoint.delta import Snapshot
from stateside.checkpoint.encoding import refuse_avro
from stateside.checkpoint.log import Checkpoint, Commit
from stateside.checkpoint.schema import read_schema
from stateside.checkpoint.snapshot import StateSnapshot
from stateside.checkpoint.variable_catalogue import check_state
from stateside.errors import CheckpointInvalid
from stateside.replica import lists
from stateside.replica.key_encoder import KeyEncoder
from stateside.replica.keys import KeyCodec
from stateside.replica.variables import VariableTranslator

Rows = Iterable[lists.Change]
AnySnapshot = StateSnapshot | Snapshot


class Translator(Protocol):
    """Turns what Spark stored into the replica's keys and rows."""

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        """What a partition's changelog changes in the replica."""

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        """The replica's rows in a snapshot of a partition."""


def translator_of(catalogue: Catalogue, checkpoint: Checkpoint) -> Translator:
    """The translator of a view; ViewInvalid if the checkpoint's state is not the catalogue's."""
    catalogue.check_query(checkpoint.query_id())
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
        self._state = checkpoint.storage.path(f"state/{catalogue.operator}")
        codec = KeyCodec([column.asked_type for column in catalogue.key])
        self._encoder = KeyEncoder(schema.key, [column.stored.index for column in catalogue.key], codec)

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        """What a partition's changelog changes in the replica."""
        if not isinstance(changelog.changes, Block):
            raise self._unexpected("it has column families, and the view is not of such a state")
        return chain.from_iterable(map(self._rows, changelog.changes.parts()))

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        """The replica's rows in a snapshot of a partition."""
        return chain.from_iterable(map(self._rows, snapshot.blocks(prefixed=self._prefixed)))

    def _rows(self, block: Block) -> list[tuple[bytes, bytes | None]]:
        """Roughly in order: LMDB takes such rows much faster, and what sorts them exactly has less to do."""
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
