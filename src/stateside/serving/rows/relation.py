"""The relation: a view, or one of its rollups, as one principal sees it. Lookups, scans, sums, rollups, SQL and change
streams, of every protocol, read rows through a relation and in no other way.

- *Scope*. A principal may be limited to rows with certain values in certain columns (`Principal.rows_of`). Where these
  are the key's first columns, only the matching range of keys is read; other columns are compared in each row. A key of
  another principal is refused instead of answered with no rows: otherwise a wrong token would look like a customer
  without rows. A rollup that adds up rows out of scope is refused.
- *Source*. The live rows are those of one snapshot of the replica; the sealed rows have left the state for the archive
  (`archive`). A row is live or sealed, never both; with the source `both` each row is there exactly once.
- *Share*. A replica with one shard of the keys refuses keys of other shards, and never reports them as absent. The
  archive has the rows of all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from heapq import merge
from itertools import groupby, islice
from operator import add, and_, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import AccessDenied, KeyInvalid, Misdirected, RequestInvalid
from stateside.replica.changes import Changed
from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import unpack
from stateside.replica.shard import Share
from stateside.replica.store import Snapshot
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.rows.archive import Batches, no_such
from stateside.serving.rows.columns import Comparable, Found, Values
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.shape import Rollup, Shape, StoredTable
from stateside.serving.rows.sums import BucketRange
from stateside.serving.rows.values import Leaf, following, is_whole
from stateside.serving.stamp import Source, Stamp, iso_time
from stateside.spark_state.arrow_rows import arrow_type, plain
from stateside.spark_state.types import Decimal, Primitive
from stateside.spark_state.unsafe_row import Value
from stateside.views.aggregates import Tally

if TYPE_CHECKING:
    from stateside.serving.rows.view_reader import ViewReader

ROWS_MAX = 10_000

T = TypeVar("T")
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


class Scope:
    """The rows of one relation whose columns have these values; all rows without values."""

    def __init__(self, columns: Sequence[tuple[Comparable, Value]] = (), key: Sequence[Leaf] = ()) -> None:
        self._columns, self._key = tuple(columns), tuple(key)
        self.wanted: Mapping[str, Value] = {column.name: value for column, value in columns}

    @classmethod
    def of(cls, table: StoredTable, where: Mapping[str, str]) -> Scope:
        """The scope for a `Principal.rows_of`; AccessDenied if a value does not fit its column's type."""
        if not where:
            return EVERYTHING
        lacking = sorted(set(where) - set(table.by)) if table.by is not None else []
        if lacking:
            raise AccessDenied(
                f"A rollup by {','.join(table.by or ()) or 'nothing'} has rows that this token does not reach: it"
                f" lacks the column {lacking[0]!r}",
                next_step=f"Ask for one by {', '.join(where)} as well",
            )
        found = cls([_parsed(table, name, text) for name, text in where.items()], table.key_parts)
        try:
            table.codec.encode(found.narrowed([]))
        except KeyInvalid:  # too large for its column
            raise no_such(*next(iter(where.items()))) from None
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self.wanted == other.wanted

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.wanted)))

    def has(self, values: Values) -> bool:
        """Whether a row is in scope."""
        return all(column.of(values) == value for column, value in self._columns)

    def narrowed(self, key: Sequence[Value]) -> list[Value]:
        """A key or key prefix, extended by the parts that this scope fixes; AccessDenied for a key out of scope."""
        found = list(key)
        if not self.wanted:
            return found
        for (name, _), value in zip(self._key, found, strict=False):
            if name in self.wanted and value != self.wanted[name]:
                raise AccessDenied(
                    f"This token does not reach rows with another {name!r} than its own",
                    next_step="Ask for your own, or with another token",
                )
        for name, _ in following(self._key, found):
            if name not in self.wanted:
                break
            found.append(self.wanted[name])
        return found

    def check_all_of(self, key: Sequence[Value]) -> None:
        """AccessDenied unless all rows with this key prefix are in scope."""
        self.narrowed(key)
        given = {name for (name, _), _ in zip(self._key, key, strict=False)}
        if not set(self.wanted) <= given:
            raise AccessDenied(
                "This key has rows that this token does not reach", next_step="Ask for the rows: these are filtered"
            )

    def of_arrow(self, rows: Rows) -> Rows:
        """The rows in scope of those whose keys begin with `narrowed([])`."""
        for name, value in self._compared:
            rows = rows.filter(pc.equal(rows.column(name), value))
        return rows

    def predicate(self) -> pc.Expression | None:
        """The rows in scope, of a table with the view's columns; None for all."""
        equal = [pc.field(column.name) == _scalar(column, value) for column, value in self._columns]
        return reduce(and_, equal) if equal else None

    @cached_property
    def _compared(self) -> list[tuple[str, pa.Scalar]]:
        by_key = {name for (name, _), _ in zip(self._key, self.narrowed([]), strict=False)}
        return [(column.name, _scalar(column, value)) for column, value in self._columns if column.name not in by_key]


