"""The subscription: the rows of a relation that a watcher follows, and the changes of rows as shown to watchers.

The relation has the principal's scope. Scope columns at the front of the key extend the prefix; the others are checked
in each row: a row that leaves the scope is sent as removed, a row never in the scope is not sent.

A watcher of live rows gets a sealed row as removed. With the source `both` the row stays, since it is sealed in the
same batch in which it leaves the state; with `archive` a watcher gets each row once it is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import orjson

from stateside.core.errors import RequestInvalid
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.changes.sse import Json
from stateside.serving.rows.columns import Values
from stateside.serving.rows.relation import Relation, RowChange, Scope, check_held
from stateside.serving.stamp import Source, Stamp
from stateside.spark_state.unsafe_row import Value


@dataclass(frozen=True, slots=True)
class Subscription:
    """All rows of a relation whose key begins with these values.

    Watchers with equal subscriptions get the same events. `positions` encodes positions.
    """

    relation: Relation
    key: tuple[Value, ...]
    prefix: bytes
    positions: PositionCodec = PLAIN
    source: Source = "live"

    @classmethod
    def ask(
        cls, relation: Relation, parts: Sequence[str], positions: PositionCodec = PLAIN, source: str | None = None
    ) -> Subscription:
        """The subscription to keys that begin with these parts, narrowed to the scope.

        KeyInvalid or RequestInvalid for unknown parts or sources, AccessDenied for keys outside the scope.
        """
        key = tuple(relation.scope.narrowed(relation.table.parse_key(parts)))
        of = relation.source(source, "live")
        if of != "live" and relation.table.by is not None:
            raise RequestInvalid(
                "A rollup is followed over live rows", next_step="Ask with source=live, or follow the rows"
            )
        return cls(relation, key, relation.table.codec.encode(key), positions, of)

    def check_held(self, stamp: Stamp) -> None:
        """Misdirected if the rows are in another shard than the replica's. A rollup has the replica's shard."""
        if self.relation.table.by is None:
            check_held(stamp, self.relation.table.codec, self.prefix, scattered=self.source == "live")

    def stamp(self, stamp: Stamp) -> Stamp:
        """The stamp of an event, with its position encoded for the subscriber."""
        return self.positions.stamp(replace(stamp, source=self.source))


class ShownChange:
    """One change as shown to watchers; its parts are computed on demand, once for all watchers."""

    def __init__(self, changed: RowChange, relation: Relation) -> None:
        self.key = changed.key
        self._changed, self._relation = changed, relation

    def to(self, scope: Scope) -> tuple[bool, Json] | None:
        """The change within a scope: True and the row, or False and a removed key; None outside the scope."""
        if self._after is not None and scope.has(self._after):
            return True, self._after_json
        if self._before is not None and scope.has(self._before):
            return False, self._removed_json
        return None

    @cached_property
    def _after(self) -> Values | None:
        row = self._changed.after
        return None if row is None else self._relation.values(self.key, row)

    @cached_property
    def _before(self) -> Values | None:
        row = self._changed.before
        return None if row is None else self._relation.values(self.key, row)

    @cached_property
    def _after_json(self) -> Json:
        assert self._after is not None, "what is told as changed is there"
        return orjson.dumps(self._relation.table.columns.shown(self._after))

    @cached_property
    def _removed_json(self) -> Json:
        assert self._before is not None, "what is removed was there"
        row = self._relation.table.columns.shown(self._before)
        return orjson.dumps({name: row[name] for name, _ in self._relation.table.key_parts})
