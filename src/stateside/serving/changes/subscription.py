"""A question: which rows of a view, or of one of its rollups, a watcher is told of.

The holder's scope is part of it. Columns at the front of the key become part of the prefix; others are looked at in
each row: one that the holder may not have any more is told as removed, one that it never had is not told at all. A key
of somebody else is refused, and so is a rollup that adds up rows of several.
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
    """All keys of the rows, or of a rollup by these columns, that begin with a prefix; of these the scope's rows.

    Two watchers with the same question are told the same. `wanted` is what the scope wants, to be compared; `positions`
    is how they are shown positions.
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
        """The question for a key's first parts, as far as it may be asked.

        KeyInvalid or RequestInvalid if there are no such parts or columns, AccessDenied if that is somebody else's.
        """
        wanted = tuple(sorted(scope.wanted.items()))
        if rollup is None:
            return cls(shape.codec.encode(scope.narrowed(shape.parse_key(key))), None, wanted, scope, positions)
        coarser = scope.narrowed_coarser(rollup, shape.rollups.parse_key(rollup, key))
        return cls(shape.rollups.codec(rollup).encode(coarser), tuple(rollup), wanted, scope, positions)

    def extent(self, shape: Shape, snapshot: Snapshot) -> Extent:
        """Where a snapshot has these keys; RequestInvalid if it does not keep the rollup."""
        number = None if self.rollup is None else shape.rollups.number(snapshot, self.rollup)
        return Extent(self.prefix, number)

    def check_held(self, shape: Shape, stamp: Stamp) -> None:
        """Misdirected if the rows are in another share than the replica's. Of a rollup it has its share's."""
        if self.rollup is None:
            check_held(stamp, shape.codec, self.prefix)


class Looks:
    """What rows of a view, or of one of its rollups, look like, and whose they are."""

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
        """Of a row the key's columns, as they stand in an answer."""
        row = self.shown(values)
        return {name: row[name] for name in self._key}

    def has(self, scope: Scope, values: Values) -> bool:
        """Whether a row belongs to a scope."""
        if self._rollup is None:
            return scope.has(values)
        return all(values[self._key.index(name)] == value for name, value in scope.wanted.items())


class ShownChange:
    """One change as watchers are told it; whatever of it is needed is made once, for all of them."""

    def __init__(self, changed: Changed, looks: Looks) -> None:
        self.key = changed.key
        self._changed, self._looks = changed, looks

    def to(self, scope: Scope) -> tuple[bool, Json] | None:
        """For who has this scope: True and the row, or False and a key that is gone; None if it is not theirs."""
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
