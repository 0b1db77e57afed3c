"""Row queries: reads of one view by key, filter and order, answered as a lookup of whole keys or page by page.

A filter is a set of predicates, given by the parameters `where`:

    where=total>=1000           a column, one of = != < <= > >=, and a value, written as in a key
    where=window.start<2026-01-31T00:00:00Z
    where=country is null       or: is not null

Predicates are and-ed. A null meets no predicate but `is null`, not even !=. The longest matching column name and the
longest matching operator win; no blanks stand around the operator.

Rows may come in the order of a column instead of by key: rows with equal values then stand in key order, null is the
least of all values, NaN the greatest.

All pages of a query belong to the batch of the first page, read from the replica's history. A page in key order reads a
bounded number of rows: with a selective filter the page may be short or empty, and still have a cursor. A page in
column order reads all rows in the query's range, for every page, so the range is bounded and the limit is low.

A cursor is the place where the next page begins. A cursor gives access to nothing, because every page is answered
within the scope of its principal. A scoped token gets the cursor encrypted (`access.position_codec`), since the last
key that a page read may belong to another principal.

    cursor := base64url without padding of: 6 bytes of blake2b over the rest, JSON
    JSON   := {"v": 1, "view": …, "batch": …, "fingerprint": …, "after": key in hex, "question": hash}

`fingerprint` identifies the run of the batch; `after` is the last key that the page read.
"""

from __future__ import annotations

import base64
import heapq
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from stateside.core.errors import CursorInvalid, KeyInvalid, RequestInvalid
from stateside.replica.keys import NO_KEY
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.rows.columns import ColumnSet, Comparable, Found, Show, Values
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.relation import EVERYTHING, ROWS_MAX, Relation, RelationSnapshot
from stateside.serving.rows.shape import Shape, StoredTable
from stateside.serving.rows.values import following, is_whole
from stateside.serving.stamp import Source, Stamp
from stateside.spark_state.unsafe_row import Value

