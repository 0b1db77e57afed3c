"""Explaining a balance: the events behind a period of a customer's bill, which add up exactly, or an error.

The events are those of the journal up to the answer's position, rated as the pipeline rates them. If the query
de-duplicates, an event counts once by its id. In a closed period the first N events count, N being the invoice's number
of events; later ones came too late, and are in a note or in a late invoice, which is named. Each event has the amount
that it added: where the price depends on the period's total, f(quantity including the event) - f(quantity before the
event), in the journal's order, line by line.

So the amounts add up to the line's by construction, and a page stays true: the content at an offset does not change
when more events arrive. Pages may therefore be read at different batches.

The *course* of a period (`PeriodTrend`) has the amount and number of these events day by day. Days are in the plan's
time zone, and an event counts on the day of its event time, not of its arrival. The *forecast* extrapolates calls,
messages and data at the daily rate so far, and prices the quantities by the plan, with its allowance and tiers.
Packages, fees and credits stay as they are: more of them may or may not come. *So far* is up to the job's clock, which
is its newest event's time. In the first tenth of a period there is no forecast.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.answers.bills import BillPeriod, rounding_of
from stateside.billing.answers.document_store import Line
from stateside.billing.answers.period_names import PublishedPlans
from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.calendar import Period, local
from stateside.billing.invoicing.amounts import longs, period_ends
from stateside.billing.model import GRACE_US
from stateside.billing.money import checked, round_micros
from stateside.billing.rating.rating import PAYLOAD, events_table, is_usage, rate
from stateside.core import Position
from stateside.core.errors import StateError
from stateside.journal import Log, payload_columns
from stateside.serving import iso_time
from stateside.spark_state import Checkpoint

CUSTOMERS_KEPT: Final = 32  # whose events are cached for the next page

PLACES_MAX: Final = 100
METADATA: Final = "metadata"
_EVENT_COLUMNS: Final = ("id", "entity", "type", "time", "appended", "payload")
_DEDUPLICATION: Final = "dedupe"  # Spark's name for such operators

Kind = tuple[str, str]  # type, plan: a line
ShownOffset = Callable[[int], int | str]


@dataclass(frozen=True, slots=True)
class Counted:
    """A rated event of the period, not yet priced."""

    offset: int
    id: str
    type: str
    plan: str
    time_us: int
    quantity: int


@dataclass(frozen=True, slots=True)
class Behind(Counted):
    """An event behind a balance, with its amount, and the note or late invoice that has the event, if late."""

    amount_micros: int
    document: str | None = None
    trace: str | None = None  # the `traceparent` that the event was appended with

    def as_dict(self, offset: ShownOffset) -> dict[str, Any]:
        return {
            "offset": offset(self.offset),
            "id": self.id,
            "type": self.type,
            "plan": self.plan,
            "time": iso_time(self.time_us),
            "quantity": self.quantity,
            "amount_micros": self.amount_micros,
            "late": self.document is not None,
            "document": self.document,
            **({} if self.trace is None else {"traceparent": self.trace}),
        }


Chosen = list[tuple[Counted, str | None]]


class Explainer:
    """Explains balances from a folder's journal. Thread-safe."""

    def __init__(self, journal: Log, keeper: BookKeeper, checkpoint: Callable[[], Checkpoint]) -> None:
        """`checkpoint` returns that of the view's current generation."""
        self._journal, self._keeper, self._checkpoint = journal, keeper, checkpoint
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, pa.Table]] = OrderedDict()

    def behind(self, customer: str, period: BillPeriod, position: Position) -> list[Behind]:
        """All events behind a period of the customer's bill at this position, in the journal's order.

        StateError, with the first difference, if the events do not add up to the bill.
        """
        # An invoice may count ahead of the position, with all of its events (see `document_store`).
        stop = max([self._journal.offset_at(position), *(document.sealed_position for document in period.documents)])
        with self._lock:
            events = self._events(customer, stop)
            book = self._keeper.at(stop)
        counted, traces = list(_of_period(rate(events.drop_columns([METADATA]), book), book, period)), _traces(events)
        found: list[Behind] = []
        for once in self._once(counted, stop, book, period):
            for chosen in _choices(counted, period, once):
                found = _priced(chosen, book)
                if _difference(period, found) is None:
                    return [replace(each, trace=traces.get(each.offset)) for each in found]
        raise _unexplained(customer, period, _difference(period, found) or "")

    def _once(self, counted: list[Counted], stop: int, book: Book, period: BillPeriod) -> Iterator[Sequence[Counted]]:
        """The events that count while the period is open, after the query's de-duplication."""
        if not deduplicates(self._checkpoint()):
            yield counted
            return
        yield _firsts(counted)
        # Sources that give one id to two customers are wrong: checked only if the customer's own events do not add up.
        own = set(counted)
        yield [one for one in _firsts(_with_others(self._journal, counted, stop, book, period)) if one in own]

    def _events(self, customer: str, stop: int) -> pa.Table:
        """The customer's events before an offset, from the cache and from the journal's newer part."""
        start, known = self._known.pop(customer, (0, _no_events(self._journal)))
        names = pa.array([customer], pa.string())
        new = _events_where(self._journal, "entity", names, start, stop) if start < stop else []
        table = pa.concat_tables([known, *new]).combine_chunks()
        self._known[customer] = max(start, stop), table
        while len(self._known) > CUSTOMERS_KEPT:
            self._known.popitem(last=False)
        return table.filter(pc.less(table["offset"], stop))


