"""A law: a sentence about the books that must hold, the query that finds where it does not, and how that is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.money_macros import shown

SHOWN_MAX = 10  # of one law: the first ones are told, all are counted

Row = Mapping[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Law:
    """`broken` has a row for each place where the law does not hold, in a fixed order; `say` makes a sentence of it."""

    name: str
    text: str
    broken: str
    say: Callable[[Row], str]
    explain: Callable[[Ledger, Row], str] = lambda ledger, row: ""


@dataclass(frozen=True, slots=True)
class LawVerdict:
    """What came of a law: how many places break it, and the first of them as sentences."""

    law: str
    text: str
    broken: int
    sentences: tuple[str, ...]


def judge(ledger: Ledger, law: Law) -> LawVerdict:
    """Look where the law is broken."""
    ledger.sql.execute(f"create or replace temp table broken as {law.broken}")
    found = ledger.sql.execute(f"select * from broken limit {SHOWN_MAX}")
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, values, strict=True)) for values in found.fetchall()]
    sentences = tuple(law.say(row) + law.explain(ledger, row) for row in rows)
    return LawVerdict(law.name, law.text, int(ledger.one("select count(*) from broken")), sentences)


def account(row: Row) -> str:
    """Whose, and what for: the account that a row is about."""
    return f"{row['customer']}, {period(row)}, {row['type']} on {row['plan']}"


def period(row: Row) -> str:
    """The period's name, or its end where no plan has such a period."""
    return str(row.get("period") or f"the period that ends at {moment(row['period_end_us'])}")


def moment(time_us: int) -> str:
    """A time for people."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


def numbers(quantity: int | None, events: int | None, amount_micros: int | None, currency: str | None) -> str:
    """A quantity, the number of its events, and what they cost."""
    count = f"{events or 0:,} event{'' if events == 1 else 's'}"
    return f"{quantity or 0:,} in {count}, {money(amount_micros, currency)}"


def money(amount_micros: int | None, currency: str | None) -> str:
    """An amount; of a plan that nobody published the currency is not known."""
    return shown(amount_micros or 0, currency or "of an unknown currency")


def by_how_much(more: int, unit: str = "") -> str:
    """How far something is off: `3 too many`, `3 too few`."""
    return f"{abs(more):,}{unit} {'too many' if more > 0 else 'too few'}"
