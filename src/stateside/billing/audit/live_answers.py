"""Live answers: rows of some customers from a running server, each recomputed at the answer's own position.

An answer's stamp has its position and watermark. The auditor moves the ledger to exactly this position; the customer's
usage in the journal by then, less the usage in documents, must equal the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from stateside.billing.audit.account_laws import NAMED_PERIODS
from stateside.billing.audit.answer_sums import off_in_bill
from stateside.billing.audit.fold import fold
from stateside.billing.audit.found import OPEN_ROWS, LiveBatch, insert_rows, stored_documents, take_documents
from stateside.billing.audit.law import SHOWN_MAX, Law, LawVerdict, Row, account, judge, numbers, period
from stateside.billing.audit.ledger import Ledger
from stateside.core import Layout, Position
from stateside.journal import PARTITION, Log, open_journal

SAMPLE = 100  # customers per audit

Ask = Callable[[str, Position], dict[str, Any]]  # a customer's answer, at this position or later
Answer = tuple[LiveBatch, str, list[Row]]  # batch, customer, rows
Compare = Callable[[Ledger, Layout, Log, LiveBatch, list[Answer]], LawVerdict]
PERIOD_ROWS = "customer text, period_end_us bigint, amount_micros hugeint, events hugeint"

_NUMBERS = ("amount_micros", "charged_micros", "events")
_TEXT = "A live answer is what the journal says at the answer's own position"

_BROKEN = """
    with journal as (
        from accounts where customer in (select customer from asked)
    ), answered as (  -- a row that an answer has twice counts twice
        select customer, period_end_us, type, plan, sum(quantity) as quantity, sum(events) as events,
               sum(amount_micros) as amount_micros
        from answered_rows group by all
    ), sealed as (
        select customer, period_end_us, type, plan, sum(quantity) as quantity, sum(events) as events
        from lines where customer in (select customer from asked) group by all
    ), remaining as (
        select customer, period_end_us, type, plan, journal.quantity - coalesce(sealed.quantity, 0) as quantity,
               journal.events - coalesce(sealed.events, 0) as events
        from journal left join sealed using (customer, period_end_us, type, plan)
        where (journal.quantity, journal.events) is distinct from (sealed.quantity, sealed.events)
    ), expected as (
        select remaining.*, price(quantity, tiers) as amount_micros
        from remaining join prices on prices.plan_id = remaining.plan and prices.type = remaining.type
    )
    select customer, period_end_us, type, plan, period, currency, (from position) as position, (from batch) as batch,
           expected.quantity, expected.events, expected.amount_micros,
           answered.quantity as found_quantity, answered.events as found_events,
           answered.amount_micros as found_amount_micros
    from expected full join answered using (customer, period_end_us, type, plan)
    left join named_periods using (plan, period_end_us)
    where (expected.quantity, expected.events, expected.amount_micros)
        is distinct from (answered.quantity, answered.events, answered.amount_micros)
    order by customer, period_end_us, type, plan
"""


# For whole bills: the total of a period, in documents and open rows together. For an answer without documents, where
# `current` is false, only open periods are compared.
_BROKEN_BILLS = """
    with journal as (
        select customer, period_end_us, sum(price(quantity, tiers))::hugeint as amount_micros, sum(events) as events
        from accounts join prices on prices.plan_id = accounts.plan and prices.type = accounts.type
        group by all
    ), expected as (
        select journal.* from journal join asked using (customer)
        where asked.current or period_end_us > (from watermark_us)
    ), answered as (  -- one entry for each currency; a period that a bill has twice counts twice
        select customer, period_end_us, sum(amount_micros) as amount_micros, sum(events) as events
        from answered_periods group by all
    )
    select customer, period_end_us, (from position) as position, (from batch) as batch, expected.events,
           expected.amount_micros, answered.events as found_events, answered.amount_micros as found_amount_micros
    from expected full join answered using (customer, period_end_us)
    where (expected.events, expected.amount_micros) is distinct from (answered.events, answered.amount_micros)
    order by customer, period_end_us
