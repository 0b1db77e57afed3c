"""The laws of accounts: journal and billing agree on each account to the micro, and every event is in one class.

Each account (customer, period, type on the bill, plan) is compared separately, so that two errors never cancel out.
"""

from __future__ import annotations

from stateside.billing.audit.fold import LATENESS_US
from stateside.billing.audit.law import Law, Row, account, by_how_much, moment, money, numbers
from stateside.billing.audit.ledger import Ledger

NAMED_PERIODS = """
    create or replace temp view named_periods as
    select plans.id as plan, plans.currency, periods.label as period,
           periods.start_us as period_start_us, periods.end_us as period_end_us
    from plans join periods using (kind, time_zone, anchor_day)
"""

CONSERVATION = """
    with journal as (
        select accounts.*, price(quantity, tiers) as amount_micros
        from accounts join prices on prices.plan_id = accounts.plan and prices.type = accounts.type
    ), parts as (
        select customer, period_end_us, type, plan, quantity, events, amount_micros from open_rows
        union all
        select customer, period_end_us, type, plan, quantity, events, amount_micros from lines
    ), found as (
        select customer, period_end_us, type, plan, sum(quantity) as quantity, sum(events) as events,
               sum(amount_micros) as amount_micros
        from parts group by all
    )
    select customer, period_end_us, type, plan, period, currency,
           journal.quantity, journal.events, journal.amount_micros,
           found.quantity as found_quantity, found.events as found_events, found.amount_micros as found_amount_micros
    from journal full join found using (customer, period_end_us, type, plan)
    left join named_periods using (plan, period_end_us)
    where (journal.quantity, journal.events, journal.amount_micros)
        is distinct from (found.quantity, found.events, found.amount_micros)
    order by customer, period_end_us, type, plan
"""


def _say_conservation(row: Row) -> str:
    currency = row["currency"]
    journal = numbers(row["quantity"], row["events"], row["amount_micros"], currency)
    found = numbers(row["found_quantity"], row["found_events"], row["found_amount_micros"], currency)
    more = [(row[f"found_{name}"] or 0) - (row[name] or 0) for name in ("quantity", "events", "amount_micros")]
    off = [by_how_much(more[0], " of quantity")] if more[0] else []
    off += [by_how_much(more[1], f" event{'' if abs(more[1]) == 1 else 's'}")] if more[1] else []
    off += [f"{money(abs(more[2]), currency)} too {'much' if more[2] > 0 else 'little'}"] if more[2] else []
    return f"{account(row)}: the journal says {journal}; found {found}: {', '.join(off) or 'an account of nothing'}"


def _explain_conservation(ledger: Ledger, row: Row) -> str:
    """Where the found part lies, and whether a repeated event was counted twice."""
    key = [row["customer"], row["period_end_us"], row["type"], row["plan"]]
    places = ledger.rows(
        """
        select place from (
            select customer, period_end_us, type, plan, 'the running bill' as place, 0 as sequence from open_rows
            union all
            select customer, period_end_us, type, plan, number, sequence from lines
        ) where (customer, period_end_us, type, plan) = (?, ?, ?, ?) order by sequence
        """,
        *key,
    )
    where = f" (in {', '.join(place for (place,) in places)})" if places else " (it is nowhere)"
    return where + "." + (_twice(ledger, key) if (row["found_events"] or 0) > (row["events"] or 0) else "")


def _twice(ledger: Ledger, key: list[object]) -> str:
    """Repeated events of the account, a possible cause of too many events."""
    repeated = ledger.rows(
        """
        with named as (select number, customer, period_end_us, unnest(event_ids) as id from documents)
        select duplicates.id, first_offset, "offset", number
        from duplicates left join named using (customer, period_end_us, id)
        where (customer, period_end_us, type, plan) = (?, ?, ?, ?) order by number is null, "offset" limit 3
        """,
        *key,
    )
    return "".join(
        f" The event {id_!r} came twice, at offsets {first} and {again}, and counts once; "
        + (
            f"{number} billed the repetition, which came beyond the horizon of de-duplication."
            if number
            else "the repetition may have been counted as well."
        )
        for id_, first, again, number in repeated
    )


DEAD_LETTERS = """
    with letters as (
        select "offset", count(*) as copies, min(reason) as reason, min(id) as id
        from dead_letters where reason not in ('repeated', 'id-conflict') group by "offset"
    )
    select coalesce(bad."offset", letters."offset") as "offset", coalesce(bad.id, letters.id) as id, copies,
           bad.reason as reason, letters.reason as found_reason, letters.id as found_id
    from bad full join letters on letters."offset" = bad."offset"
    where copies is distinct from 1 or bad.reason is distinct from letters.reason or bad.id is distinct from letters.id
    order by 1
"""


def _say_dead_letter(row: Row) -> str:
    event = f"The event {row['id']!r} at offset {row['offset']:,}"
    if row["copies"] is None:
        return f"{event} is {row['reason']}, but there is no dead letter of it."
    if row["reason"] is None:
        return f"{event} is a dead letter, {row['found_reason']}, but nothing is wrong with it."
    if row["copies"] > 1:
        return f"{event} is a dead letter {row['copies']} times."
    if row["found_reason"] != row["reason"]:
        return f"{event} is {row['reason']}, but its dead letter says {row['found_reason']}."
    return f"{event} is a dead letter under another id, {row['found_id']!r}."