CONDITIONS_MAX = 16
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {  # longer ones first: `<=` begins with `<`
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_NULL = {" is null": True, " is not null": False}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One predicate: a column compared with a value; without an operator a null test with `value` as its result."""

    column: Comparable
    operator: str | None
    value: Value

    @classmethod
    def parse(cls, columns: ColumnSet, text: str) -> Comparison:
        """Parses a predicate; RequestInvalid if the text is none."""
        for column in columns.named_first(text):
            rest = text[len(column.name) :]
            if rest in _NULL:
                return cls(column, None, _NULL[rest])
            for sign in _OPERATORS:
                if rest.startswith(sign):
                    return cls(column, sign, column.parse(rest[len(sign) :]))
                if rest.lstrip().startswith(sign):
                    value = rest.lstrip().removeprefix(sign).strip()
                    raise RequestInvalid(
                        f"The filter {text[:80]!r} has blanks around its operator",
                        next_step=f"Write {f'{column.name}{sign}{value}'[:80]!r}",
                    )
        raise RequestInvalid(
            f"{text[:80]!r} is no filter: a column that can be compared, one of {' '.join(_OPERATORS)}, and a value",
            next_step=columns.advice(),
        )

    def meets(self, values: Values) -> bool:
        found = self.column.of(values)
        if self.operator is None:
            return (found is None) == self.value
        rank = self.column.rank
        return found is not None and _OPERATORS[self.operator](rank(found), rank(self.value))


@dataclass(frozen=True, slots=True)
class Filter:
    """Predicates, all of which a row must meet."""

    conditions: tuple[Comparison, ...] = ()

    @classmethod
    def parse(cls, columns: ColumnSet, texts: Sequence[str]) -> Filter:
        """Parses the predicates; RequestInvalid for a malformed one, or more than `CONDITIONS_MAX`."""
        if len(texts) > CONDITIONS_MAX:
            raise RequestInvalid(
                f"There are {len(texts)} filters, more than {CONDITIONS_MAX}", next_step="Ask with fewer, or with SQL"
            )
        return cls(tuple(Comparison.parse(columns, text) for text in texts))

    def meets(self, values: Values) -> bool:
        return all(condition.meets(values) for condition in self.conditions)

    def narrowed(self, table: StoredTable, key: Sequence[Value]) -> list[Value]:
        """A key prefix extended by the parts that this filter fixes, so that fewer rows are read."""
        found = list(key)
        equal = {each.column.name: each.value for each in self.conditions if each.operator == "="}
        for name, _ in following(table.key_parts, found):
            if name not in equal or isinstance(equal[name], float):  # 0.0 equals -0.0, but their keys differ
                break
            try:
                table.codec.encode([*found, equal[name]])
            except KeyInvalid:  # no row has such a value: the predicate rejects every row
                break
            found.append(equal[name])
        return found


@dataclass(frozen=True, slots=True)
class Order:
    """Ascending or descending order by a column."""

    column: Comparable
    descending: bool

    @classmethod
    def parse(cls, columns: ColumnSet, text: str) -> Order:
        """`total`, or `-total` for descending; RequestInvalid if there is no such comparable column."""
        descending = text.startswith("-")
        return cls(columns.comparable(text[1:] if descending else text), descending)

    def first(self, rows: Iterable[Found], count: int) -> list[Found]:
        """The first `count` rows in this order, of rows in key order. Memory: `count` rows."""
        choose = heapq.nlargest if self.descending else heapq.nsmallest  # both are stable
        return choose(count, rows, key=lambda row: self._rank(row))

    def is_behind(self, row: Found, last: Found) -> bool:
        """Whether a row comes after another one."""
        rank, before = self._rank(row), self._rank(last)
        if rank == before:
            return row[0] > last[0]
        return (rank < before) == self.descending

    def _rank(self, row: Found) -> tuple[object, ...]:
        return self.column.rank(self.column.of(row[1]))


LIMIT_DEFAULT = 100  # of a scan; a query by key has ROWS_MAX
LIMIT_MAX = ROWS_MAX
ORDERED_LIMIT_MAX = 1_000  # caps the default as well


@dataclass(frozen=True, slots=True)
class RowQuery:
    """The rows with this key prefix that meet the filter, `limit` per page.

    `texts` is the unparsed query; its digest ties a cursor to the query.
    """

    texts: Sequence[Any]
    key: Sequence[Value]
    filter: Filter
    order: Order | None
    show: Show
    limit: int
    source: Source
    point: bool  # one whole key and nothing else: answered without a scan

    @classmethod
    def parse(
        cls,
        relation: Relation,
        parts: Sequence[str],
        wheres: Sequence[str],
        parameters: Mapping[str, str],
        limit: int | None,
    ) -> RowQuery:
        """Parses key parts and parameters; KeyInvalid or RequestInvalid if they make no query."""
        shape = relation.shape
        order = Order.parse(shape.columns, parameters["order"]) if "order" in parameters else None
        chosen = {name: parameters.get(name) for name in ("order", "columns")}
        given = parameters.get("source")
        source = key_source(relation, given) if parts else relation.source(given, "live")
        key = shape.parse_key(parts)
        return cls(
            texts=[list(parts), list(wheres), chosen, source],
            key=key,
            filter=Filter.parse(shape.columns, wheres),
            order=order,
            show=parse_columns(shape, parameters.get("columns")),
            limit=_limit(limit, ordered=order is not None, by_key=bool(parts)),
            source=source,
            point=not wheres and order is None and is_whole(shape.key_parts, key),
        )

    def digest(self) -> str:
        """A hash of the query, equal for all its pages; the limit may differ from page to page."""
        return blake2b(json.dumps(self.texts).encode(), digest_size=8).hexdigest()


def parse_columns(shape: Shape, text: str | None) -> Show:
    """The renderer for the columns in a comma-separated parameter; for all columns without the parameter."""
    return shape.columns.shown if text is None else shape.columns.shower(text.split(","))


def _limit(given: int | None, *, ordered: bool, by_key: bool) -> int:
    largest = ORDERED_LIMIT_MAX if ordered else LIMIT_MAX
    if given is None:
        return min(largest, ROWS_MAX if by_key else LIMIT_DEFAULT)
    if not 1 <= given <= largest:
        raise RequestInvalid(
            f"The parameter limit is {given}, not a whole number from 1 to {largest}",
            next_step="Ask for more rows page by page, with the cursor of the page before",
        )
    return given


def key_source(relation: Relation, given: str | None) -> Source:
    """The source of rows by key; by default both, if the view has an archive."""
    return relation.source(given, "live" if relation.reader.sealed is None else "both")


KEYS_MAX = 1_000
KEYS_AT_ONCE_MAX = 100  # beyond, a thread looks the keys up while other requests are answered


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """For each key its row or None, and the stamp of the snapshot."""

    stamp: Stamp
    rows: list[dict[str, Any] | None]


def parse_keys(shape: Shape, document: Mapping[str, Any]) -> Sequence[Sequence[Value]]:
    """The keys in a lookup's body.

    RequestInvalid unless the body is a list of up to 1,000 keys; KeyInvalid if one is no whole key of the view.
    """
    given = document.get("keys")
    if set(document) != {"keys"} or not isinstance(given, list) or not given:
        raise RequestInvalid("The body is no list of keys", next_step='Send {"keys": [["part", …], …]}')
    if len(given) > KEYS_MAX:
        raise RequestInvalid(
            f"There are {len(given):,} keys, more than {KEYS_MAX:,}", next_step="Send them in several requests"
        )
    return shape.json_keys.parse_all(given)


async def lookup(
    relation: Relation,
    keys: Sequence[Sequence[Value]],
    floor: Floor,
    *,
    as_of: AsOf = NEWEST,
    show: Show | None = None,
    source: Source = "live",
) -> LookupAnswer:
    """The rows of these whole keys; waits like every read. AccessDenied for a key out of scope."""
    if relation.scope is not EVERYTHING:
        keys = [relation.scope.narrowed(key) for key in keys]
    codec = relation.table.codec
    encoded = codec.encode_all(keys) if codec.types else [NO_KEY] * len(keys)
    shower = show or relation.table.columns.shown

    def answer(at: RelationSnapshot) -> LookupAnswer:
        found = at.find(keys, encoded)
        shown = dict(zip(found, shower.all(list(found.values())), strict=True))
        return LookupAnswer(at.stamp, list(map(shown.get, encoded)))

    aside = len(keys) > KEYS_AT_ONCE_MAX or source != "live"
    return await relation.read(floor, answer, as_of, source=source, aside=aside)


VERSION: Final = 1
_CHECK_BYTES = 6


@dataclass(frozen=True, slots=True)
class Cursor:
    """The view, batch and query of the next page, and the key after which the page begins."""

    view: str
    batch: int
    fingerprint: str
    after: bytes
    question: str
    generation: int = 1  # named from the second one on: a cursor of an older Stateside is of the first one

    def __str__(self) -> str:
        document = {"v": VERSION, **asdict(self), "after": self.after.hex()}
        if self.generation == 1:
            del document["generation"]
        content = json.dumps(document, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_check(content) + content).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, view: str, question: str) -> Cursor:
        """Parses a cursor; CursorInvalid if the text is damaged, or belongs to another view or query."""
        try:
            cursor = cls._parse(text)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _invalid("This is no cursor, or a damaged one") from None
        if (cursor.view, cursor.question) != (view, question):
            raise _invalid("This cursor belongs to another view or another question")
        return cursor

    @classmethod
    def generation_of(cls, text: str) -> int | None:
        """The generation of the view that a cursor belongs to; None for a text that `parse` refuses."""
        try:
            return cls._parse(text).generation
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    @classmethod
    def _parse(cls, text: str) -> Cursor:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        check, content = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        document: dict[str, Any] = json.loads(content)
        cursor = cls(
            view=str(document["view"]),
            batch=int(document["batch"]),
            fingerprint=str(document["fingerprint"]),
            after=bytes.fromhex(document["after"]),
            question=str(document["question"]),
            generation=int(document.get("generation", 1)),
        )
        if cursor.batch < 0 or check != _check(content) or str(cursor) != text:  # one canonical text per cursor
            raise ValueError(text)
        return cursor


def _check(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECK_BYTES).digest()


def _invalid(what: str) -> CursorInvalid:
    return CursorInvalid(
        what, next_step="Give it as the page before had it, with the same question; or begin again, without it"
    )


ROWS_LOOKED_AT_MAX = 20_000  # per page in key order
ORDERED_ROWS_MAX = 200_000  # in the range of a query in column order


@dataclass(frozen=True, slots=True)
class ScanPage:
    """One page of rows, the stamp of the query's batch, and the cursor of the next page."""

    stamp: Stamp
    rows: list[dict[str, Any]]
    cursor: str | None


async def page(
    relation: Relation, question: RowQuery, floor: Floor, *, as_of: AsOf = NEWEST, cursor: str | None = None
) -> ScanPage:
    """The first page of a query or, with a cursor, the page where the cursor points.

    The floor applies to the first page only: later pages stay on its batch. CursorInvalid for a cursor of another
    query, HistoryGone once the replica's history has dropped the batch, AccessDenied for a key of another principal.
    """
    narrowed = partial(question.filter.narrowed, relation.table)
    key = narrowed(relation.scope.narrowed(narrowed(question.key)))  # a filter too may name another principal's key
    after, positions = None, floor.positions
    if cursor is not None:
        begun = Cursor.parse(positions.parse_cursor(cursor), relation.table.catalogue.view, question.digest())
        if as_of.batch not in (None, begun.batch):
            raise CursorInvalid(
                f"This cursor is of batch {begun.batch}, and {as_of.batch} was asked for",
                next_step="Ask with the cursor alone: it stays on its batch",
            )
        floor, as_of, after = Floor(wait_ms=floor.wait_ms), AsOf(begun.batch, begun.fingerprint), begun.after

    def read(at: RelationSnapshot) -> ScanPage:
        return _Scan(at, question, key, positions).page(after)

    long = question.order is not None or (question.source != "live" and not question.key)
    async with relation.reader.ordering if long else nullcontext():
        return await relation.read(floor, read, as_of, source=question.source, aside=True)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A query in one snapshot."""

    at: RelationSnapshot
    question: RowQuery
    key: Sequence[Value]
    positions: PositionCodec

    def page(self, after: bytes | None) -> ScanPage:
        """The page after a key; the first page for None."""
        self.at.check_held(self.key, scattered=True)
        in_order = self._in_key_order if self.question.order is None else self._in_order
        rows, last = in_order(after)
        shown = [self.question.show(values) for values in rows]
        return ScanPage(self.at.stamp, shown, None if last is None else self._cursor(last))

    def _in_key_order(self, after: bytes | None) -> tuple[list[Values], bytes | None]:
        """Rows, and the last key read if more rows follow."""
        rows: list[Values] = []
        last = None
        for looked_at, (key, values) in enumerate(self.at.range(self.key, b"" if after is None else after + b"\x00")):
            if last is not None and (len(rows) == self.question.limit or looked_at == ROWS_LOOKED_AT_MAX):
                return rows, last
            last = key
            if self._wanted(values):
                rows.append(values)
        return rows, None

    def _in_order(self, after: bytes | None) -> tuple[list[Values], bytes | None]:
        """Like `_in_key_order`, in the query's order; the key is that of the last row returned."""
        order, limit = self.question.order, self.question.limit
        assert order is not None
        rows = self._all_rows()
        if after is not None:
            last = self._row_of(after)
            rows = (row for row in rows if order.is_behind(row, last))
        first = order.first(rows, limit + 1)
        return [values for _, values in first[:limit]], first[limit - 1][0] if len(first) > limit else None

    def _all_rows(self) -> Iterator[Found]:
        for looked_at, row in enumerate(self.at.range(self.key)):
            if looked_at == ORDERED_ROWS_MAX:
                raise RequestInvalid(
                    f"More than {ORDERED_ROWS_MAX:,} rows would have to be put in order",
                    next_step="Narrow them down by the key's first parts, ask in key order, or ask with SQL",
                )
            if self._wanted(row[1]):
                yield row

    def _row_of(self, key: bytes) -> Found:
        """The last row of the previous page, in the same batch."""
        found = next(self.at.range(self.key, key), None)
        if found is None or found[0] != key or not self._wanted(found[1]):
            raise CursorInvalid("The row that this cursor names is not there", next_step="Begin again, without it")
        return found

    def _wanted(self, values: Values) -> bool:
        return self.at.scope.has(values) and self.question.filter.meets(values)

    def _cursor(self, last: bytes) -> str:
        batch = self.at.snapshot.batch()
        assert batch is not None, "a stamp was made of it"
        stamp, digest = self.at.stamp, self.question.digest()
        cursor = Cursor(stamp.view, batch.batch, batch.fingerprint, last, digest, stamp.generation)
        return self.positions.cursor(str(cursor))
