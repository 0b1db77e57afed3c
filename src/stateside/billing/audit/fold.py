"""The fold: every event of the journal, in order, into the ledger, once and in exactly one class.

The fold reads a chunk of events, classifies the events by a few joins, and adds the chunk to the ledger in one
transaction:

1. Publications of plans and assignments of customers are folded one by one (`reference_data`).
2. A usage event is joined with the newest assignment of its customer that precedes the event and is in effect at the
   event's time, and by the same rule with the newest version of the assigned plan.
3. The first broken rule makes the event a bad event, with the rule's name as the reason.
4. Of the others, the first event of an id counts; any later one is a duplicate.
5. The journal's first event may set the allowed lateness; any other event of this type is bad.
6. A counted event is added to its account: customer, period, type on the bill, plan.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.reference_data import NAMED, QUANTITY_MAX, AuditCycle, fold_references, periods
from stateside.core import Watch, nobody
from stateside.journal import Log
from stateside.journal.columns import SCHEMA

CHUNK_EVENTS = 250_000

LATENESS_US = 3 * 24 * 3_600_000_000  # the watermark's delay, unless the journal's first event sets another
LATENESS_US_MAX = 366 * 24 * 3_600_000_000
FUTURE_US_MAX = 3_600_000_000  # maximum of an event's time beyond its append time


_LIMITS = ", ".join(f"('{type_}', {largest})" for type_, largest in QUANTITY_MAX.items())

_ALLOWED_US = "try_cast(json_extract_string(payload, '$.quantity') as bigint)"
_SETS_LATENESS = f"""
    ("offset" = 0 and type = 'lateness' and json_type(payload, '$.quantity') in ('UBIGINT', 'BIGINT')
     and coalesce({_ALLOWED_US} between 0 and {LATENESS_US_MAX}, false))
"""
_LATENESS = f"""
    update fold set lateness_us = (select {_ALLOWED_US} from chunk where {_SETS_LATENESS})
    where exists (from chunk where {_SETS_LATENESS})
"""

# A payload field of a wrong type, or a quantity beyond 64 bits, makes the event malformed.
_READ = f"""
    create or replace temp table usage as
    with parsed as (
        select "offset", id, entity, type, time_us, appended_us,
               json_type(payload, ['$.quantity', '$.name', '$.currency']) as kinds,
               json_extract_string(payload, ['$.quantity', '$.name', '$.currency']) as texts
        from chunk where type not in ('plan', 'assign', 'clock') and not {_SETS_LATENESS}
    ), limits(type, quantity_max) as (values {_LIMITS})
    select "offset", id, entity, type, time_us, appended_us, quantity_max,
           case when kinds[1] in ('UBIGINT', 'BIGINT') then try_cast(texts[1] as bigint) end as quantity,
           case when kinds[2] = 'VARCHAR' then texts[2] end as name,
           case when kinds[3] = 'VARCHAR' then texts[3] end as currency,
           coalesce(kinds[2], 'NULL') in ('VARCHAR', 'NULL') and coalesce(kinds[3], 'NULL') in ('VARCHAR', 'NULL')
               as texts_are_texts,
           case when type in {NAMED} then type || ':' || name else type end as bill_type
    from parsed left join limits using (type)
"""

# Reference data are accepted in the journal's order and each takes effect after the one before. So the newest one that
# precedes an event and is in effect at its time has the highest number.
_ASSIGN = """
    create or replace temp table assigned as
    select usage."offset", any_value(usage.time_us) as time_us, arg_max(assignments.plan, assignments.number) as plan
    from usage join assignments
        on assignments.customer = usage.entity
        and assignments.effective_us <= usage.time_us and assignments."offset" < usage."offset"
    group by usage."offset"
"""
_VERSION = """
    create or replace temp table versions as
    select assigned."offset", arg_max(plans.id, plans.version) as plan
    from assigned join plans
        on plans.plan = assigned.plan and plans.effective_us <= assigned.time_us and plans."offset" < assigned."offset"
    group by assigned."offset"
"""

_CLASSIFY = f"""
    create or replace temp table classified as
    select usage."offset", usage.id, entity as customer, usage.type, bill_type, usage.time_us, quantity, versions.plan,
           kind, time_zone, anchor_day,
           case
               when quantity_max is null then 'unknown-type'
               when quantity is null or not texts_are_texts or coalesce(bill_type, '') in ('', 'package:', 'fee:')
                   then 'malformed'
               when usage.time_us > appended_us + {FUTURE_US_MAX} then 'future-dated'
               when quantity < 0 then 'negative-quantity'
               when quantity > quantity_max then 'absurd-quantity'
               when assigned.plan is null then 'unknown-customer'
               when versions.plan is null then 'unknown-plan'
               when prices.plan_id is null then 'not-in-plan'
               when usage.currency <> plans.currency then 'wrong-currency'
           end as reason
    from usage
    left join assigned on assigned."offset" = usage."offset"
    left join versions on versions."offset" = usage."offset"
    left join plans on plans.id = versions.plan
    left join prices on prices.plan_id = versions.plan and prices.type = usage.bill_type
"""

_PERIODS = """
    create or replace temp table valid as
    with counted as (
        select classified.*, hash(entity, chunk.type, chunk.time_us, payload) as content
        from classified join chunk on chunk."offset" = classified."offset" where reason is null
    )
    select counted."offset", id, customer, bill_type as type, plan, quantity, content, periods.end_us as period_end_us
    from counted asof join periods
        on periods.kind = counted.kind and periods.time_zone = counted.time_zone
        and periods.anchor_day = counted.anchor_day and counted.time_us >= periods.start_us
