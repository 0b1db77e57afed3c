"""The scope of a read: the rows of a view that a principal may see, and the keys that a sharded replica holds.

A principal may be limited to rows with certain values in certain columns (`Principal.rows_of`). Where these are the
key's first columns, only the matching range of keys is read. A key of another principal is refused instead of answered
with no rows: otherwise a wrong token would look like a customer without rows.

A replica with one shard of the keys refuses keys of other shards, and never reports them as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from stateside.core.errors import AccessDenied, Misdirected, RequestInvalid
from stateside.replica.keys import KeyCodec
from stateside.replica.shard import Share
from stateside.serving.rows.shape import Shape
from stateside.serving.rows.values import Leaf, following
from stateside.serving.rows.view_columns import Comparable, Values
from stateside.serving.stamp import Stamp
from stateside.spark_state.types import parse_type
from stateside.spark_state.unsafe_row import Value


class Scope:
    """The rows of one view whose columns have these values; all rows without values."""

    def __init__(self, columns: Sequence[tuple[Comparable, Value]] = (), key: Sequence[Leaf] = ()) -> None:
        self._columns, self._key = tuple(columns), tuple(key)
        self.wanted: Mapping[str, Value] = {column.name: value for column, value in columns}

    @classmethod
    def of(cls, shape: Shape, where: Mapping[str, str]) -> Scope:
        """The scope for a `Principal.rows_of`; AccessDenied if a value does not fit its column's type."""
        if not where:
            return EVERYTHING
        key = [(column.name, parse_type(column.asked_type)) for column in shape.catalogue.key]
        return cls([_parsed(shape, name, text) for name, text in where.items()], key)

    def has(self, values: Values) -> bool:
        """Whether a row is in scope."""
        return all(column.of(values) == value for column, value in self._columns)

    def narrowed(self, key: Sequence[Value]) -> list[Value]:
        """A key or key prefix, extended by the parts that this scope fixes; AccessDenied for a key out of scope."""
        return self._narrowed(self._key, key)

    def narrowed_coarser(self, columns: Sequence[str], key: Sequence[Value]) -> list[Value]:
        """Like `narrowed` for a rollup; AccessDenied too if the rollup adds up rows out of scope."""
        if not set(self.wanted) <= set(columns):
            raise AccessDenied(
                f"A rollup by {','.join(columns) or 'nothing'} has rows that this token does not reach",
                next_step=f"Ask for one by {', '.join(self.wanted)} as well",
            )
        types = dict(self._key)
        return self._narrowed([(name, types[name]) for name in columns] if self.wanted else (), key)

    def check_all_of(self, key: Sequence[Value]) -> None:
        """AccessDenied unless all rows with this key prefix are in scope."""
        self.narrowed(key)
        given = {name for (name, _), _ in zip(self._key, key, strict=False)}
        if not set(self.wanted) <= given:
            raise AccessDenied(
                "This key has rows that this token does not reach", next_step="Ask for the rows: these are filtered"
            )

    def _narrowed(self, columns: Sequence[Leaf], key: Sequence[Value]) -> list[Value]:
        found = list(key)
        if not self.wanted:
            return found
        for (name, _), value in zip(columns, found, strict=False):
            if name in self.wanted and value != self.wanted[name]:
                raise AccessDenied(
                    f"This token does not reach rows with another {name!r} than its own",
                    next_step="Ask for your own, or with another token",
                )
        for name, _ in following(columns, found):
            if name not in self.wanted:
                break
            found.append(self.wanted[name])
        return found


EVERYTHING: Final = Scope()


def _parsed(shape: Shape, name: str, text: str) -> tuple[Comparable, Value]:
    try:
        column = shape.columns.comparable(name)
        return column, column.parse(text)
    except RequestInvalid:
        raise AccessDenied(
            f"This token reaches rows by their column {name!r}, which cannot have its value in this view",
            next_step="Ask a view where it can, or with another token",
        ) from None


_parse = lru_cache(maxsize=64)(Share.parse)


def check_held(stamp: Stamp, codec: KeyCodec, prefix: bytes, *, scattered: bool = True) -> None:
    """Misdirected if the replica holds a shard, and keys with this prefix belong to another shard.

    Keys with a prefix shorter than the leading column may be in any shard. The answer then covers this shard only, as
    the stamp says; with `scattered` False such a prefix is Misdirected as well.
    """
    if stamp.share is None:
        return
    leading = codec.leading_of(prefix)
    if leading is None and not scattered:
        raise not_whole(stamp)
    if leading is not None and not _parse(stamp.share).has(leading):
        raise Misdirected(
            f"This server holds share {stamp.share} of the view {stamp.view!r}, and this key is in another one",
            next_step="Ask a server that `location` names",
            view=stamp.view,
            leading=leading,
        )


def not_whole(stamp: Stamp) -> Misdirected:
    """The error for a query that only a server with all keys can answer."""
    return Misdirected(
        f"This server holds share {stamp.share} of the view {stamp.view!r}, and this is asked of all of its keys",
        next_step="Ask a server without a share; `location` names those that there are",
        view=stamp.view,
    )
