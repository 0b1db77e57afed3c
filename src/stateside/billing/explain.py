"""Explaining a balance: the very events behind a period of a customer's bill, adding up to it exactly, or an error.

The events are those of the journal up to the answer's position, rated as the pipeline rates them. Where the query
de-duplicates, an event counts once by its id. Of a closed period the first so many count as its invoice says; those
after them came too late, and stand in a note or in a late invoice, which is named. Each event is shown with what it
added: where the price depends on the period's total, that is f(quantity up to and with it) - f(quantity before it), in
the journal's order, line by line.

So the amounts add up to the line's by themselves, and a page that was read stays true: what stands at an offset does
not change when more events come in. Pages may therefore be read at different batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.bills import BillPeriod
from stateside.billing.book import Book, BookKeeper
from stateside.billing.issued import Line
from stateside.billing.model import CLOCK
from stateside.billing.rating import PAYLOAD, events_table, rate
from stateside.checkpoint.log import Checkpoint
from stateside.errors import RequestInvalid, StateError
from stateside.journal import Journal
from stateside.journal.payload import payload_columns
from stateside.journal.segment import PARTITION
from stateside.positions import Position
from stateside.serving.stamp import iso_time

PAGE_EVENTS_DEFAULT: Final = 100
PAGE_EVENTS_MAX: Final = 1_000
CUSTOMERS_KEPT: Final = 32  # whose events are remembered, so that the next page need not look for them again

_EVENT_COLUMNS: Final = ("id", "entity", "type", "time", "appended", "payload")
_DEDUPLICATION: Final = "dedupe"  # what Spark calls such operators

Kind = tuple[str, str]  # type, plan: a line


@dataclass(frozen=True, slots=True)
class Behind:
    """An event behind a balance, with what it added to its line, and the document that it came too late for another."""

    offset: int
    id: str
    type: str
    plan: str
    time_us: int
    quantity: int
    amount_micros: int
    document: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an answer."""
        return {
            "offset": self.offset,
            "id": self.id,
            "type": self.type,
            "plan": self.plan,
            "time": iso_time(self.time_us),
            "quantity": self.quantity,
            "amount_micros": self.amount_micros,
            "late": self.document is not None,
            "document": self.document,
        }


@dataclass(frozen=True, slots=True)
class Counted:
    """A rated event of the period, before it is known what it added."""

    offset: int
    id: str
    type: str
    plan: str
    time_us: int
    quantity: int


class Explainer:
    """Explains balances from a folder's journal. Any thread may ask."""

    def __init__(self, journal: Journal, keeper: BookKeeper, checkpoint: Checkpoint) -> None:
        self._journal, self._keeper, self._checkpoint = journal, keeper, checkpoint
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, pa.Table]] = OrderedDict()

    def behind(self, customer: str, period: BillPeriod, position: Position) -> list[Behind]:
        """All events behind a period of the customer's bill as it stands at this position, in the journal's order.

        StateError, with the first difference, if they do not add up to it.
        """
        stop = _stop(position)
        with self._lock:
            events = self._events(customer, stop)
            book = self._keeper.at(stop)
        counted = list(_of_period(rate(events, book), book, period))
        found = list(_priced(_chosen(counted, period, _deduplicates(self._checkpoint)), book))
        _check(customer, period, found)
        return found

    def _events(self, customer: str, stop: int) -> pa.Table:
        """The customer's events before an offset, out of those known and what the journal has since."""
        start, known = self._known.pop(customer, (0, events_table(self._journal, 0, 0)))
        new = _events_of(self._journal, customer, start, stop) if start < stop else []
        table = pa.concat_tables([known, *new]).combine_chunks()
        self._known[customer] = max(start, stop), table
        while len(self._known) > CUSTOMERS_KEPT:
            self._known.popitem(last=False)
        return table.filter(pc.less(table["offset"], stop))


def _events_of(journal: Journal, customer: str, start: int, stop: int) -> Iterator[pa.Table]:
    """A customer's events in a range, as `rating.events_table` has them; nobody else's payloads are parsed."""
    for first, batch in journal.batches(start, stop):
        rows = np.flatnonzero(pc.equal(batch.column("entity"), customer).to_numpy(zero_copy_only=False))
        if len(rows):
            mine = batch.take(pa.array(rows))
            fields = payload_columns(mine.column("payload"), PAYLOAD)
            columns = {"offset": pa.array(first + rows, pa.int64())}
            columns |= {name: mine.column(name) for name in _EVENT_COLUMNS}
            yield pa.table(columns | {name: fields[name] for name in PAYLOAD.names})


def page(found: Sequence[Behind], after: int, limit: int, type_: str | None = None) -> tuple[list[Behind], int | None]:
    """The events with higher offsets than this, so many at most, and after which offset to go on; None at the end."""
    rest = [event for event in found if event.offset > after and type_ in (None, event.type)]
    shown = rest[:limit]
    return shown, shown[-1].offset if len(rest) > limit else None