# A repetition before the invoice of its period is sealed is dropped; a later one is a dead letter. So is the repetition
# of a late event, which a document names.
REPEATED = """
    with letters as (
        select "offset", count(*) as copies, min(reason) as reason, min(id) as id
        from dead_letters where reason in ('repeated', 'id-conflict') group by "offset"
    ), sealed as (
        select customer, period_end_us, min(sealed_position) as sealed_position
        from documents where not names_events group by all
    ), named as (select distinct unnest(event_ids) as id from documents where names_events),
    judged as (
        select coalesce(duplicates."offset", letters."offset") as "offset", coalesce(duplicates.id, letters.id) as id,
               first_offset, copies, letters.reason as found_reason,
               case when says_the_same then 'repeated' when not says_the_same then 'id-conflict' end as reason,
               coalesce(sealed_position <= duplicates."offset", false) or named.id is not null as closed
        from duplicates full join letters on letters."offset" = duplicates."offset"
        left join sealed using (customer, period_end_us) left join named on named.id = duplicates.id
    )
    select * from judged where reason is null or copies > 1 or found_reason <> reason or (closed and copies is null)
    order by "offset"
"""


def _say_repeated(row: Row) -> str:
    event = f"The event {row['id']!r} at offset {row['offset']:,}"
    if row["reason"] is None:
        return f"{event} is a dead letter, {row['found_reason']}, but no event before it has its id and counts."
    first = f"{event} has the id of the one at offset {row['first_offset']:,}"
    if row["copies"] is None:
        return f"{first}, whose period was closed, but there is no dead letter of it."
    if row["copies"] > 1:
        return f"{event} is a dead letter {row['copies']} times."
    return f"{first}, and is {row['reason']}, but its dead letter says {row['found_reason']}."


COUNTS = """
    select (select events from fold) as events,
           (select coalesce(sum(events), 0) from open_rows) as open,
           (select coalesce(sum(events), 0) from lines where series = 'I') as invoiced,
           (select coalesce(sum(events), 0) from lines where series = 'N') as corrected,
           (select count(*) from duplicates anti join dead_letters using ("offset")) as duplicates,
           (select count(*) from dead_letters) as dead_letters,
           (select count(*) from plans) + (select count(*) from assignments)
               + (select count(lateness_us) from fold) as reference,
           (select clocks from fold) as clock
"""


def _say_counts(row: Row) -> str:
    found = sum(int(value) for name, value in row.items() if name != "events")
    parts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in row.items() if name != "events")
    off = by_how_much(found - row["events"])
    return f"The journal has {row['events']:,} events, found were {found:,} ({parts}): {off}."


_ROLLUPS = """
    with added_up as (
        select period_end_us, plan, type, sum(quantity) as quantity, sum(events) as events,
               sum(amount_micros) as amount_micros
        from open_rows group by all
    )
    select period_end_us, plan, type, period, currency,
           added_up.quantity, added_up.events, added_up.amount_micros,
           rollup.quantity as found_quantity, rollup.events as found_events, rollup.amount_micros as found_amount_micros
    from added_up full join rollup_rows as rollup using (period_end_us, plan, type)
    left join named_periods using (plan, period_end_us)
    where (added_up.quantity, added_up.events, added_up.amount_micros)
        is distinct from (rollup.quantity, rollup.events, rollup.amount_micros)
    order by period_end_us, plan, type
"""


def _say_rollup(row: Row) -> str:
    rows = numbers(row["quantity"], row["events"], row["amount_micros"], row["currency"])
    found = numbers(row["found_quantity"], row["found_events"], row["found_amount_micros"], row["currency"])
    return f"{account({**row, 'customer': 'All customers'})}: the open rows add up to {rows}; the rollup says {found}."


# The highest watermark that the folded events allow: periods that end up to this time may be closed.
CLOSED_US = f"greatest(coalesce(time_us_max // 1000 * 1000 - coalesce(lateness_us, {LATENESS_US}), 0), 0)"
_WATERMARK = f"""
    select watermark_us, {CLOSED_US} as watermark_us_max
    from standing, fold where watermark_us > watermark_us_max
"""

ACCOUNT_LAWS = (
    Law(
        "conservation",
        "For every customer, period, type and plan the journal's events are the open rows, invoices and notes",
        CONSERVATION,
        _say_conservation,
        _explain_conservation,
    ),
    Law(
        "dead-letters",
        "The dead letters are the bad events, each once and for the same reason",
        DEAD_LETTERS,
        _say_dead_letter,
    ),
    Law(
        "repeated",
        "No id is billed twice: what has one again after its period was closed is a dead letter, once",
        REPEATED,
        _say_repeated,
    ),
    Law(
        "counts",
        "Every event of the journal is billed, a duplicate, a dead letter, reference data or a tick of the clock",
        f"select * from ({COUNTS}) where events"
        " <> open + invoiced + corrected + duplicates + dead_letters + reference + clock",
        _say_counts,
    ),
    Law("rollups", "Every rollup is the sum of its open rows", _ROLLUPS, _say_rollup),
    Law(
        "watermark",
        "No period is closed before its grace time is over",
        _WATERMARK,
        lambda row: (
            f"The watermark stands at {moment(row['watermark_us'])}, but no event allows more than "
            f"{moment(row['watermark_us_max'])}: periods are closed too early."
        ),
    ),
)
