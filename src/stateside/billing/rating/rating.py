"""Rating: the plan version of each event and whether the event counts, as a pure function of the events and the book.

Rating computes no money: quantities are summed first, and the plan's tiers price the sum. An event that does not count
gets a reason, the first of these that holds, and a sentence about the fault for the operator who repairs it:

| reason | |
|---|---|
| `plan-refused`, `assign-refused` | a publication or an assignment that broke a rule (`plan_rules`) |
| `reference` | an accepted publication or assignment: no usage |
| `unknown-type` | no type of usage |
| `malformed` | no quantity, a field of the wrong type, or a package or fee without a name |
| `future-dated` | more than `FUTURE_US_MAX` beyond its append time: it would close everybody's period |
| `negative-quantity`, `absurd-quantity` | below 0, above `QUANTITY_MAX` |
| `unknown-customer` | not assigned to any plan at the event's time, by the assignments before the event |
| `unknown-plan` | the plan has no version in effect at the event's time, by the publications before the event |
| `not-in-plan` | the version has no price for the type |
| `wrong-currency` | the event names another currency than the version |

A clock tick has the reason `future-dated` or none. Two more reasons, `repeated` and `id-conflict`, depend on when
periods closed; `invoicing.repeats` assigns them to late events when a batch is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.accounts import NONE
from stateside.billing.book.book import Book
from stateside.billing.book.texts import Bools, Longs
from stateside.billing.model import (
    ASSIGN,
    CLOCK,
    FUTURE_US_MAX,
    LATENESS,
    LATENESS_US_MAX,
    NAMED_TYPES,
    PLAN,
    QUANTITY_MAX,
    USAGE_TYPES,
)
from stateside.journal import Log, payload_columns

_HOURS: Final = FUTURE_US_MAX // 3_600_000_000


def details(events: pa.Table, book: Book, rated: dict[str, pa.Array], versions: Longs) -> pa.Array:
    """A sentence for each event whose reason needs one; null for the others."""
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
        """A column of the events, as strings."""
        return _texts(self._events[name].take(self._rows))

    def bill_type(self) -> pa.Array:
        return _texts(self._rated["type"].take(self._rows))

    def offsets(self) -> list[int]:
        found: list[int] = self._events["offset"].take(self._rows).to_pylist()
        return found

    def version(self, field: str) -> pa.Array:
        """A field of the version that rates each event."""
        return pa.array([getattr(version, field) for version in self.book.versions], pa.string()).take(
            pa.array(self._versions)
        )


def _texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """As strings in one chunk; nulls become the word `null`."""
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
REASONS: Final = (
    "plan-refused",
    "assign-refused",
    "reference",
    "unknown-type",
    "malformed",
    "future-dated",
    "negative-quantity",
    "absurd-quantity",
    "unknown-customer",
    "unknown-plan",
    "not-in-plan",
    "wrong-currency",
)
REFERENCE: Final = "reference"
_COUNTS: Final = len(REASONS)  # the number for "no reason"
_TIME = pa.timestamp("us", tz="UTC")
PAYLOAD: Final = pa.schema([("quantity", pa.int64()), ("name", pa.string()), ("currency", pa.string())])
RATED: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("customer", pa.string()),
        ("type", pa.string()),
        ("time", _TIME),
        ("quantity", pa.int64()),
        ("plan", pa.string()),
        ("time_zone", pa.string()),
        ("cycle", pa.string()),
        ("anchor_day", pa.int32()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
_TYPES: Final = (*USAGE_TYPES, PLAN, ASSIGN, CLOCK, LATENESS)
_PLAN, _ASSIGN, _CLOCK, _LATENESS = (_TYPES.index(type_) for type_ in (PLAN, ASSIGN, CLOCK, LATENESS))
_USAGE_TYPES: Final = len(USAGE_TYPES)
_NAMED: Final = np.array([type_ in NAMED_TYPES for type_ in _TYPES] + [False])
_MAX: Final = np.array([*QUANTITY_MAX.values(), 0, 0, 0, 0, 0])
assert tuple(QUANTITY_MAX) == tuple(USAGE_TYPES)


def rate(events: pa.Table, book: Book) -> pa.Table:
    """The events, in order, with the columns of `RATED`. The book must cover the events."""
    columns = _Columns(events)
    assert not len(columns.offsets) or columns.offsets.max() < book.covers, "the book does not cover the events"
    versions, plans = book.rated_by(columns.customers, columns.times_us, columns.offsets)
    prices = _Prices(book)
    price = prices.numbers(columns)
    reasons = _reasons(columns, book, versions, plans, prices, price)
    rated = np.where(reasons == _COUNTS, versions, NONE)
    known = [(version.id, version.cycle) for version in book.versions]
    table = {
        "offset": events["offset"],
        "id": events["id"],
        "customer": events["entity"],
        "type": prices.bill_types(columns, price),
        "time": events["time"],
        "quantity": events["quantity"],
        "plan": _taken([id_ for id_, _ in known], rated),
        "time_zone": _taken([cycle.time_zone for _, cycle in known], rated),
        "cycle": _taken([cycle.kind for _, cycle in known], rated),
        "anchor_day": _taken([cycle.anchor_day for _, cycle in known], rated, pa.int32()),
        "reason": _taken(list(REASONS), np.where(reasons == _COUNTS, NONE, reasons)),
    }
    table["detail"] = details(events, book, table, versions)
    return pa.table({name: column.cast(RATED.field(name).type) for name, column in table.items()}, schema=RATED)


def is_bad(rated: pa.Table) -> pa.ChunkedArray:
    """Which rated events break a rule: all with a reason, except accepted reference data."""
    return pc.fill_null(pc.not_equal(rated["reason"], REFERENCE), False)


def events_table(journal: Log, start: int, stop: int) -> pa.Table:
    """The events with offsets start <= offset < stop, as input for `rate`."""
    batches = journal.batches(start, stop)
    return joined(events_of(batch, np.arange(first, first + batch.num_rows)) for first, batch in batches)


def events_of(batch: pa.RecordBatch, offsets: Longs) -> pa.Table:
    """The events of a journal batch, at these offsets, with the payload's fields as columns."""
    fields = payload_columns(batch.column("payload"), PAYLOAD)
    named = {name: batch.column(name) for name in _EVENT_NAMES}
    return pa.table({"offset": offsets, **named, **{name: fields[name] for name in PAYLOAD.names}})


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Concatenated tables of events; an empty table for none."""
    return pa.concat_tables([_NO_EVENTS, *tables])


_EVENT_NAMES: Final = ("id", "entity", "type", "time", "appended", "payload")
_NO_EVENTS: Final = pa.schema(
    [
        ("offset", pa.int64()),
        *((name, _TIME if name in ("time", "appended") else pa.string()) for name in _EVENT_NAMES),
        *PAYLOAD,
    ]
).empty_table()


class _Columns:
    def __init__(self, events: pa.Table) -> None:
        self.customers = events["entity"]
        self.types = events["type"]
        self.names = events["name"]
        self.currencies = events["currency"]
        self.offsets = _longs(events["offset"])
        self.times_us, self.appended_us = (_longs(events[name].cast(pa.int64())) for name in ("time", "appended"))
        self.quantities = _longs(pc.fill_null(events["quantity"], 0))
        self.has_quantity = _bools(events["quantity"].is_valid())
        self.type_numbers = _numbers(self.types, list(_TYPES))
        self.type_numbers[self.type_numbers == NONE] = len(_TYPES)  # the last entry of every table by type
        self.named = _NAMED[self.type_numbers]
        lengths = pc.fill_null(pc.binary_length(self.names), 0)
        self.nameless = self.named & (_longs(lengths) == 0) if self.named.any() else self.named


class _Prices:
    """All types on a bill with a price in any version, numbered, and a matrix of versions and types."""

    def __init__(self, book: Book) -> None:
        self._types = list(dict.fromkeys(type_ for version in book.versions for type_ in version.prices))
        numbers = {type_: number for number, type_ in enumerate(self._types)}
        self._in_plan = np.zeros((len(book.versions) + 1, len(self._types) + 1), np.bool_)
        for row, version in enumerate(book.versions):
            self._in_plan[row, [numbers[type_] for type_ in version.prices]] = True

    def numbers(self, columns: _Columns) -> Longs:
        """The number of each event's type on the bill; NONE for a type without a price in any version."""
        unnamed = [self._number(type_) for type_ in _TYPES]
        numbers = np.array([*unnamed, NONE])[columns.type_numbers]
        for type_ in NAMED_TYPES:
            rows = np.flatnonzero(columns.type_numbers == _TYPES.index(type_))
            if len(rows):
                names = [known.partition(":")[2] for known in self._types if known.startswith(f"{type_}:")]
                places = np.array([*(self._number(f"{type_}:{name}") for name in names), NONE])
                numbers[rows] = places[_numbers(columns.names.take(pa.array(rows)), names)]
        return numbers

    def in_plan(self, versions: Longs, numbers: Longs) -> Bools:
        """Whether the version prices the type; False if either is NONE, which indexes the last, empty entry."""
        found: Bools = self._in_plan[versions, numbers]
        return found

    def bill_types(self, columns: _Columns, numbers: Longs) -> pa.Array:
        """Each event's type on the bill; the event's own type for non-usage or a missing name."""
        types = _taken(self._types, numbers)
        others = numbers == NONE
        if not others.any():
            return types
        rows = pa.array(np.flatnonzero(others))
        own, names = columns.types.take(rows), pc.fill_null(columns.names.take(rows), "")
        joined = pc.binary_join_element_wise(own, names, ":")
        has_name = pa.array((columns.named & ~columns.nameless)[others])
        return pc.replace_with_mask(types, pa.array(others), _whole(pc.if_else(has_name, joined, own)))

    def _number(self, type_: str) -> int:
        return self._types.index(type_) if type_ in self._types else NONE