def _deduplicates(checkpoint: Checkpoint) -> bool:
    """Whether the query drops events whose ids it has seen: then it has an operator for that."""
    names = (checkpoint.operator_metadata(number)[0] for number in checkpoint.operators())
    return any(str(found.get("operatorInfo", {}).get("operatorName")).startswith(_DEDUPLICATION) for found in names)


def _stop(position: Position) -> int:
    others = [partition for partition in position.as_dict() if partition != PARTITION]
    if others:
        raise RequestInvalid(
            f"The events of partition {others[0]!r} are not in this folder's journal, and cannot be shown",
            next_step="Bills of events from Kafka are explained where the topic is",
        )
    return position[PARTITION]


def _of_period(rated: pa.Table, book: Book, period: BillPeriod) -> Iterator[Counted]:
    """The events that count for the period, in the journal's order."""
    usage = rated.filter(pc.and_(pc.is_null(rated["reason"]), pc.not_equal(rated["type"], CLOCK)))
    times_us = np.asarray(usage["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), np.int64)
    plans = usage["plan"].to_pylist()
    ends_us = np.zeros(len(plans), np.int64)
    for plan in set(plans):
        rows = np.array([name == plan for name in plans])
        ends_us[rows] = book.plans[plan].cycle.ends(times_us[rows])
    columns = [usage[name].to_pylist() for name in ("offset", "id", "type", "plan", "quantity")]
    for end_us, time_us, offset, id_, type_, plan, quantity in zip(ends_us, times_us, *columns, strict=True):
        if end_us == period.period.end_us and book.plans[plan].currency == period.currency:
            yield Counted(offset, id_, type_, plan, int(time_us), quantity)


def _chosen(counted: Sequence[Counted], period: BillPeriod, deduplicated: bool) -> Iterator[tuple[Counted, str | None]]:
    """Those that count, each with the document that it came too late for its period's end into, if so."""
    on_time = _on_time(counted, period, deduplicated)
    for event in on_time:
        yield event, None
    taken = {event.offset for event in on_time}
    last = on_time[-1].offset if on_time else -1
    for document in period.documents:
        for id_ in document.event_ids:
            found = next(
                (one for one in counted if one.id == id_ and one.offset > last and one.offset not in taken), None
            )
            if found is not None:
                taken.add(found.offset)
                yield found, document.number


def _on_time(counted: Sequence[Counted], period: BillPeriod, deduplicated: bool) -> list[Counted]:
    """The first of each id; of a closed period as many of these as its invoice has: all others came later."""
    firsts = {one.id: one for one in reversed(counted)}
    found = [one for one in counted if not deduplicated or firsts[one.id] is one]
    if period.state == "draft":
        return found
    invoiced = sum(document.events for document in period.documents if document.is_invoice and not document.late)
    return found[:invoiced]


def _priced(chosen: Iterable[tuple[Counted, str | None]], book: Book) -> Iterator[Behind]:
    """What each event added to its line: on-time ones first, as they were priced first."""
    quantities: dict[Kind, int] = defaultdict(int)
    found = []
    for event, document in chosen:
        kind, plan = (event.type, event.plan), book.plans[event.plan]
        before = quantities[kind]
        quantities[kind] = before + event.quantity
        added = plan.amount_micros(event.type, quantities[kind]) - plan.amount_micros(event.type, before)
        values = (event.offset, event.id, event.type, event.plan, event.time_us, event.quantity)
        found.append(Behind(*values, added, document))
    yield from sorted(found, key=lambda event: event.offset)


def _check(customer: str, period: BillPeriod, found: Sequence[Behind]) -> None:
    """StateError unless the events are the period's lines, to the micro."""
    sums: dict[Kind, list[int]] = defaultdict(lambda: [0, 0, 0])
    for event in found:
        line = sums[event.type, event.plan]
        for place, value in enumerate((event.quantity, 1, event.amount_micros)):
            line[place] += value
    lines = {(line.type, line.plan): _numbers(line) for line in period.lines}
    for kind in sorted({*sums, *lines}):
        _compare(customer, period, kind, lines.get(kind, [0, 0, 0]), sums.get(kind, [0, 0, 0]))


def _numbers(line: Line) -> list[int]:
    return [line.quantity, line.events, line.amount_micros]


def _compare(customer: str, period: BillPeriod, kind: Kind, shown: Sequence[int], found: Sequence[int]) -> None:
    if list(shown) != list(found):
        raise StateError(
            f"The events of {customer!r} in {period.period.label} do not add up to the bill: "
            f"of {kind[0]} under {kind[1]} the bill has {_words(shown)}, the journal {_words(found)}",
            next_step="Run `stateside audit` on this folder: it shows which of the two is wrong",
        )


def _words(numbers: Sequence[int]) -> str:
    return "{:,} in {:,} events, {} micros".format(*numbers)


def as_dict(period: BillPeriod, shown: Sequence[Behind], more: int | None) -> Mapping[str, Any]:
    """A page as the API shows it."""
    return {
        "period": period.period.label,
        "period_end": iso_time(period.period.end_us),
        "currency": period.currency,
        "state": period.state,
        "amount_micros": period.amount_micros,
        "events_behind": period.events,
        "events": [event.as_dict() for event in shown],
        "cursor": more,
    }
