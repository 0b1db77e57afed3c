"""The subscription: the rows of a view, or of one of its rollups, that a watcher follows.

The principal's scope is part of the subscription. Scope columns at the front of the key extend the prefix; the others
are checked in each row: a row that leaves the scope is sent as removed, a row never in the scope is not sent. A key
outside the scope is refused, and so is a rollup that adds up rows of several owners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from stateside.replica.changes import Changed, Extent
from stateside.replica.store import Snapshot
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.changes.sse import Json
from stateside.serving.rows.scope import EVERYTHING, Scope, check_held
from stateside.serving.rows.shape import Shape
from stateside.serving.stamp import Stamp
from stateside.spark_state.unsafe_row import Value

Row = dict[str, Any]
Values = Sequence[Value]


@dataclass(frozen=True, slots=True)
class Subscription:
    """All keys of the rows, or of a rollup by these columns, that begin with a prefix, restricted to the scope.

    Watchers with equal subscriptions get the same events. `wanted` is the scope's content, for comparison; `positions`
    encodes positions.
    """

    prefix: bytes
    rollup: tuple[str, ...] | None = None
    wanted: tuple[tuple[str, Value], ...] = ()
    scope: Scope = field(default=EVERYTHING, compare=False)
    positions: PositionCodec = PLAIN

    @classmethod
    def ask(
        cls,
        shape: Shape,
        key: Sequence[str],
        rollup: Sequence[str] | None,
        scope: Scope,
        positions: PositionCodec = PLAIN,
    ) -> Subscription:
        """The subscription to keys that begin with these parts, narrowed to the scope.

        KeyInvalid or RequestInvalid for unknown parts or columns, AccessDenied for keys outside the scope.
        """
        wanted = tuple(sorted(scope.wanted.items()))
        if rollup is None:
            return cls(shape.codec.encode(scope.narrowed(shape.parse_key(key))), None, wanted, scope, positions)
        coarser = scope.narrowed_coarser(rollup, shape.rollups.parse_key(rollup, key))
        return cls(shape.rollups.codec(rollup).encode(coarser), tuple(rollup), wanted, scope, positions)

    def extent(self, shape: Shape, snapshot: Snapshot) -> Extent:
        """The snapshot's range of these keys; RequestInvalid if the snapshot does not keep the rollup."""
        number = None if self.rollup is None else shape.rollups.number(snapshot, self.rollup)
        return Extent(self.prefix, number)

    def check_held(self, shape: Shape, stamp: Stamp) -> None:
        """Raise Misdirected if the rows are in another shard than the replica's. A rollup has the replica's shard."""
        if self.rollup is None:
            check_held(stamp, shape.codec, self.prefix)


class Looks:
    """Converts stored rows of a view, or of one of its rollups, to shown rows, and checks their scope."""

    def __init__(self, shape: Shape, rollup: Sequence[str] | None) -> None:
        self._rollup = rollup
        self.values: Callable[[bytes, bytes], Values]
        self.shown: Callable[[Values], Row]
        if rollup is None:
            self.values, self.shown = shape.values, shape.columns.shown
            self._key = [column.name for column in shape.catalogue.key]
        else:
            self.values, self.shown = shape.rollups.values(rollup), shape.rollups.shower(rollup)
            self._key = list(rollup)

    def key(self, values: Values) -> Row:
        """The key columns of a row, as shown."""
        row = self.shown(values)
        return {name: row[name] for name in self._key}

    def has(self, scope: Scope, values: Values) -> bool:
        if self._rollup is None:
            return scope.has(values)
        return all(values[self._key.index(name)] == value for name, value in scope.wanted.items())


class ShownChange:
    """One change as shown to watchers; its parts are computed on demand, once for all watchers."""

    def __init__(self, changed: Changed, looks: Looks) -> None:
        self.key = changed.key
        self._changed, self._looks = changed, looks

    def to(self, scope: Scope) -> tuple[bool, Json] | None:
        """The change within a scope: True and the row, or False and a removed key; None outside the scope."""
        if self._after is not None and self._looks.has(scope, self._after):
            return True, self._after_json
        if self._before is not None and self._looks.has(scope, self._before):
            return False, self._removed_json
        return None

    @cached_property
    def _after(self) -> Values | None:
        row = self._changed.after
        return None if row is None else self._looks.values(self.key, row)

    @cached_property
    def _before(self) -> Values | None:
        row = self._changed.before
        return None if row is None else self._looks.values(self.key, row)

    @cached_property
    def _after_json(self) -> Json:
        assert self._after is not None, "what is told as changed is there"
        return orjson.dumps(self._looks.shown(self._after))

    @cached_property
    def _removed_json(self) -> Json:
        assert self._before is not None, "what is removed was there"
        return orjson.dumps(self._looks.key(self._before))