def _reasons(columns: _Columns, book: Book, versions: Longs, plans: Longs, prices: _Prices, price: Longs) -> Longs:
    """The number of each event's reason. Reasons are set from the last to the first, so the first one wins."""
    reasons = np.full(len(columns.offsets), _COUNTS)
    usage = columns.type_numbers < _USAGE_TYPES
    future = columns.times_us > columns.appended_us + FUTURE_US_MAX

    def hold(reason: str, where: Bools) -> None:
        reasons[where] = REASONS.index(reason)

    hold("wrong-currency", _other_currency(columns, book, versions))
    hold("not-in-plan", ~prices.in_plan(versions, price))
    hold("unknown-plan", versions == NONE)
    hold("unknown-customer", plans == NONE)
    hold("absurd-quantity", columns.quantities > _MAX[columns.type_numbers])
    hold("negative-quantity", columns.quantities < 0)
    reasons[~usage] = _COUNTS  # the reasons above apply to usage only
    hold("future-dated", future)
    hold("malformed", usage & (~columns.has_quantity | columns.nameless))
    lateness = columns.type_numbers == _LATENESS
    in_range = columns.has_quantity & (columns.quantities >= 0) & (columns.quantities <= LATENESS_US_MAX)
    in_effect = lateness & in_range & (columns.offsets == 0)
    hold("unknown-type", (columns.type_numbers == len(_TYPES)) | (lateness & ~in_effect))
    reference = (columns.type_numbers == _PLAN) | (columns.type_numbers == _ASSIGN) | in_effect
    hold("reference", reference)
    if book.refused and reference.any():
        refused = np.isin(columns.offsets, book.refused_offsets)
        hold("assign-refused", refused & (columns.type_numbers == _ASSIGN))
        hold("plan-refused", refused & (columns.type_numbers == _PLAN))
    return reasons


