"""The laws of documents: each exactly once, numbered without gaps, correct in content and references."""

from __future__ import annotations

from stateside.billing.audit.account_laws import CLOSED_US
from stateside.billing.audit.law import Law, Row, account, moment, money, period

# Numbers are assigned in the order of storing, so the stored documents have no gaps at any time.
_NUMBERS = """
    select number, series, sequence,
           lag(sequence, 1, 0) over by_sequence as sequence_before,
           format('{}-{:09d}', series, sequence) as right_number
    from stored
    where kind in ('invoice', 'credit-note', 'debit-note')
    window by_sequence as (partition by series order by sequence)
    qualify sequence <> sequence_before + 1 or number is distinct from right_number
    order by series, sequence
"""


def _say_number(row: Row) -> str:
    number, sequence, before = row["number"], row["sequence"], row["sequence_before"]
    if number != row["right_number"]:
        return f"The document {number} has the sequence {sequence}, whose number is {row['right_number']}."
    if sequence < 1:
        return f"The document {number} has a sequence below 1."
    if sequence == before:
        return f"The number {number} is there twice."
    missing = f"{row['series']}-{before + 1:09d}"
    upto = "" if sequence == before + 2 else f" to {row['series']}-{sequence - 1:09d}"
    return f"Before {number} there is a gap: {missing}{upto} is missing."


ONCE = """
    select customer, period_end_us, min(period) as period, currency, kind, upto,
           string_agg(number, ', ' order by number) as documents, count(*) as copies
    from (select *, case when kind <> 'invoice' then sealed_position end as upto from documents)
    group by customer, period_end_us, currency, kind, upto having count(*) > 1
    order by customer, period_end_us, currency
"""


def _say_twice(row: Row) -> str:
    which = "" if row["kind"] == "invoice" else f" of events up to offset {row['upto']:,}"
    return (
        f"{row['customer']}, {period(row)}: there are {row['copies']} documents ({row['kind']}, {row['currency']})"
        f"{which} where one belongs: {row['documents']}."
    )


MISSING = """
    with due as (
        select distinct customer, period_end_us, period, currency
        from accounts join named_periods using (plan, period_end_us), standing where period_end_us <= watermark_us
    )
    select * from due anti join (from documents where kind = 'invoice') as invoices
        using (customer, period_end_us, currency)
    order by customer, period_end_us, currency
"""

_STILL_OPEN = """
    select customer, period_end_us, type, plan, period, watermark_us
    from open_rows left join named_periods using (plan, period_end_us), standing
    where period_end_us <= watermark_us order by customer, period_end_us, type, plan
"""

# Independent of the sealing query's watermarks: the events before a document must have allowed its sealing.
_TOO_EARLY = f"""
    select number, customer, period, period_end_us, {CLOSED_US} as closed_us from stored, standing, fold
    where sealed_position <= standing.position and period_end_us > closed_us order by series, sequence
"""

_TOTALS = """
    with added_up as (
        select number, sequence, count(*) as lines, count(distinct (type, plan)) as kinds, sum(events) as events,
               sum(amount_micros) as amount_micros, sum(charged_micros) as charged_micros
        from lines group by number, sequence
    )
    select documents.number, documents.currency, coalesce(added_up.lines, 0) as lines, kinds,
           documents.events, documents.amount_micros, documents.charged_micros,
           added_up.events as lines_events, added_up.amount_micros as lines_amount_micros,
           added_up.charged_micros + coalesce(rounding_micros, 0) as lines_charged_micros
    from documents left join added_up using (number, sequence)
    where (documents.events, documents.amount_micros, documents.charged_micros)
        is distinct from (lines_events, lines_amount_micros, lines_charged_micros)
        or added_up.lines <> kinds
    order by series, sequence
"""


def _say_totals(row: Row) -> str:
    if row["lines"] == 0:
        return f"{row['number']} has no lines."
    if row["lines"] != row["kinds"]:
        return f"{row['number']} has {row['lines']} lines for {row['kinds']} pairs of type and plan."
    total, lines = (
        f"{money(row[f'{of}amount_micros'], row['currency'])}, charged "
        f"{money(row[f'{of}charged_micros'], row['currency'])}, in {row[f'{of}events']:,} events"
        for of in ("", "lines_")
    )
    return f"{row['number']} says in all {total}; its lines and their rounding add up to {lines}."