def _events_where(journal: Log, column: str, values: pa.Array, start: int, stop: int) -> Iterator[pa.Table]:
    """The events of a range with one of these values, as in `rating.events_table`, with their metadata."""
    for first, batch in journal.batches(start, stop):
        rows = np.flatnonzero(pc.is_in(batch.column(column), values).to_numpy(zero_copy_only=False))
        if len(rows):
            mine = batch.take(pa.array(rows))
            fields = payload_columns(mine.column("payload"), PAYLOAD)
            columns = {"offset": pa.array(first + rows, pa.int64())}
            columns |= {name: mine.column(name) for name in _EVENT_COLUMNS}
            columns |= {name: fields[name] for name in PAYLOAD.names}
            yield pa.table(columns | {METADATA: mine.column(METADATA)})


def _no_events(journal: Log) -> pa.Table:
    return events_table(journal, 0, 0).append_column(METADATA, pa.array([], pa.string()))


def _traces(events: pa.Table) -> dict[int, str]:
    """The trace of each event that has one, by offset."""
    some = events.select(["offset", METADATA]).filter(pc.is_valid(events[METADATA])).to_pylist()
    found = {row["offset"]: json.loads(row[METADATA]).get("traceparent") for row in some}
    return {offset: trace for offset, trace in found.items() if isinstance(trace, str)}


def page(found: Sequence[Behind], after: int, limit: int, type_: str | None = None) -> tuple[list[Behind], int | None]:
    """Up to `limit` events with offsets above `after`, and the offset to continue after; None at the end."""
    rest = [event for event in found if event.offset > after and type_ in (None, event.type)]
    shown = rest[:limit]
    return shown, shown[-1].offset if len(rest) > limit else None


def deduplicates(checkpoint: Checkpoint) -> bool:
    """Whether the query has an operator that drops events with repeated ids."""
    names = (checkpoint.operator_metadata(number)[0] for number in checkpoint.operators())
    return any(str(found.get("operatorInfo", {}).get("operatorName")).startswith(_DEDUPLICATION) for found in names)