EVERYTHING: Final = Scope()


def _parsed(table: StoredTable, name: str, text: str) -> tuple[Comparable, Value]:
    try:
        column = table.columns.comparable(name)
        return column, column.parse(text)
    except RequestInvalid:
        raise no_such(name, text) from None


def _scalar(column: Comparable, value: Value) -> pa.Scalar:
    assert isinstance(column.type, Primitive | Decimal), "only fields of structs are comparable"
    try:
        return pa.scalar(plain(column.type, value), arrow_type(column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise no_such(column.name, str(value)) from None


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


@dataclass(frozen=True, slots=True)
class ViewAnswer:
    """Rows as objects by column name, and the stamp of their snapshot."""

    stamp: Stamp
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SumAnswer:
    """A range of buckets combined into one row, or no row; the range, if there is one; the stamp."""

    stamp: Stamp
    rows: list[dict[str, Any]]
    range: dict[str, str] | None
    buckets: int


class RowChange(NamedTuple):
    """A key with its row before and after: stored, or for a sealed row its values; None where there is none."""

    key: bytes
    before: bytes | Values | None
    after: bytes | Values | None

    @classmethod
    def of(cls, changed: Changed) -> RowChange:
        return cls(changed.key, changed.before, changed.after)


class Relation:
    """A view, or its rollup `by` some columns, as one principal sees it."""

    def __init__(self, reader: ViewReader, table: StoredTable | None = None, scope: Scope = EVERYTHING) -> None:
        self.reader, self.scope = reader, scope
        self.table: StoredTable = reader.shape if table is None else table

    @classmethod
    def of(cls, reader: ViewReader, holder: Principal = OPERATOR, by: Sequence[str] | None = None) -> Relation:
        """AccessDenied if the principal reaches no rows; RequestInvalid for a column that the view's key lacks."""
        shape = reader.shape
        table = shape if by is None else shape.rollup(by)
        return cls(reader, table, Scope.of(table, holder.rows_of(shape.catalogue.view, shape.columns.types)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relation) and self._same == other._same

    def __hash__(self) -> int:
        return hash(self._same)

    @property
    def _same(self) -> tuple[object, ...]:
        return self.reader, self.table.by, self.scope

    @property
    def shape(self) -> Shape:
        """The view's shape."""
        return self.reader.shape

    def source(self, given: str | None, default: Source) -> Source:
        """The source in a request; RequestInvalid if unknown, or for sealed rows of a view without an archive."""
        if given is None:
            return default
        sources: tuple[Source, ...] = ("live", "archive", "both")
        if given not in sources:
            raise RequestInvalid(
                f"The parameter source is {given[:80]!r}", next_step=f"Give one of {', '.join(sources)}"
            )
        if given != "live" and self.reader.sealed is None:
            raise RequestInvalid(
                f"The view {self.table.catalogue.view!r} has no archive", next_step="Ask with source=live, or without"
            )
        return given

    async def read(
        self,
        floor: Floor,
        read: Callable[[RelationSnapshot], T],
        as_of: AsOf = NEWEST,
        *,
        source: Source = "live",
        aside: bool = False,
    ) -> T:
        """The result of `read` on the first snapshot that reaches the floor; see `ViewReader.read`."""
        return await self.reader.read(
            floor, lambda snapshot, stamp: read(self.at(snapshot, stamp, source)), as_of, aside=aside
        )

    def at(self, snapshot: Snapshot, stamp: Stamp, source: Source = "live") -> RelationSnapshot:
        """The relation in one snapshot."""
        return RelationSnapshot(self, snapshot, replace(stamp, source=source) if source != "live" else stamp)

    def changed(
        self, now: Snapshot, span: Batches, key: Sequence[Value], source: Source, beyond: bytes | None = None
    ) -> Iterator[RowChange]:
        """The keys, in scope or not, whose row differs after the span from the row before it, in key order.

        `now` is the newest snapshot, whose history must reach back: else HistoryGone.
        """
        extent = self.table.extent(now, self.table.codec.encode(key))
        live = map(RowChange.of, extent.changed(now, span.after, span.upto, beyond))
        if source == "live":
            return live
        begin = b"" if beyond is None else beyond + b"\x00"
        sealed = self._sealed_in(span, key, begin)
        steps = ((span.upto, each) for each in live) if source == "both" else iter(())
        return (each for _, each in self._handed_over(steps, ((span.upto, row) for _, row in sealed)))

    def steps(
        self, now: Snapshot, span: Batches, key: Sequence[Value], source: Source
    ) -> Iterator[tuple[int, RowChange]]:
        """Every single change of the span, with its batch; by keys, and for each key in order. Errors as `changed`."""
        found = self.table.extent(now, self.table.codec.encode(key)).steps(now, span.after)
        live = ((batch, RowChange.of(each)) for batch, each in found)
        if source == "live":
            return live
        return self._handed_over(live if source == "both" else iter(()), self._sealed_in(span, key, b""))

    def _sealed_in(self, span: Batches, key: Sequence[Value], begin: bytes) -> Iterator[tuple[int, RowChange]]:
        assert self.reader.sealed is not None
        for row in self.reader.sealed.range(key, span, begin):
            yield row.batch, RowChange(row.key, None, row.values)

    def _handed_over(
        self, live: Iterator[tuple[int, RowChange]], sealed: Iterator[tuple[int, RowChange]]
    ) -> Iterator[tuple[int, RowChange]]:
        """Both in key order. A row that a batch seals leaves the state with that batch: one change, or none at all."""

        def place(step: tuple[int, RowChange]) -> tuple[bytes, int]:
            return step[1].key, step[0]

        for (_, batch), steps in groupby(merge(live, sealed, key=place), key=place):
            changes = [change for _, change in steps]
            before, after = changes[0].before, changes[-1].after
            if len(changes) == 1 or before is None or self.values(changes[0].key, before) != after:
                yield batch, RowChange(changes[0].key, before, after)

    def values(self, key: bytes, row: bytes | Values) -> Values:
        """The values of a row of a change."""
        return self.table.values(key, row) if isinstance(row, bytes) else row

    async def rows(self, key: Sequence[Value], floor: Floor, as_of: AsOf = NEWEST) -> ViewAnswer:
        """The live rows, at most `ROWS_MAX`, whose key begins with these values; waits for the floor."""
        key = self.scope.narrowed(key)

        def rows(at: RelationSnapshot) -> ViewAnswer:
            at.check_held(key, scattered=True)
            inside = (values for _, values in at.range(key) if self.scope.has(values))
            return ViewAnswer(at.stamp, _limited(map(self.table.columns.shown, inside)))

        return await self.read(floor, rows, as_of)

    async def sum(
        self,
        key: Sequence[Value],
        span: BucketRange,
        floor: Floor,
        as_of: AsOf = NEWEST,
        source: Source | None = None,
    ) -> SumAnswer:
        """The buckets of one key (the parts before the window) in a range, combined (see `sums`); waits for the floor.

        Without a source, the sealed buckets are added if the range begins before the live ones.
        """
        self.shape.sums.window(key)
        self.scope.check_all_of(key)
        aside = self.reader.sealed is not None and source != "live"
        return await self.read(floor, lambda at: at.sum(key, span, source), as_of, aside=aside)

    async def rollup(
        self,
        parts: Sequence[str],
        floor: Floor,
        as_of: AsOf = NEWEST,
        source: Source = "live",
        *,
        tallies: bool = False,
    ) -> ViewAnswer:
        """The rows of a rollup whose key begins with these parts; waits for the floor.

        With `tallies` each row has the numbers that make up its values instead: tallies of several shards can be added
        up, averages and rounded sums cannot. With sealed rows the columns in `RollupRows.apart_finished` are left out.
        """
        assert isinstance(self.table, Rollup), "a view has no tallies"
        if tallies and source != "live":
            raise RequestInvalid("Tallies are of live rows", next_step="Leave tallies out, or ask with source=live")
        key = self.scope.narrowed(self.table.parse_key(parts))
        return await self.read(
            floor, lambda at: at.rollup(key, tallies=tallies), as_of, source=source, aside=source != "live"
        )


class RelationSnapshot:
    """A relation in one snapshot of its replica, and the rows sealed up to the snapshot's batch."""

    def __init__(self, relation: Relation, snapshot: Snapshot, stamp: Stamp) -> None:
        self.relation, self.snapshot, self.stamp = relation, snapshot, stamp
        self.table, self.scope = relation.table, relation.scope
        self._sealed = relation.reader.sealed if stamp.source != "live" else None
        self._has_live = stamp.source != "archive"

    def check_held(self, key: Sequence[Value], *, scattered: bool) -> None:
        """Misdirected if keys with this prefix are in another shard, or for sealed rows in several."""
        if self.stamp.share is not None:
            prefix = self.table.codec.encode(key)
            check_held(self.stamp, self.table.codec, prefix, scattered=scattered and self._sealed is None)

    def find(self, keys: Sequence[Sequence[Value]], encoded: Sequence[bytes]) -> dict[bytes, Values]:
        """The rows of these whole keys of a view, by encoded key: live rows, then sealed ones of the other keys."""
        for key in encoded if self.stamp.share is not None else ():
            check_held(self.stamp, self.table.codec, key)
        found = self._live(keys, encoded) if self._has_live else {}
        if self._sealed is not None:
            missing = [key for key, each in zip(keys, encoded, strict=True) if each not in found]
            found |= self._sealed.of_keys(missing, Batches(self.stamp.batch)) if missing else {}
        return found if self.scope is EVERYTHING else {k: row for k, row in found.items() if self.scope.has(row)}

    def _live(self, keys: Sequence[Sequence[Value]], encoded: Sequence[bytes]) -> dict[bytes, Values]:
        shape, rows = self.relation.shape, self.snapshot.get_all(encoded)
        there = [each for each in zip(keys, encoded, rows, strict=True) if each[2] is not None]
        keys, encoded, found = zip(*there, strict=True) if there else ((), (), ())
        if not shape.keys_as_asked:
            keys = tuple(map(shape.codec.decode, encoded))
        return dict(zip(encoded, shape.values_of_all(keys, found), strict=True))

    def range(self, key: Sequence[Value], begin: bytes = b"") -> Iterator[Found]:
        """The rows, in scope or not, whose key begins with these values and is at least `begin`, in key order."""
        prefix = self.table.codec.encode(key)
        begin = max(prefix, begin)
        live: Iterator[Found] = iter(())
        if self._has_live:
            stored = self.table.extent(self.snapshot, prefix).rows(self.snapshot, begin)
            live = ((each, self.table.values(each, row)) for each, row in stored)
        if self._sealed is None:
            return live
        if is_whole(self.table.key_parts, key) and (found := list(live)):  # a key is live or sealed, never both
            return iter(found)
        sealed = self._sealed.range(key, Batches(self.stamp.batch), begin)
        return merge(live, ((row.key, row.values) for row in sealed), key=itemgetter(0))

    def sum(self, key: Sequence[Value], span: BucketRange, source: Source | None) -> SumAnswer:
        """See `Relation.sum`."""
        check_held(self.stamp, self.table.codec, self.table.codec.encode(key), scattered=False)
        sealed, batches = self.relation.reader.sealed, Batches(self.stamp.batch)
        rows = None if sealed is None else lambda begin, end: (r.values for r in sealed.range(key, batches, begin, end))
        found = self.relation.shape.sums.read(self.snapshot, self.stamp, key, span, source, rows)
        if found is None:
            return SumAnswer(replace(self.stamp, source=source or "live"), [], None, 0)
        over = (found.start_us, found.end_us)
        shown = [] if found.values is None else [self.table.columns.shown((*key, over, *found.values))]
        named = {"from": iso_time(over[0]), "to": iso_time(over[1])}
        return SumAnswer(replace(self.stamp, source=found.source), shown, named, found.buckets)

    def rollup(self, key: Sequence[Value], *, tallies: bool = False) -> ViewAnswer:
        """See `Relation.rollup`."""
        table, snapshot = self.table, self.snapshot
        assert isinstance(table, Rollup)
        stored: Iterable[tuple[bytes, Any]] = table.extent(snapshot, table.codec.encode(key)).rows(snapshot)
        apart: Sequence[str] = ()
        if self._sealed is not None:
            stored, apart = self._with_sealed(table, key, stored if self._has_live else ()), table.sums.apart_finished
        show_key = table.columns.shower(table.by)
        show = table.columns.shower([name for name in table.columns.types if name not in apart])
        own = ((table.codec.decode(each), row) for each, row in stored)
        inside = ((values, row) for values, row in own if self.scope.has(values))
        if tallies:
            return ViewAnswer(self.stamp, _limited(show_key(values) | _tallies(row) for values, row in inside))
        return ViewAnswer(self.stamp, _limited(show((*values, *table.sums.values(row))) for values, row in inside))

    def _with_sealed(
        self, table: Rollup, key: Sequence[Value], live: Iterable[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, Tally]]:
        """The numbers of live and sealed rows added up, by rollup key."""
        assert self._sealed is not None
        if self.stamp.share is not None:
            raise not_whole(self.stamp)
        shape, prefix = self.relation.shape, table.codec.encode(key)
        totals, names = {each: unpack(row) for each, row in live}, list(shape.columns.types)
        places = [names.index(name) for name in table.by]
        for sealed in self._sealed.rows(_leading(shape, table.by, key), Batches(self.stamp.batch)):
            parts = shape.codec.split(sealed.key)
            coarser = b"".join([parts[place] for place in places])
            if coarser.startswith(prefix):
                numbers = table.sums.finished_numbers(dict(zip(names, sealed.values, strict=True)))
                totals[coarser] = list(map(add, totals[coarser], numbers)) if coarser in totals else numbers
        return sorted(totals.items())

    def chunks(self, prefix: bytes, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All live rows of the newest batch with a key prefix, in scope or not, for `StoredTable.arrow`."""
        number = self.table.number(self.snapshot)
        if number is None:
            return self.snapshot.chunks(prefix, rows_max)
        return self.snapshot.rollup_chunks(number, prefix, rows_max)


def _leading(shape: Shape, by: Sequence[str], key: Sequence[Value]) -> list[Value]:
    """The first parts of a view's keys, as far as the parts of a rollup's key fix them."""
    fixed, found = dict(zip(by, key, strict=False)), list[Value]()
    while (rest := following(shape.key_parts, found)) and rest[0][0] in fixed:
        found.append(fixed[rest[0][0]])
    return found


def _tallies(row: bytes) -> dict[str, Any]:
    return {"tallies": [str(number) for number in unpack(row)]}  # as texts: JSON numbers would lose digits


def _limited(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    found = list(islice(rows, ROWS_MAX + 1))
    if len(found) > ROWS_MAX:
        raise KeyInvalid(f"More than {ROWS_MAX} rows begin with this key", next_step="Give more of its parts")
    return found