# After each document, the account's documents together charge their exact amount, rounded once: by the rule of their
# lines' plans if all have the same, otherwise half-even. An invoice of Stateside 0.1 and its notes have no rounding
# line: they charge the sums of their lines, checked by the law before. All later invoices have one.
_ROUNDING = """
    with rules as (
        select number, min(rounding) as lowest, max(rounding) as highest, min(minor_micros) as minor
        from lines join plans on plans.id = lines.plan group by number
    ), running as (
        select documents.*, minor, sum(amount_micros) over account as amount_upto,
               sum(charged_micros) over account as charged_upto,
               min(lowest) over account as rule_lowest, max(highest) over account as rule_highest,
               first(rounding_micros is null) over account as by_lines
        from documents join rules using (number)
        window account as (partition by customer, period_end_us, documents.currency order by series, sequence)
    ), apart as (
        select *, charged_upto - rounded(
            amount_upto, minor, case when rule_lowest = rule_highest then rule_lowest else 'half-even' end) as off
        from running
    ), judged as (
        select *, off - lag(off, 1, 0) over (
                partition by customer, period_end_us, currency order by series, sequence) as too_much,
            (select min(sequence) from stored where kind = 'invoice' and rounding_micros is not null) as first_rounded
        from apart
    )
    select number, customer, period, currency, charged_micros, charged_micros - too_much as right_charged_micros,
           rounding_micros, by_lines
    from judged
    where (rounding_micros is null) <> by_lines
        or case when by_lines then kind = 'invoice' and sequence > first_rounded else too_much <> 0 end
    order by series, sequence
"""


def _say_rounding(row: Row) -> str:
    document = f"{row['number']} of {row['customer']} for {row['period']}"
    if (row["rounding_micros"] is None) != row["by_lines"]:
        which = ("has no", "has one") if row["rounding_micros"] is None else ("has a", "has none")
        return f"{document} {which[0]} rounding line, and its invoice {which[1]}."
    if row["by_lines"]:
        return f"{document} has no rounding line, and earlier invoices have one."
    right, found = (money(row[name], row["currency"]) for name in ("right_charged_micros", "charged_micros"))
    return f"{document} charges {found}; rounded once, its account's exact amount leaves {right} to charge."


# The documents of an account, in order, add up its quantity. Each line is the difference of the price before and after
# its quantity: of the exact price, and of the price rounded once. An invoice begins at 0.
_PRICES = """
    with running as (
        select lines.*, sum(quantity) over (
            partition by customer, period_end_us, type, plan order by series, sequence) as upto
        from lines
    ), exact as (
        select running.*, plans.id as known_plan, plans.currency as plan_currency, minor_micros, rounding,
               price(upto, tiers) as amount_upto, price(upto - quantity, tiers) as amount_before
        from running left join plans on plans.id = running.plan
        left join prices on prices.plan_id = running.plan and prices.type = running.type
    ), priced as (
        select *, (amount_upto - amount_before)::hugeint as right_amount_micros,
               (rounded(amount_upto, minor_micros, rounding) - rounded(amount_before, minor_micros, rounding))::hugeint
                   as right_charged_micros
        from exact
    )
    select * from priced
    where amount_micros is distinct from right_amount_micros or charged_micros is distinct from right_charged_micros
        or currency is distinct from plan_currency
    order by series, sequence, type, plan
"""


def _say_price(row: Row) -> str:
    line = f"{row['number']} of {row['customer']}, {row['type']} on {row['plan']}"
    if row["right_amount_micros"] is None:
        return f"{line}: the journal publishes no such price."
    if row["currency"] != row["plan_currency"]:
        return f"{line}: the document is in {row['currency']}, the plan in {row['plan_currency']}."
    right, found = (
        f"{money(row[f'{of}amount_micros'], row['currency'])}, charged "
        f"{money(row[f'{of}charged_micros'], row['currency'])}"
        for of in ("right_", "")
    )
    return f"{line}: {row['quantity']:,} cost {right}; the line says {found}."


# Periods of different cycles may end at one moment: the document has the name of the longest.
_HEADERS = """
    with calendar as (
        select lines.customer, period_end_us, lines.currency, period, period_start_us
        from lines join named_periods using (plan, period_end_us) where series = 'I'
        qualify row_number() over (
            partition by lines.customer, period_end_us, lines.currency order by period_start_us, period) = 1
    )
    select number, series, sequence, documents.period, documents.period_start_us, period_end_us,
           calendar.period as right_period, calendar.period_start_us as right_start_us
    from documents left join calendar using (customer, period_end_us, currency)
    where documents.period is distinct from right_period or documents.period_start_us is distinct from right_start_us
    order by series, sequence
"""


def _say_header(row: Row) -> str:
    says = f"{row['number']} is for {row['period']}, {moment(row['period_start_us'])} to {moment(row['period_end_us'])}"
    if row["right_period"] is None:
        return f"{says}: by the calendar of its plans no period of any event ends then."
    return f"{says}: by the calendar of its plans it is {row['right_period']} from {moment(row['right_start_us'])}."


