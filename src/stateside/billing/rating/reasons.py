"""What is wrong with an event that does not count, as a sentence for whoever repairs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.book import Book
from stateside.billing.book.texts import Longs
from stateside.billing.model import FUTURE_US_MAX, QUANTITY_MAX, USAGE_TYPES

_HOURS: Final = FUTURE_US_MAX // 3_600_000_000


def details(events: pa.Table, book: Book, rated: dict[str, pa.Array], versions: Longs) -> pa.Array:
    """A sentence for each event with a reason that needs one; null for the others."""
    found = pa.nulls(events.num_rows, pa.string())
    for reason in pc.unique(rated["reason"].drop_null()).to_pylist():
        if reason in _SENTENCES or reason.endswith("-refused"):
            rows = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(rated["reason"], reason), False)))
            case = _Case(events, book, rated, versions, rows)
            mask = np.zeros(events.num_rows, np.bool_)
            mask[rows] = True
            found = pc.replace_with_mask(found, pa.array(mask), _SENTENCES.get(reason, _refusal)(case))
    return found


class _Case:
    """The events with one reason."""

    def __init__(self, events: pa.Table, book: Book, rated: dict[str, pa.Array], versions: Longs, rows: Longs) -> None:
        self.book = book
        self._events, self._rated = events, rated
        self._rows = pa.array(rows)
        self._versions = versions[rows]

    def event(self, name: str) -> pa.Array:
        """A column of the events, as texts."""
        return _texts(self._events[name].take(self._rows))

    def bill_type(self) -> pa.Array:
        return _texts(self._rated["type"].take(self._rows))

    def offsets(self) -> list[int]:
        found: list[int] = self._events["offset"].take(self._rows).to_pylist()
        return found

    def version(self, field: str) -> pa.Array:
        """A field of the version that each event is rated by."""
        return pa.array([getattr(version, field) for version in self.book.versions], pa.string()).take(
            pa.array(self._versions)
        )


def _texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """As texts in one chunk; nulls as the word `null`."""
    whole = pa.concat_arrays([pa.array([], column.type), *column.chunks]) if hasattr(column, "chunks") else column
    return pc.fill_null(whole.cast(pa.string()), "null")


def _sentence(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _refusal(case: _Case) -> pa.Array:
    sentences = {one.offset: one.detail for one in case.book.refused}
    return pa.array([sentences[offset] for offset in case.offsets()], pa.string())


def _malformed(case: _Case) -> pa.Array:
    return _sentence(
        case.event("type"),
        " needs a payload with a whole `quantity`, of packages and fees a `name`; read were quantity ",
        case.event("quantity"),
        ", name ",
        case.event("name"),
    )


def _absurd(case: _Case) -> pa.Array:
    types = case.event("type")
    numbers = pc.index_in(types, pa.array(USAGE_TYPES, pa.string()))
    largest = pa.array([f"{QUANTITY_MAX[type_]} {unit}" for type_, unit in USAGE_TYPES.items()]).take(numbers)
    return _sentence("A quantity of ", case.event("quantity"), " is more than ", largest, " in one event")


_SENTENCES: Final[dict[str, Callable[[_Case], pa.Array]]] = {
    "unknown-type": lambda case: _sentence(
        case.event("type"), f" is no type of usage: there are {', '.join(USAGE_TYPES)}"
    ),
    "malformed": _malformed,
    "future-dated": lambda case: _sentence(
        "Its time ",
        case.event("time"),
        f" lies more than {_HOURS} h after its append at ",
        case.event("appended"),
    ),
    "negative-quantity": lambda case: _sentence("The quantity ", case.event("quantity"), " is below 0"),
    "absurd-quantity": _absurd,
    "unknown-customer": lambda case: _sentence(
        case.event("entity"), " was assigned to no plan for ", case.event("time"), " when the event came in"
    ),
    "unknown-plan": lambda case: _sentence(
        "The plan of ", case.event("entity"), " had no version for ", case.event("time"), " when the event came in"
    ),
    "not-in-plan": lambda case: _sentence(case.version("id"), " has no price for ", case.bill_type()),
    "wrong-currency": lambda case: _sentence(
        "The event says ", case.event("currency"), ", ", case.version("id"), " has ", case.version("currency")
    ),
}