"""


def _say_bill(row: Row) -> str:
    return (
        f"{row['customer']}, {period(row)}: the bill of batch {row['batch']}, position {row['position']}, says "
        f"{row['found_amount_micros'] or 0:,} micros for {row['found_events'] or 0:,} events; the journal says "
        f"{row['amount_micros'] or 0:,} for {row['events'] or 0:,} by then."
    )


def _say(row: Row) -> str:
    journal = numbers(row["quantity"], row["events"], row["amount_micros"], row["currency"])
    found = numbers(row["found_quantity"], row["found_events"], row["found_amount_micros"], row["currency"])
    return (
        f"{account(row)}: the answer of batch {row['batch']}, position {row['position']}, says {found}; "
        f"the journal says {journal} by then."
    )


def sampled_customers(ledger: Ledger) -> list[str]:
    """A sample of the journal's customers, a different one at each position."""
    rows = ledger.rows(
        "select customer from (select distinct customer from sums) order by hash(customer, ?) limit ?",
        ledger.position,
        SAMPLE,
    )
    return [customer for (customer,) in rows]


def floor_of(ledger: Ledger, journal: Log) -> Position:
    """The ledger's position, in the form for requests to servers."""
    return _position(journal, ledger.position)


def compare_answers(ledger: Ledger, layout: Layout, journal: Log, ask: Ask) -> tuple[int, tuple[LawVerdict]]:
    """Request and compare answers; return their number and the verdict. Moves the ledger to the newest answer."""
    answers = _ask_all(ledger, journal, ask)
    return len(answers), (_compare_all(ledger, layout, journal, answers, _compare),)


def recheck(
    layout: Layout, folder: Path, rows: Iterable[tuple[str, Row]], bills: Iterable[tuple[str, Row]] = ()
) -> tuple[int, LawVerdict]:
    """Compare earlier answers, each with its customer: rows of the view, and whole bills.

    Folds the journal from its start into a ledger in `folder`, from one stamp to the next. Returns the number of
    answers and the verdict.
    """
    count, found, bills = 0, list[LawVerdict](), list(bills)
    found.append(_judge_bills(layout, [bill for _, bill in bills]))
    for kind, given, compare in (("rows", rows, _compare), ("periods", bills, _compare_bills)):
        answers: dict[tuple[LiveBatch, str, str], list[Row]] = {}
        for customer, document in given:
            count += 1
            shown = _known_periods(document) if kind == "periods" else document["rows"]
            answers[_standing(document["stamp"]), customer, json.dumps(shown, sort_keys=True)] = shown
        placed = [(standing, customer, shown) for (standing, customer, _), shown in answers.items()]
        with Ledger(folder / kind) as ledger:
            journal = open_journal(layout.journal).log()
            found.append(_compare_all(ledger, layout, journal, sorted(placed, key=_place), compare))
    told = tuple(sentence for verdict in found for sentence in verdict.sentences)
    return count, LawVerdict("answers", _TEXT, sum(verdict.broken for verdict in found), told)


def _judge_bills(layout: Layout, bills: Sequence[Row]) -> LawVerdict:
    """Whether bills add up, and whether bills given while the documents were unavailable have the known ones."""
    stored = {str(one["number"]): one for one in stored_documents(layout)}
    found = [told for bill in bills for told in (*off_in_bill(bill), *_off_in_known(bill, stored))]
    return LawVerdict("answers", _TEXT, len(found), tuple(dict.fromkeys(found))[:SHOWN_MAX])


def _off_in_known(bill: Row, stored: Mapping[str, Row]) -> Iterator[str]:
    """Documents of a bill that differ from the stored ones; and documents missing in a bill with known documents only.

    The known documents belong to the position and the watermark of the last successful read. For a bill with all
    documents, the journal determines the documents.
    """
    name = f"The bill of {bill['customer']} at position {bill['stamp']['position']}"
    shown = {one["number"]: (one, entry) for entry in bill["periods"] for one in entry["documents"]}
    for number, (one, entry) in shown.items():
        says = {field: one[field] for field in ("kind", *_NUMBERS)}
        says |= {"customer": bill["customer"], "currency": entry["currency"], "period_end_us": _us(entry["period_end"])}
        if any(value != stored.get(number, {}).get(field) for field, value in says.items()):
            yield f"{name} has {number} otherwise than it was stored: {says}."
    archive = bill["archive"]
    if archive["state"] == "current" or archive["position"] is None:
        return
    offset = Position.parse(archive["position"]).one()
    watermark_us = _us((archive["unknown"] or {}).get("after") or bill["stamp"]["watermark"])
    for number, one in stored.items():
        belongs = one["sealed_position"] <= offset or not (one["kind"] != "invoice" or one["late"])
        if (
            one["customer"] == bill["customer"]
            and one["period_end_us"] <= watermark_us
            and belongs
            and number not in shown
        ):
            yield f"{name} lacks {number}, which is known at {archive['position']}."