def _of_period(rated: pa.Table, book: Book, period: BillPeriod, *, any_currency: bool = False) -> Iterator[Counted]:
    """The events that count for the period, in the journal's order."""
    usage = rated.filter(is_usage(rated))
    times_us, ends_us = longs(usage["time"]), period_ends(usage, book)
    columns = [usage[name].to_pylist() for name in ("offset", "id", "type", "plan", "quantity")]
    for end_us, time_us, offset, id_, type_, plan, quantity in zip(ends_us, times_us, *columns, strict=True):
        if end_us == period.period.end_us and (any_currency or book.plans[plan].currency == period.currency):
            yield Counted(offset, id_, type_, plan, int(time_us), quantity)


def _firsts(counted: Sequence[Counted]) -> list[Counted]:
    """The first event of each id."""
    found = {one.id: one for one in reversed(counted)}
    return [one for one in counted if found[one.id] is one]


def _with_others(journal: Log, counted: Sequence[Counted], stop: int, book: Book, period: BillPeriod) -> list[Counted]:
    """The customer's events and other customers' events with the same ids: de-duplication ignores customers."""
    ids = pa.array(sorted({one.id for one in counted}), pa.string())
    events = pa.concat_tables([_no_events(journal), *_events_where(journal, "id", ids, 0, stop)])
    return list(_of_period(rate(events.drop_columns([METADATA]), book), book, period, any_currency=True))


def _choices(counted: Sequence[Counted], period: BillPeriod, once: Sequence[Counted]) -> Iterator[Chosen]:
    """Candidate sets of events that count, each event with its note or late invoice, if late.

    A closed period's invoice has the first N events. After them the journal has duplicates that were still dropped, and
    then late events, some perhaps with the same ids. The boundary between the two is not stored permanently: each place
    is tried, and at one of them everything adds up.
    """
    if period.state == "draft":
        yield [(event, None) for event in once]
        return
    invoices = [document for document in period.documents if document.is_invoice and not document.late]
    on_time = list(once[: sum(invoice.events for invoice in invoices)])
    last = on_time[-1].offset if on_time else -1
    rest = [event for event in counted if event.offset > last]
    named = [(id_, document.number) for document in period.documents for id_ in document.event_ids]
    for start in range(min(len(rest), PLACES_MAX) + 1):
        late = {event.id: event for event in reversed(rest[start:])}
        if all(id_ in late for id_, _ in named):
            yield [*((event, None) for event in on_time), *((late[id_], number) for id_, number in named)]


def _priced(chosen: Chosen, book: Book) -> list[Behind]:
    """The amount of each event: events in time first, as they were priced first."""
    quantities: dict[Kind, int] = defaultdict(int)
    found = []
    for event, document in chosen:
        kind, plan = (event.type, event.plan), book.plans[event.plan]
        before = quantities[kind]
        quantities[kind] = before + event.quantity
        added = plan.amount_micros(event.type, quantities[kind]) - plan.amount_micros(event.type, before)
        found.append(Behind(**asdict(event), amount_micros=added, document=document))
    return sorted(found, key=lambda event: event.offset)


def _difference(period: BillPeriod, found: Sequence[Behind]) -> str | None:
    """The first difference between the events and the period's lines, to the micro; None if equal."""
    sums: dict[Kind, list[int]] = defaultdict(lambda: [0, 0, 0])
    for event in found:
        line = sums[event.type, event.plan]
        for place, value in enumerate((event.quantity, 1, event.amount_micros)):
            line[place] += value
    lines = {(line.type, line.plan): _numbers(line) for line in period.lines}
    for kind in sorted({*sums, *lines}):
        shown, added = lines.get(kind, [0, 0, 0]), sums.get(kind, [0, 0, 0])
        if shown != added:
            return f"of {kind[0]} under {kind[1]} the bill has {_words(shown)}, the journal {_words(added)}"
    return None


def _numbers(line: Line) -> list[int]:
    return [line.quantity, line.events, line.amount_micros]


def _unexplained(customer: str, period: BillPeriod, difference: str) -> StateError:
    return StateError(
        f"The events of {customer!r} in {period.period.label} do not add up to the bill: {difference}",
        next_step="Run `stateside audit` on this folder: it shows which of the two is wrong",
    )


