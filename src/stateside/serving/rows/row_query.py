"""A row query: key prefix, filter, order, columns, limit and source of a read of one view.

A filter is a set of predicates, given by the parameters `where`:

    where=total>=1000           a column, one of = != < <= > >=, and a value, written as in a key
    where=window.start<2026-01-31T00:00:00Z
    where=country is null       or: is not null

Predicates are and-ed. A null meets no predicate but `is null`, not even !=. The longest matching column name and the
longest matching operator win; no blanks stand around the operator.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, get_args

from stateside.core.errors import KeyInvalid, RequestInvalid
from stateside.serving.rows.order import Order
from stateside.serving.rows.shape import Shape
from stateside.serving.rows.values import following, is_whole
from stateside.serving.rows.view_columns import ColumnSet, Comparable, Show, Values
from stateside.serving.rows.view_reader import ROWS_MAX, ViewReader
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

    def narrowed(self, shape: Shape, key: Sequence[Value]) -> list[Value]:
        """A key prefix extended by the parts that this filter fixes, so that fewer rows are read."""
        found = list(key)
        equal = {each.column.name: each.value for each in self.conditions if each.operator == "="}
        for name, _ in following(shape.key_parts, found):
            if name not in equal or isinstance(equal[name], float):  # 0.0 equals -0.0, but their keys differ
                break
            try:
                shape.codec.encode([*found, equal[name]])
            except KeyInvalid:  # no row has such a value: the predicate rejects every row
                break
            found.append(equal[name])
        return found


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
        reader: ViewReader,
        parts: Sequence[str],
        wheres: Sequence[str],
        parameters: Mapping[str, str],
        limit: int | None,
    ) -> RowQuery:
        """Parses key parts and parameters; KeyInvalid or RequestInvalid if they make no query."""
        shape = reader.shape
        order = Order.parse(shape.columns, parameters["order"]) if "order" in parameters else None
        chosen = {name: parameters.get(name) for name in ("order", "columns")}
        source = parse_source(reader, parameters.get("source"), by_key=bool(parts))
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


def parse_source(reader: ViewReader, given: str | None, *, by_key: bool) -> Source:
    """The source of the rows; by default both, if the view has an archive and the query a key."""
    if given is None:
        return "both" if reader.sealed is not None and by_key else "live"
    if given not in get_args(Source):
        raise RequestInvalid(
            f"The parameter source is {given[:80]!r}", next_step=f"Give one of {', '.join(get_args(Source))}"
        )
    if given != "live" and reader.sealed is None:
        raise RequestInvalid(
            f"The view {reader.shape.catalogue.view!r} has no archive", next_step="Ask with source=live, or without"
        )
    if given != "live" and not by_key:
        raise RequestInvalid("Sealed rows are asked for by key", next_step="Give its first parts, or ask with SQL")
    return given  # type: ignore[return-value]
