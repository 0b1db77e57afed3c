"""The sums within answers: the totals that a running server returns add up to the cent, within each answer.

In a bill: a period's lines and its rounding add up to its charge, and so do its documents; the periods add up to the
bill's totals. In the totals of all customers: a currency's types and its rounding add up to the currency. Pages,
commands and documents print the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from stateside.billing.audit.law import SHOWN_MAX, LawVerdict, money
from stateside.billing.audit.money_macros import MINOR_MICROS
from stateside.core import Position
from stateside.core.errors import Misdirected

Get = Callable[[str, Position], Mapping[str, Any]]  # a route's answer, at this position or later
Entry = Mapping[str, Any]

BILLS: Final = 20  # requested per audit
_TEXT: Final = "Every total of an answer is the sum of what stands above it, with rounding as a line of its own"
_EXACT: Final = ("amount_micros", "events")
_OF_TYPES: Final = ("events", "amount_micros", "open_micros", "sealed_micros")


def judge_sums(get: Get, customers: Sequence[str], floor: Position) -> LawVerdict:
    """Request these customers' bills and the totals of all periods, and check their sums."""
    found: list[str] = []
    with suppress(Misdirected):  # where every server has one shard of the keys, no server has these totals
        found += off_in_periods(get("/v1/periods", floor))
    for customer in customers[:BILLS]:
        found += off_in_bill(get(f"/v1/customers/{quote(customer, safe='')}/bill", floor))
    return LawVerdict("sums", _TEXT, len(found), tuple(found[:SHOWN_MAX]))


def off_in_bill(bill: Entry) -> Iterator[str]:
    """A sentence for each sum of a bill that is wrong."""
    for period in bill["periods"]:
        name = f"The bill of {bill['customer']} for {period['period']}"
        yield from _off(f"{name}: its lines", period["lines"], period, _EXACT)
        yield from _off_charged(f"{name}: its lines and their rounding", period["lines"], period)
        if period["documents"]:
            names = ("charged_micros", *_EXACT)
            yield from _off(f"{name}: its documents", period["documents"], period, names)
        elif abs(period["charged_micros"] - period["amount_micros"]) >= MINOR_MICROS[period["currency"]]:
            yield f"{name} charges {_shown(period, 'charged_micros')} for {_shown(period, 'amount_micros')}."
        yield from _off_minor(name, period, [*period["lines"], period], period["currency"])
    for total in bill["totals"]:
        name = f"The bill of {bill['customer']} in {total['currency']}"
        periods = [period for period in bill["periods"] if period["currency"] == total["currency"]]
        yield from _off(f"{name}: its periods", periods, total, ("charged_micros", "rounding_micros", *_EXACT))
        yield from _off(f"{name}: its types", total["types"], total, _EXACT)
        yield from _off_charged(f"{name}: its types and their rounding", total["types"], total)


def off_in_periods(answer: Entry) -> Iterator[str]:
    """A sentence for each wrong sum in the totals of all customers."""
    for period in answer["periods"]:
        for total in period["currencies"]:
            name = f"All customers in {period['period']}, {total['currency']}"
            types = [entry for entry in period["totals"] if entry["currency"] == total["currency"]]
            yield from _off(f"{name}: the types", types, total, _OF_TYPES)
            for field in ("charged_micros", "total_micros"):
                yield from _off_charged(f"{name}: the types and their rounding", types, total, field)
            for entry in [*types, total]:
                yield from _off_parts(name, entry)


def _off_parts(name: str, entry: Entry) -> Iterator[str]:
    """open + sealed must be the amount, open + charged the total."""
    for whole, part in (("amount_micros", "sealed_micros"), ("total_micros", "charged_micros")):
        if entry["open_micros"] + entry[part] != entry[whole]:
            yield (
                f"{name}, {entry.get('type', 'all types')}: {_shown(entry, 'open_micros')} open and "
                f"{_shown(entry, part)} of {part} are not the {_shown(entry, whole)} of {whole}."
            )


def _off_minor(name: str, period: Entry, entries: Iterable[Entry], currency: str) -> Iterator[str]:
    if any(entry["charged_micros"] % MINOR_MICROS[currency] for entry in entries):
        yield f"{name} charges a fraction of the smallest coin: {_shown(period, 'charged_micros')}."


def _off(what: str, parts: Sequence[Entry], whole: Entry, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        added = sum(part[name] for part in parts)
        if added != whole[name]:
            says = _words(name, whole[name], whole)
            yield f"{what} add up to {_words(name, added, whole)}, and the answer says {says}."


def _off_charged(what: str, parts: Sequence[Entry], whole: Entry, name: str = "charged_micros") -> Iterator[str]:
    rounding = {name: whole["rounding_micros"]}
    yield from _off(what, [*parts, rounding], whole, [name])


def _words(name: str, value: int, whole: Entry) -> str:
    return f"{value:,} events" if name == "events" else f"{money(value, whole['currency'])} of {name}"


def _shown(entry: Entry, name: str) -> str:
    return money(entry[name], entry["currency"])