"""

_DUPLICATES = """
    create or replace temp table repeated as
    with firsts as (
        select id, min("offset") as "offset", arg_min(content, "offset") as content from valid group by id
    ),
    known as (select seen.id, seen."offset", seen.content from seen semi join firsts on firsts.id = seen.id)
    select valid."offset", coalesce(known."offset", firsts."offset") as first_offset,
           valid.content = coalesce(known.content, firsts.content) as says_the_same
    from valid join firsts on firsts.id = valid.id left join known on known.id = valid.id
    where known.id is not null or valid."offset" > firsts."offset"
"""

_STORE = f"""
    insert into duplicates
        select "offset", id, first_offset, says_the_same, customer, period_end_us, type, plan, quantity
        from valid join repeated using ("offset");
    insert into seen
        select id, "offset", customer, period_end_us, content from valid anti join repeated using ("offset");
    insert into sums
        select customer, period_end_us, type, plan, sum(quantity), count(*)
        from valid anti join repeated using ("offset") group by all;
    insert into bad
        select "offset", id, customer, type, reason from classified where reason is not null
        union all
        select "offset", id, entity, type, 'future-dated' from chunk
        where type = 'clock' and time_us > appended_us + {FUTURE_US_MAX};
"""

# Duplicates move the watermark too; bad events do not.
_CLOCK = f"""
    with ticks as (select time_us from chunk where type = 'clock' and time_us <= appended_us + {FUTURE_US_MAX}),
    times as (from ticks union all select time_us from classified where reason is null)
    update fold set
        clocks = clocks + (select count(*) from ticks),
        time_us_max = greatest(time_us_max, (select max(time_us) from times))
"""


def fold(ledger: Ledger, journal: Log, stop: int, watch: Watch = nobody) -> None:
    """Fold the journal from the ledger's position up to `stop`. A crash loses at most one chunk's work."""
    for start, upto, chunk in chunks(journal, ledger.position, stop):
        with ledger.transaction():
            fold_chunk(ledger, chunk)
            digest, moved = digest_of(ledger, chunk), [upto, chunk.num_rows, journal.id()]
            ledger.sql.execute("insert into chunks values (?, ?, ?)", [start, upto, digest])
            ledger.sql.execute("update fold set position = ?, events = events + ?, journal = ?", moved)
            ledger.add_up()
        watch(upto, stop)


def chunks(journal: Log, start: int, stop: int) -> Iterator[tuple[int, int, pa.Table]]:
    """The events of a range in chunks, with offsets, and with times in microseconds.

    A chunk comes with its first offset and its end; offsets in between may have no event.
    """
    while start < stop:
        upto = min(stop, start + CHUNK_EVENTS)
        found = list(journal.batches(start, upto))
        events = pa.Table.from_batches([batch for _, batch in found], SCHEMA)
        offsets = np.concatenate([np.arange(0), *(np.arange(at, at + batch.num_rows) for at, batch in found)])
        times = [events[name].cast(pa.int64()) for name in ("time", "appended")]
        columns = {name: events[name] for name in ("id", "entity", "type", "payload")}
        yield start, upto, pa.table({"offset": offsets, **columns, "time_us": times[0], "appended_us": times[1]})
        start = upto


def digest_of(ledger: Ledger, chunk: pa.Table) -> int:
    """A digest of all fields of these events; any change of the events changes it."""
    ledger.sql.register("chunk", chunk)
    fields = '"offset", id, entity, type, payload, time_us, appended_us'
    return int(ledger.one(f"select coalesce(sum(hash({fields})), 0) from chunk"))  # no event: only Kafka's own markers


def fold_chunk(ledger: Ledger, chunk: pa.Table) -> None:
    """Steps 1 to 6."""
    ledger.sql.register("chunk", chunk)
    fold_references(ledger, FUTURE_US_MAX)
    for step in (_READ, _ASSIGN, _VERSION, _CLASSIFY):
        ledger.sql.execute(step)
    _add_periods(ledger)
    for step in (_PERIODS, _DUPLICATES, _STORE, _CLOCK, _LATENESS):
        ledger.sql.execute(step)


def _add_periods(ledger: Ledger) -> None:
    """Add the periods of the chunk's events to the ledger. Every cycle's periods stay without gaps."""
    spans = ledger.rows("""
        with needed as (
            select kind, time_zone, anchor_day, min(time_us) as first_us, max(time_us) as last_us
            from classified where reason is null group by all
        ), known as (
            select kind, time_zone, anchor_day, min(start_us) as start_us, max(end_us) as end_us
            from periods group by all
        )
        select kind, time_zone, anchor_day, least(first_us, start_us), greatest(last_us, end_us - 1)
        from needed left join known using (kind, time_zone, anchor_day)
        where start_us is null or first_us < start_us or last_us >= end_us
    """)
    for kind, time_zone, anchor_day, first_us, last_us in spans:
        cycle = (kind, time_zone, anchor_day)
        ledger.sql.execute("delete from periods where (kind, time_zone, anchor_day) = (?, ?, ?)", cycle)
        for period in periods(AuditCycle(*cycle), first_us, last_us):
            row = [*cycle, period.label, period.start_us, period.end_us]
            ledger.sql.execute("insert into periods values (?, ?, ?, ?, ?, ?)", row)