def _words(numbers: Sequence[int]) -> str:
    return "{:,} in {:,} events, {} micros".format(*numbers)


def as_dict(period: BillPeriod, shown: Sequence[Behind], more: int | None, offset: ShownOffset) -> Mapping[str, Any]:
    """A page as the API shows it, with offsets encoded for the principal."""
    return {
        "period": period.period.label,
        "period_end": iso_time(period.period.end_us),
        "currency": period.currency,
        "state": period.state,
        "amount_micros": period.amount_micros,
        "events_behind": period.events,
        "events": [event.as_dict(offset) for event in shown],
        "cursor": None if more is None else offset(more),
    }


GOES_ON: Final = ("call", "message", "data")
FORECAST_FROM: Final = 0.1  # of the period


@dataclass(frozen=True, slots=True)
class PeriodTrend:
    """The course of a period. `now_us` is within the period; `forecast_micros` is None without a forecast."""

    period: BillPeriod
    zone: str
    now_us: int
    days: Sequence[tuple[date, int, int]]  # each day so far: its amount and its number of events
    forecast_micros: int | None

    @classmethod
    def of(
        cls,
        period: BillPeriod,
        behind: Sequence[Behind],
        plans: PublishedPlans,
        watermark_us: int,
        allowed_us: int = GRACE_US,
    ) -> PeriodTrend:
        """The course of a bill's period with these events, as of this watermark and its allowed lateness."""
        zone = plans.get(period.lines[0].plan).cycle.time_zone
        now_us = _now_us(period, behind, watermark_us + allowed_us)
        added: dict[date, list[int]] = defaultdict(lambda: [0, 0])
        for event in behind:
            day = added[local(event.time_us, zone).date()]
            day[0] += event.amount_micros
            day[1] += 1
        until = max([local(now_us - 1, zone).date(), *added])
        days = [(day, added[day][0], added[day][1]) for day in _days(period.period, zone) if day <= until]
        return cls(period, zone, now_us, days, _forecast_micros(period, plans, now_us))

    def as_dict(self) -> dict[str, Any]:
        period = self.period.period
        return {
            "period": period.label,
            "currency": self.period.currency,
            "state": self.period.state,
            "time_zone": self.zone,
            "period_start": iso_time(period.start_us),
            "period_end": iso_time(period.end_us),
            "now": iso_time(self.now_us),
            "days": [{"day": str(day), "amount_micros": micros, "events": n} for day, micros, n in self.days],
            "days_in_period": sum(1 for _ in _days(period, self.zone)),
            "amount_micros": self.period.amount_micros,
            "charged_micros": self.period.charged_micros,
            "forecast_micros": self.forecast_micros,
        }


def _now_us(period: BillPeriod, behind: Sequence[Behind], seen_us: int) -> int:
    """The time of the job's clock, within the period; `seen_us` is the time of the newest event by the watermark."""
    start_us, end_us = period.period.start_us, period.period.end_us
    if period.state != "draft":
        return end_us
    newest_us = max((event.time_us for event in behind), default=start_us)
    return min(end_us, max(start_us + 1, newest_us, seen_us))


def _forecast_micros(period: BillPeriod, plans: PublishedPlans, now_us: int) -> int | None:
    start_us, end_us = period.period.start_us, period.period.end_us
    passed_us = now_us - start_us
    if period.state != "draft" or passed_us < FORECAST_FROM * (end_us - start_us):
        return None
    total = 0
    for line in period.lines:
        goes_on = line.type in GOES_ON
        quantity = line.quantity * (end_us - start_us) // passed_us if goes_on else line.quantity
        total += plans.get(line.plan).amount_micros(line.type, quantity)
    return round_micros(checked(total), period.currency, rounding_of(period.lines, plans))


def _days(period: Period, zone: str) -> Iterator[date]:
    day, last = local(period.start_us, zone).date(), local(period.end_us - 1, zone).date()
    while day <= last:
        yield day
        day += timedelta(days=1)
