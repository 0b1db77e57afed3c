"""A question: which rows of a view, or of one of its rollups, a watcher is told of.

The holder's scope is part of it. Columns at the front of the key become part of the prefix; others are looked at in
each row: one that the holder may not have any more is told as removed, one that it never had is not told at all. A key
of somebody else is refused, and so is a rollup that adds up rows of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from stateside.errors import AccessDenied
from stateside.replica.changes import Changed, Extent
from stateside.replica.store import Snapshot
from stateside.serving.access.holder import Holder
from stateside.serving.changes.event import Json
from stateside.serving.reading.shape import Shape
from stateside.serving.reading.values import Leaf, leaves, parse

Row = dict[str, Any]
Where = tuple[tuple[str, str], ...]  # columns, with the texts that rows must have there


@dataclass(frozen=True, slots=True)
class Question:
    """All keys of the rows, or of a rollup by these columns, that begin with a prefix; of these the rows that fit.

    Two watchers with the same question are told the same.
    """

    prefix: bytes
    rollup: tuple[str, ...] | None = None
    where: Where = ()

    @classmethod
    def ask(cls, shape: Shape, key: Sequence[str], rollup: Sequence[str] | None, holder: Holder) -> Question:
        """The question for a key's first parts, as far as the holder may ask it.

        KeyInvalid or RequestInvalid if there are no such parts or columns, AccessDenied if that is somebody else's.
        """
        scope = holder.rows_of(shape.catalogue.view, _columns(shape))
        if rollup is None:
            shape.parse_key(key)
            parts, where = _scoped(key, list(leaves(shape.key_parts)), scope)
            return cls(shape.codec.encode(shape.parse_key(parts)), None, where)
        shape.rollups.parse_key(rollup, key)
        _check_rollup(shape.catalogue.view, rollup, scope)
        types = dict(shape.key_parts)
        parts, where = _scoped(key, [(name, types[name]) for name in rollup], scope)
        return cls(shape.rollups.codec(rollup).encode(shape.rollups.parse_key(rollup, parts)), tuple(rollup), where)

    def extent(self, shape: Shape, snapshot: Snapshot) -> Extent:
        """Where a snapshot has these keys; RequestInvalid if it does not keep the rollup."""
        number = None if self.rollup is None else shape.rollups.number(snapshot, self.rollup)
        return Extent(self.prefix, number)


class Looks:
    """What rows of a view, or of a rollup, look like to watchers."""

    def __init__(self, shape: Shape, rollup: Sequence[str] | None) -> None:
        self._show = shape.row if rollup is None else shape.rollups.shown(rollup)
        self._key = [column.name for column in shape.catalogue.key] if rollup is None else list(rollup)

    def row(self, key: bytes, row: bytes) -> Row:
        """A row as it stands in an answer."""
        return self._show(key, row)

    def key(self, row: Row) -> Row:
        """Of such a row the key's columns."""
        return {name: row[name] for name in self._key}


class ShownChange:
    """One change as watchers are told it; whatever of it is needed is made once, for all of them."""

    def __init__(self, changed: Changed, looks: Looks) -> None:
        self.key = changed.key
        self._changed, self._looks = changed, looks

    def to(self, where: Where) -> tuple[bool, Json] | None:
        """For who has rows with these values: True and the row, or False and a key that is gone; None if not theirs."""
        if self._after is not None and fits(self._after, where):
            return True, self._after_json
        if self._before is not None and fits(self._before, where):
            return False, self._removed_json
        return None

    @cached_property
    def _after(self) -> Row | None:
        row = self._changed.after
        return None if row is None else self._looks.row(self.key, row)

    @cached_property
    def _before(self) -> Row | None:
        row = self._changed.before
        return None if row is None else self._looks.row(self.key, row)

    @cached_property
    def _after_json(self) -> Json:
        return orjson.dumps(self._after)

    @cached_property
    def _removed_json(self) -> Json:
        assert self._before is not None, "what is removed was there"
        return orjson.dumps(self._looks.key(self._before))


def fits(row: Row, where: Where) -> bool:
    """Whether a row has these values."""
    return all(_text(row[column]) == text for column, text in where)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _columns(shape: Shape) -> list[str]:
    catalogue = shape.catalogue
    named = [each.name for each in catalogue.key] + [each.name for each in catalogue.columns]
    return named + [each.name for each in catalogue.computed]


def _scoped(key: Sequence[str], parts: Sequence[Leaf], scope: Mapping[str, str]) -> tuple[list[str], Where]:
    """The key's parts, with those of the scope that follow on them, and what is left of the scope."""
    given, left = list(key), dict(scope)
    for (name, type_), part in zip(parts, key, strict=False):
        if name in left and parse(name, type_, part) != parse(name, type_, left.pop(name)):
            raise AccessDenied(
                f"This token does not reach the key that begins with {part[:80]!r}", next_step="Ask for your own"
            )
    while len(given) < len(parts) and parts[len(given)][0] in left:
        given.append(left.pop(parts[len(given)][0]))
    return given, tuple(sorted(left.items()))


def _check_rollup(view: str, rollup: Sequence[str], scope: Mapping[str, str]) -> None:
    others = sorted(set(scope) - set(rollup))
    if others:
        raise AccessDenied(
            f"This token reaches rows of {view!r} by their column {others[0]!r}, over which this rollup adds up",
            next_step=f"Ask for a rollup that has {others[0]!r}, or with another token",
        )