_NOTES = """
    with invoices as (from documents where kind = 'invoice')
    select documents.number, documents.kind, documents.customer, documents.period, documents.currency,
           documents.corrects, documents.charged_micros, invoices.number as invoice,
           (invoices.customer, invoices.period_end_us, invoices.currency)
               = (documents.customer, documents.period_end_us, documents.currency) as same,
           invoices.sealed_position < documents.sealed_position as behind,
           case documents.kind when 'credit-note' then documents.charged_micros <= 0
               when 'debit-note' then documents.charged_micros >= 0 else false end as fits
    from documents left join invoices on invoices.number = documents.corrects
    where case when documents.kind = 'invoice' then documents.corrects is not null
               else not coalesce(same and behind and fits, false) end
    order by documents.series, documents.sequence
"""


def _say_note(row: Row) -> str:
    note = f"The {row['kind']} {row['number']} of {row['customer']} for {row['period']}"
    if row["kind"] == "invoice":
        return f"{note} says that it corrects {row['corrects']}; an invoice corrects nothing."
    if row["kind"] not in ("credit-note", "debit-note"):
        return f"{note} is neither invoice nor credit note nor debit note."
    if row["invoice"] is None:
        return f"{note} corrects {row['corrects']}, but there is no such invoice."
    if not row["same"]:
        return f"{note} corrects {row['corrects']}, which is of another customer, period or currency."
    if not row["behind"]:
        return f"{note} corrects {row['corrects']}, which says that it has the events up to there itself."
    return f"{note} charges {money(row['charged_micros'], row['currency'])}: that is the other kind of note."


_EVENT_IDS = """
    with named as (
        select number, series, sequence, customer, period, period_end_us, unnest(event_ids) as id
        from documents where names_events
    ), judged as (
        select named.*, seen.id is not null as known,
               (seen.customer, seen.period_end_us) = (named.customer, named.period_end_us) as same,
               count(*) over (partition by named.id) as copies
        from named left join seen on seen.id = named.id
    ), counted as (
        select number, series, sequence, customer, period, events, len(event_ids) as ids
        from documents where len(event_ids) <> case when names_events then events else 0 end
    )
    select number, series, sequence, customer, period, id, known, same, copies, null as events, null as ids
    from judged where not known or not same or copies > 1
    union all
    select number, series, sequence, customer, period, null, null, null, null, events, ids from counted
    order by series, sequence, id
"""


def _say_event_id(row: Row) -> str:
    document = f"{row['number']} of {row['customer']} for {row['period']}"
    if row["id"] is None:
        return f"{document} has {row['events']:,} events and names {row['ids']:,}."
    if not row["known"]:
        return f"{document} names the event {row['id']!r}, which the journal does not have as one that counts."
    if not row["same"]:
        return f"{document} names the event {row['id']!r}, which is of another customer or period."
    return f"{document} names the event {row['id']!r}, which is named {row['copies']} times in all."


DOCUMENT_LAWS = (
    Law("numbers", "Documents are numbered without gaps, each number once", _NUMBERS, _say_number),
    Law(
        "once",
        "A customer has one invoice for a period, and one note of a kind for the same late events",
        ONCE,
        _say_twice,
    ),
    Law(
        "none-missing",
        "Whoever has events in a closed period has an invoice for it",
        MISSING,
        lambda row: (
            f"{row['customer']}, {period(row)}: the period is closed, but there is no invoice in {row['currency']}."
        ),
    ),
    Law(
        "closed",
        "A closed period has no open rows",
        _STILL_OPEN,
        lambda row: (
            f"{account(row)}: the watermark, {moment(row['watermark_us'])}, has closed the period, but the row is open."
        ),
    ),
    Law(
        "not-early",
        "No document is sealed before its period is closed",
        _TOO_EARLY,
        lambda row: (
            f"{row['number']} of {row['customer']} for {row['period']}: its period ends at "
            f"{moment(row['period_end_us'])}, but no event allows more than {moment(row['closed_us'])}."
        ),
    ),
    Law("totals", "A document's totals are the sums of its lines and of its rounding", _TOTALS, _say_totals),
    Law(
        "rounding",
        "What is charged is the exact amount rounded once, with rounding as a line",
        _ROUNDING,
        _say_rounding,
    ),
    Law("prices", "A line's amount is the plan's price of its quantity, and is rounded once", _PRICES, _say_price),
    Law("headers", "A document's period is one of its plans' calendar", _HEADERS, _say_header),
    Law("notes", "A note corrects an earlier invoice of the same customer, period and currency", _NOTES, _say_note),
    Law(
        "late-events",
        "Notes and late invoices name their events, each of which exists, once",
        _EVENT_IDS,
        _say_event_id,
    ),
)