def _known_periods(bill: Row) -> list[Row]:
    """Whether a bill has all documents, then its periods; without all documents, only the open periods."""
    current = bill["archive"]["state"] == "current"
    return [{"current": current}, *(one for one in bill["periods"] if current or one["state"] == "draft")]


def _compare_all(
    ledger: Ledger, layout: Layout, journal: Log, answers: Sequence[Answer], compare: Compare
) -> LawVerdict:
    """Compare answers, sorted by position; at most one answer per customer at a time."""
    broken, sentences = 0, list[str]()
    for standing, some in groupby(answers, key=lambda answer: answer[0]):
        by_customer = groupby(some, key=lambda answer: answer[1])
        for each in zip_longest(*(list(ones) for _, ones in by_customer)):
            verdict = compare(ledger, layout, journal, standing, [answer for answer in each if answer is not None])
            broken += verdict.broken
            sentences += verdict.sentences
    return LawVerdict("answers", _TEXT, broken, tuple(sentences))


def _ask_all(ledger: Ledger, journal: Log, ask: Ask) -> list[Answer]:
    """Answers for a sample of customers, sorted by position."""
    floor = floor_of(ledger, journal)
    answers = [(customer, ask(customer, floor)) for customer in sampled_customers(ledger)]
    placed = [(_standing(found["stamp"]), customer, found["rows"]) for customer, found in answers]
    return sorted(placed, key=_place)


def _place(answer: Answer) -> tuple[int, int, str]:
    standing, customer, _ = answer
    return standing.offset, standing.batch, customer


def _position(journal: Log, offset: int) -> Position:
    return journal.in_stamps(Position.of({PARTITION: offset}))


def _standing(stamp: Row) -> LiveBatch:
    return LiveBatch(int(stamp["batch"]), Position.parse(stamp["position"]).one(), _us(stamp["watermark"]))


def _us(moment: str) -> int:
    return (datetime.fromisoformat(moment) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _compare(ledger: Ledger, layout: Layout, journal: Log, standing: LiveBatch, answers: list[Answer]) -> LawVerdict:
    fold(ledger, journal, standing.offset)
    take_documents(ledger, layout, standing)
    ledger.sql.execute(NAMED_PERIODS)
    ledger.sql.execute("create or replace temp table asked (customer text)")
    ledger.sql.executemany("insert into asked values (?)", [[customer] for _, customer, _ in answers])
    shown = (_placed(row, customer) for _, customer, rows in answers for row in rows)
    insert_rows(ledger, "answered_rows", OPEN_ROWS, shown)
    return judge(ledger, Law("answers", _TEXT, _at(_BROKEN, journal, standing), _say))


def _placed(row: Row, customer: str) -> Row:
    """A row as it counts in a customer's answer: a row of another customer never matches."""
    other = row["customer"]
    return row if other == customer else {**row, "customer": f"{other} (in the answer for {customer})"}


def _compare_bills(
    ledger: Ledger, layout: Layout, journal: Log, standing: LiveBatch, answers: list[Answer]
) -> LawVerdict:
    fold(ledger, journal, standing.offset)
    ledger.sql.execute("create or replace temp table asked (customer text, current bool)")
    whole = [[customer, found["current"]] for _, customer, (found, *_) in answers]
    ledger.sql.executemany("insert into asked values (?, ?)", whole)
    shown = ({**one, "customer": customer} for _, customer, (_, *periods) in answers for one in periods)
    insert_rows(ledger, "answered_periods", PERIOD_ROWS, shown)
    return judge(ledger, Law("answers", _TEXT, _at(_BROKEN_BILLS, journal, standing), _say_bill))


def _at(query: str, journal: Log, standing: LiveBatch) -> str:
    """The query for answers at this batch."""
    query = query.replace("(from position)", f"'{_position(journal, standing.offset)}'")
    return query.replace("(from batch)", str(standing.batch)).replace("(from watermark_us)", str(standing.watermark_us))
