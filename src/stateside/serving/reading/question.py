"""A question: which rows of a view are asked for, in which order, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, get_args

from stateside.checkpoint.unsafe_row import Value
from stateside.errors import RequestInvalid
from stateside.serving.reading.columns import Show
from stateside.serving.reading.filters import Filter
from stateside.serving.reading.order import Order
from stateside.serving.reading.reader import ROWS_MAX, ViewReader
from stateside.serving.reading.shape import Shape
from stateside.serving.reading.values import is_whole
from stateside.serving.stamp import Source

LIMIT_DEFAULT = 100  # of a scan; of a question by key it is ROWS_MAX
LIMIT_MAX = ROWS_MAX
ORDERED_LIMIT_MAX = 1_000  # also where it is not given


@dataclass(frozen=True, slots=True)
class Question:
    """The rows whose key begins with these values and that meet the filter, so many a page.

    `texts` is what it was parsed from: its pages are told from those of other questions by that.
    """

    texts: Sequence[Any]
    key: Sequence[Value]
    filter: Filter
    order: Order | None
    show: Show
    limit: int
    source: Source
    point: bool  # one whole key, and nothing else: answered without a scan

    @classmethod
    def parse(
        cls,
        reader: ViewReader,
        parts: Sequence[str],
        wheres: Sequence[str],
        parameters: Mapping[str, str],
        limit: int | None,
    ) -> Question:
        """What the parts of a key and the parameters ask for; KeyInvalid or RequestInvalid if that cannot be asked."""
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
        """The same for all pages of a question; the limit may differ from page to page."""
        return blake2b(json.dumps(self.texts).encode(), digest_size=8).hexdigest()


def parse_columns(shape: Shape, text: str | None) -> Show:
    """What shows the columns that a parameter names, joined by commas; all of them without it."""
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
    """Where rows are looked for; both, by default, if there is an archive and a key to find them by."""
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
