"""Lists in a replica: one row per entry, under the list's key and the entry's index from 0.

Spark's changelog does not have the length of a list: it has entries to append, or entries that replace all others. So
for a view of a list a translator returns `Entries` under the list's key, and only the transaction that applies them,
which sees the list, turns them into rows: `settled`. All later steps (rollups, history) have plain keys and rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from stateside.replica.key_table import OrderedRows
from stateside.replica.keys import KeyCodec
from stateside.spark_state.state_variables import INDEX

_INDEX_CODEC = KeyCodec([INDEX.type])


@dataclass(frozen=True, slots=True)
class Entries:
    """A change of a list: rows to append or, with `replacing`, to put in place of all entries."""

    rows: tuple[bytes, ...]
    replacing: bool = False


Plain = tuple[bytes, bytes | None]
Change = tuple[bytes, bytes | Entries | None]  # a key and its new row, or a list's key and its change


def plain(changes: list[Change]) -> list[Plain] | None:
    """The changes if they are not of lists; else None. All changes of one view are of one kind."""
    of_lists = bool(changes) and isinstance(changes[0][1], Entries)
    return None if of_lists else cast(list[Plain], changes)


def settled(changes: Iterable[Change], rows: OrderedRows) -> list[Plain]:
    """The changes as plain keys and rows, given the present rows: lists entry by entry, other changes unchanged."""
    given = list(changes)
    as_they_are = plain(given)
    if as_they_are is not None:
        return as_they_are
    lists: dict[bytes, _List] = {}
    for key, change in given:
        assert isinstance(change, Entries), "a view of a list has nothing else"
        if key not in lists:
            lists[key] = _List(_length(rows, key))
        lists[key].take(change)
    return [plain for key, each in lists.items() for plain in each.changes(key)]


@dataclass(slots=True)
class _List:
    """A list during a batch: its former length, how many of its entries stay, and the entries after them."""

    before: int
    stay: int = field(init=False)
    added: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stay = self.before

    def take(self, change: Entries) -> None:
        if change.replacing:
            self.stay, self.added = 0, []
        self.added += change.rows

    def changes(self, key: bytes) -> Iterator[Plain]:
        end = self.stay + len(self.added)
        yield from _placed(key, self.stay, self.added)
        yield from _placed(key, end, [None] * max(0, self.before - end))


def _placed(key: bytes, first: int, rows: Sequence[bytes | None]) -> Iterator[Plain]:
    return ((key + _INDEX_CODEC.encode([place]), row) for place, row in enumerate(rows, first))


def _length(rows: OrderedRows, key: bytes) -> int:
    last = rows.last(key)
    if last is None:
        return 0
    (place,) = _INDEX_CODEC.decode(last[len(key) :])
    assert isinstance(place, int), "a place is a number"
    return place + 1
