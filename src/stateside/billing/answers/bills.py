"""Bills: a customer's charges, period by period, at one batch.

Open periods come from the live rows, closed ones from documents: `draft` as long as events arrive, including the grace
period, so that a period and the next one may both be drafts; `sealed` once there is an invoice; `corrected` if notes
followed the invoice. Nothing is computed in two ways: a draft's amounts are the invoice's amounts, if no further event
arrives.

Charges add up to the cent: a period's lines and its rounding are its total (see `money`), the periods' totals are the
bill's total, and a period's documents together charge its total.

A bill has an entry for each moment at which a period ends, and for each currency. Currencies are never added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from stateside.billing.answers.document_store import Document, Line
from stateside.billing.answers.period_names import PublishedPlans
from stateside.billing.calendar import Period
from stateside.billing.money import Rounding, checked, round_micros, total_rounding
from stateside.serving import iso_time, parse_time

State = Literal["draft", "sealed", "corrected"]
Account = tuple[int, str]  # the period's end in microseconds, the currency


@dataclass(frozen=True, slots=True)
class BillPeriod:
    """One period of a bill, in one currency: its lines, including the changes by notes, and its documents."""

    period: Period
    currency: str
    state: State
    lines: tuple[Line, ...]
    charged_micros: int  # the charge, or the charge if the period closed now
    documents: tuple[Document, ...] = ()

    @property
    def amount_micros(self) -> int:
        """The exact sum of all lines."""
        return checked(sum(line.amount_micros for line in self.lines))

    @property
    def rounding_micros(self) -> int:
        """The charge minus the sum of the lines, each of them rounded."""
        return checked(self.charged_micros - sum(line.charged_micros for line in self.lines))

    @property
    def events(self) -> int:
        """The number of events."""
        return sum(line.events for line in self.lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "period": self.period.label,
            "period_start": iso_time(self.period.start_us),
            "period_end": iso_time(self.period.end_us),
            "currency": self.currency,
            "state": self.state,
            "amount_micros": self.amount_micros,
            "charged_micros": self.charged_micros,
            "events": self.events,
            "lines": [asdict(line) for line in self.lines],
            "rounding_micros": self.rounding_micros,
            "documents": [_reference(document) for document in self.documents],
        }


def bill(
    customer: str, rows: Sequence[Mapping[str, Any]], documents: Sequence[Document], plans: PublishedPlans
) -> dict[str, Any]:
    """A customer's bill as the API shows it, from the view's rows and the documents of the same batch."""
    periods = bill_periods(rows, documents, plans)
    return {
        "customer": customer,
        "periods": [period.as_dict() | {"time_zone": _time_zone(period, plans)} for period in periods],
        "totals": [_total(currency, group) for currency, group in _by_currency(periods)],
    }


PERIOD_KEY: Final = ("period", "period_end", "currency")


def bill_event(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The event that turns a subscriber's bill into this one, both with stamp and archive; None without news.

        snapshot   the bill, and "last": true
        changes    {"stamp", "archive", "totals", "after", "changed": [period…], "removed": [key…], "last": true}

    A subscriber replaces whole periods, by their PERIOD_KEY, and computes no amounts. Without periods, `changes` says
    that the bill is the same at a later batch, or that the availability of documents changed.
    """
    if before is None:
        return "snapshot", {**now, "last": True}
    known, found = ({_key(period): period for period in one["periods"]} for one in (before, now))
    changed = [period for key, period in found.items() if known.get(key) != period]
    removed = [dict(zip(PERIOD_KEY, key, strict=True)) for key in known if key not in found]
    stamps = [(one["stamp"].replica, one["stamp"].batch) for one in (before, now)]
    if not changed and not removed and stamps[0] == stamps[1] and before["archive"] == now["archive"]:
        return None
    head = {name: now[name] for name in ("stamp", "archive", "totals")} | {"after": before["stamp"].batch}
    return "changes", {**head, "changed": changed, "removed": removed, "last": True}


