"""A row query: key prefix, filter, order, columns, limit and source of a read of one view.

A filter is a set of predicates, given by the parameters `where`:

    where=total>=1000           a column, one of = != < <= > >=, and a value, written as in a key
    where=window.start<2026-01-31T00:00:00Z
    where=country is null       or: is not null

Rows may come in the order of a column instead of by key: rows with equal values then stand in key order, null is the
least of all values, NaN the greatest.

Predicates are and-ed. A null meets no predicate but `is null`, not even !=. The longest matching column name and the
longest matching operator win; no blanks stand around the operator.
"""

from __future__ import annotations

import heapq
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from stateside.core.errors import KeyInvalid, RequestInvalid
from stateside.serving.rows.columns import ColumnSet, Comparable, Found, Show, Values
from stateside.serving.rows.relation import ROWS_MAX, Relation
from stateside.serving.rows.shape import Shape, StoredTable
from stateside.serving.rows.values import following, is_whole
from stateside.serving.stamp import Source
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
