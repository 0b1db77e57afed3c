"""A law: a statement that must hold, the query that finds violations, and the sentence that reports one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.money_macros import shown

SHOWN_MAX = 10  # violations of one law that are reported; all are counted

Row = Mapping[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Law:
    """`broken` selects a row per violation, in a fixed order; `say` turns a row into a sentence."""

    name: str
    text: str
    broken: str
    say: Callable[[Row], str]
    explain: Callable[[Ledger, Row], str] = lambda ledger, row: ""


@dataclass(frozen=True, slots=True)
class LawVerdict:
    """The result of judging a law: the number of violations, and the first ones as sentences."""

    law: str
    text: str
    broken: int
    sentences: tuple[str, ...]


def judge(ledger: Ledger, law: Law) -> LawVerdict:
    """Run the law's query and report its violations."""
    ledger.sql.execute(f"create or replace temp table broken as {law.broken}")
    found = ledger.sql.execute(f"select * from broken limit {SHOWN_MAX}")
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, values, strict=True)) for values in found.fetchall()]
    sentences = tuple(law.say(row) + law.explain(ledger, row) for row in rows)
    return LawVerdict(law.name, law.text, int(ledger.one("select count(*) from broken")), sentences)


def account(row: Row) -> str:
    """The account of a row: customer, period, type and plan."""
    return f"{row['customer']}, {period(row)}, {row['type']} on {row['plan']}"


def period(row: Row) -> str:
    """The period's name, or its end where no plan has such a period."""
    return str(row.get("period") or f"the period that ends at {moment(row['period_end_us'])}")


def moment(time_us: int) -> str:
    """A time for people."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


def numbers(quantity: int | None, events: int | None, amount_micros: int | None, currency: str | None) -> str:
    """A quantity, the number of its events, and their price."""
    count = f"{events or 0:,} event{'' if events == 1 else 's'}"
    return f"{quantity or 0:,} in {count}, {money(amount_micros, currency)}"


def money(amount_micros: int | None, currency: str | None) -> str:
    """An amount; the currency of a plan that was never published is unknown."""
    return shown(amount_micros or 0, currency or "of an unknown currency")


def by_how_much(more: int, unit: str = "") -> str:
    """A deviation: `3 too many`, `3 too few`."""
    return f"{abs(more):,}{unit} {'too many' if more > 0 else 'too few'}"