def _key(period: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(period[name] for name in PERIOD_KEY)


def bill_periods(
    rows: Sequence[Mapping[str, Any]], documents: Sequence[Document], plans: PublishedPlans
) -> list[BillPeriod]:
    """The periods of one customer, oldest first."""
    drafts: dict[Account, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        drafts[parse_time(row["period_end"]), plans.get(row["plan"]).currency].append(row)
    issued: dict[Account, list[Document]] = defaultdict(list)
    for document in documents:
        issued[document.period_end_us, document.currency].append(document)
    found = [_draft(account, group, plans) for account, group in drafts.items()]
    found += [_closed(group) for group in issued.values()]
    return sorted(found, key=lambda entry: (entry.period.end_us, entry.period.label, entry.currency, entry.state))


def _draft(account: Account, rows: Sequence[Mapping[str, Any]], plans: PublishedPlans) -> BillPeriod:
    end_us, currency = account
    periods = [plans.get(row["plan"]).cycle.ending(end_us) for row in rows]
    longest = min(periods, key=lambda period: (period.start_us, period.label))  # the document will have this name
    lines = sorted((_draft_line(row, plans) for row in rows), key=_by_type)
    charged = round_micros(checked(sum(line.amount_micros for line in lines)), currency, rounding_of(lines, plans))
    return BillPeriod(longest, currency, "draft", tuple(lines), charged)


def rounding_of(lines: Iterable[Line], plans: PublishedPlans) -> Rounding:
    """The rounding rule for the sum of these lines."""
    return total_rounding(plans.get(line.plan).rounding for line in lines)


def _draft_line(row: Mapping[str, Any], plans: PublishedPlans) -> Line:
    plan, amount_micros = plans.get(row["plan"]), row["amount_micros"]
    charged_micros = round_micros(amount_micros, plan.currency, plan.rounding)
    return Line(row["type"], row["plan"], row["quantity"], row["events"], amount_micros, charged_micros)


def _closed(documents: Sequence[Document]) -> BillPeriod:
    first = documents[0]
    period = Period(first.period, first.period_start_us, first.period_end_us)
    corrected = any(not document.is_invoice for document in documents)
    lines = _added(line for document in documents for line in document.lines)
    charged = checked(sum(document.charged_micros for document in documents))
    return BillPeriod(period, first.currency, "corrected" if corrected else "sealed", lines, charged, tuple(documents))


def _added(lines: Iterable[Line]) -> tuple[Line, ...]:
    """An invoice's lines, with its notes' changes added."""
    found: dict[tuple[str, str], Line] = {}
    for line in lines:
        before = found.get(_by_type(line), Line(line.type, line.plan, 0, 0, 0, 0))
        found[_by_type(line)] = Line(
            line.type,
            line.plan,
            before.quantity + line.quantity,
            before.events + line.events,
            checked(before.amount_micros + line.amount_micros),
            checked(before.charged_micros + line.charged_micros),
        )
    return tuple(found[kind] for kind in sorted(found))


def _time_zone(period: BillPeriod, plans: PublishedPlans) -> str:
    """The time zone of the period's first and last midnight."""
    return plans.get(period.lines[0].plan).cycle.time_zone


def _by_type(line: Line) -> tuple[str, str]:
    return line.type, line.plan


def _reference(document: Document) -> dict[str, Any]:
    names = ("number", "kind", "amount_micros", "charged_micros", "events", "corrects", "late")
    return {name: getattr(document, name) for name in names}


def _by_currency(periods: Sequence[BillPeriod]) -> list[tuple[str, list[BillPeriod]]]:
    currencies = sorted({period.currency for period in periods})
    return [(currency, [period for period in periods if period.currency == currency]) for currency in currencies]


def _total(currency: str, periods: Sequence[BillPeriod]) -> dict[str, Any]:
    """All periods of one currency: as a whole, and by type of usage."""
    types: dict[str, list[Line]] = defaultdict(list)
    for period in periods:
        for line in period.lines:
            types[line.type].append(line)
    return {
        "currency": currency,
        "amount_micros": checked(sum(period.amount_micros for period in periods)),
        "charged_micros": checked(sum(period.charged_micros for period in periods)),
        "draft_micros": checked(sum(period.charged_micros for period in periods if period.state == "draft")),
        "rounding_micros": checked(sum(period.rounding_micros for period in periods)),
        "events": sum(period.events for period in periods),
        "types": [_of_type(type_, lines) for type_, lines in sorted(types.items())],
    }


def _of_type(type_: str, lines: Sequence[Line]) -> dict[str, Any]:
    names = ("quantity", "events", "amount_micros", "charged_micros")
    return {"type": type_, **{name: checked(sum(getattr(line, name) for line in lines)) for name in names}}