def _other_currency(columns: _Columns, book: Book, versions: Longs) -> Bools:
    """Whether an event names another currency than its version."""
    if columns.currencies.null_count == len(columns.currencies):
        return np.zeros(len(versions), np.bool_)
    currencies = list(dict.fromkeys(version.currency for version in book.versions))
    of_version = np.array([*(currencies.index(version.currency) for version in book.versions), NONE])
    named = _numbers(columns.currencies, currencies)
    other: Bools = named != of_version[versions]
    return _bools(columns.currencies.is_valid()) & other


def _taken(values: Sequence[str] | Sequence[int], numbers: Longs, type_: pa.DataType | None = None) -> pa.Array:
    """The value at each number, null for NONE."""
    chosen = pa.array(numbers, mask=numbers == NONE)
    return pa.array(values, type_ or pa.string()).take(chosen)


def _numbers(texts: pa.ChunkedArray, values: list[str]) -> Longs:
    """The index of each text among the values; NONE for other texts and nulls."""
    found = pc.index_in(texts, pa.array(values, pa.string()).cast(texts.type))
    return _longs(pc.fill_null(found, NONE)).astype(np.int64)


def _longs(column: pa.ChunkedArray) -> Longs:
    return np.asarray(_whole(column))


def _bools(column: pa.ChunkedArray) -> Bools:
    return np.asarray(_whole(column)).astype(np.bool_)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def is_usage(rated: pa.Table) -> pa.ChunkedArray:
    """Which rated events are usage that breaks no rule: the events on bills."""
    return pc.and_(pc.is_null(rated["reason"]), pc.not_equal(rated["type"], CLOCK))
