"""Amounts per hour of some periods, over all customers: a fold of the journal, run in a child process.

    python -m stateside.billing.answers.hours FOLDER OFFSET PERIOD...     by the events before OFFSET

    {"newest_us": 1776519000000000, "hours": [["basic@1", 1777586400000000, 30, 91500, 1], …]}

An hour's amount is the increase of the bills: the price of all that a customer had used by the hour's end, less the
price of the usage by its beginning, line by line. So the hours up to one of them are the bills at that time, and all
hours of a period are its amount, to the micro. An event counts in the hour of its event time, not of its arrival. Hours
are wall clock hours in the plan's time zone, counted from the period's first midnight: hour 30 is from six to seven in
the morning of the second day.

The journal is only read. Segments whose zone maps exclude these periods are not opened. De-duplication, where the query
drops duplicates, and sums run in DuckDB, which spills to disk beyond `MEMORY_MAX`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.answers.explain import deduplicates
from stateside.billing.answers.period_names import Ends
from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.invoicing.amounts import Amounts, Longs
from stateside.billing.model import CLOCK, HOUR_US, VIEW
from stateside.billing.rating.rating import events_of, joined, rate
from stateside.core import Layout, Storage
from stateside.journal import Conditions, Log, NumberRange, open_journal, stretches
from stateside.spark_state import Checkpoint

MEMORY_MAX: Final = "512MB"
HOURS_PER_DAY: Final = 24
ROWS_PER_TABLE: Final = 100_000  # rated at a time
_QUARTER_US: Final = HOUR_US // 4  # no time zone shifts its clock by less
_EXACT: Final = pa.decimal128(38, 0)  # for sums of longs without overflow
_USED: Final = "id text, place bigint, customer text, plan text, type text, end_us bigint, hour int, quantity bigint"
_FIRSTS: Final = "delete from used where place not in (select min(place) from used group by id, end_us)"
_LINES: Final = """
    with hours as (
        select customer, plan, type, end_us, hour, sum(quantity) as quantity, count(*) as events from used group by all
    )
    select plan, type, end_us, hour, events, quantity::bigint as quantity, (
        sum(quantity) over (partition by customer, plan, type, end_us order by hour)
    )::bigint as up_to
    from hours
"""


@dataclass(frozen=True, slots=True)
class Hour:
    """The amount of one hour of a plan's period: `number` counts from the period's first midnight."""

    plan: str
    end_us: int
    number: int
    amount_micros: int
    events: int


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours with an amount, and the time of the newest event in the periods; 0 without events."""

    newest_us: int
    hours: Sequence[Hour]

    def as_json(self) -> str:
        return json.dumps({"newest_us": self.newest_us, "hours": [astuple(hour) for hour in self.hours]})

    @classmethod
    def parse(cls, text: str) -> Hours:
        """The inverse of `as_json`."""
        document = json.loads(text)
        return cls(document["newest_us"], [Hour(*hour) for hour in document["hours"]])


def hours(journal: Log, book: Book, labels: Sequence[str], stop: int, *, once: bool) -> Hours:
    """The hours of the named periods, from the events before an offset; `once`: an id counts once per period."""
    cycles = {version.id: version.cycle for version in book.versions}
    ends_us = {(plan, end) for label in labels for plan, end in Ends.of(label, cycles).by_plan.items()}
    if not ends_us:
        return Hours(0, [])
    newest_us = 0
    with tempfile.TemporaryDirectory() as spill, duckdb.connect(config=_config(spill)) as connection:
        connection.execute(f"create table used ({_USED})")
        for events in _events(journal, book, ends_us, stop):
            used = _of_periods(rate(events, book), book, ends_us)
            newest_us = max(newest_us, pc.max(used["time_us"]).as_py() or 0)
            connection.from_arrow(used.drop_columns("time_us")).insert_into("used")
        if once:
            connection.execute(_FIRSTS)
        lines = connection.sql(_LINES).to_arrow_reader(ROWS_PER_TABLE)
        return Hours(newest_us, _added_up(_priced(pa.Table.from_batches([batch]), book) for batch in lines))


def _config(spill: str) -> dict[str, str | bool | int | float | list[str]]:
    return {"memory_limit": MEMORY_MAX, "temp_directory": spill, "preserve_insertion_order": False}


def _events(journal: Log, book: Book, ends_us: set[tuple[str, int]], stop: int) -> Iterator[pa.Table]:
    """The events within these plans' periods, in tables of about ROWS_PER_TABLE rows."""
    starts = [book.plans[plan].cycle.ending(end_us).start_us for plan, end_us in ends_us]
    within = Conditions(time=NumberRange(min(starts), max(end_us for _, end_us in ends_us) - 1))
    waiting: list[pa.Table] = []
    for stretch in stretches(journal, journal.begin().one(), stop, within):
        for first, batch in journal.batches(stretch.start, stretch.stop):
            rows = np.flatnonzero(np.asarray(within.wanted(batch)))
            waiting.append(events_of(batch.take(pa.array(rows)), first + rows))
            if sum(table.num_rows for table in waiting) >= ROWS_PER_TABLE:
                yield joined(waiting)
                waiting = []
    yield joined(waiting)


def _of_periods(rated: pa.Table, book: Book, ends_us: set[tuple[str, int]]) -> pa.Table:
    usage = rated.filter(pc.and_(pc.is_null(rated["reason"]), pc.not_equal(rated["type"], CLOCK)))
    times_us = np.asarray(usage["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), np.int64)
    plans = np.asarray(usage["plan"].to_pylist(), object)
    ends, numbers = np.zeros(len(plans), np.int64), np.zeros(len(plans), np.int64)
    wanted = np.zeros(len(plans), np.bool_)
    for plan in set(plans):
        rows, cycle = np.flatnonzero(plans == plan), book.plans[plan].cycle
        ends[rows] = cycle.ends(times_us[rows])
        numbers[rows] = hour_numbers(cycle, times_us[rows], ends[rows])
        wanted[rows] = np.isin(ends[rows], [end_us for of, end_us in ends_us if of == plan])
    columns = {name: usage[name] for name in ("id", "offset", "customer", "plan", "type")}
    columns |= {"end_us": ends, "hour": numbers.astype(np.int32), "quantity": usage["quantity"], "time_us": times_us}
    return pa.table(columns).filter(pa.array(wanted))


def hour_numbers(cycle: Cycle, times_us: Longs, ends_us: Longs) -> Longs:
    """The hour numbers of these moments, in the periods with these ends."""
    found = np.zeros(len(times_us), np.int64)
    quarters, inverse = np.unique(times_us // _QUARTER_US, return_inverse=True)
    walls = [_wall(int(quarter) * _QUARTER_US, cycle.time_zone) for quarter in quarters]
    for end_us in np.unique(ends_us):
        first = _wall(cycle.ending(int(end_us)).start_us, cycle.time_zone)[0]
        numbers = np.array([(day - first).days * HOURS_PER_DAY + hour for day, hour in walls], np.int64)
        rows = ends_us == end_us
        found[rows] = numbers[inverse[rows]]
    return found


def _wall(time_us: int, zone: str) -> tuple[date, int]:
    local = datetime.fromtimestamp(time_us // 1_000_000, ZoneInfo(zone))
    return local.date(), local.hour


def _priced(lines: pa.Table, book: Book) -> pa.Table:
    """The priced lines, summed by plan, period and hour."""
    amounts = Amounts(book.plans)
    up_to, quantity = (np.asarray(lines[name], np.int64) for name in ("up_to", "quantity"))
    added = amounts.amounts(lines, up_to) - amounts.amounts(lines, up_to - quantity)
    priced = lines.select(["plan", "end_us", "hour", "events"]).append_column("micros", pa.array(added).cast(_EXACT))
    return priced.group_by(["plan", "end_us", "hour"]).aggregate([("micros", "sum"), ("events", "sum")])


def _added_up(parts: Iterable[pa.Table]) -> list[Hour]:
    sums: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for part in parts:
        for row in part.to_pylist():
            cell = sums[row["plan"], row["end_us"], row["hour"]]
            cell[0] += int(row["micros_sum"])
            cell[1] += row["events_sum"]
    return [Hour(*key, micros, events) for key, (micros, events) in sorted(sums.items())]


def main(folder: Path, stop: int, labels: Sequence[str]) -> None:
    layout = Layout(folder)
    view, journal = layout.view(VIEW), open_journal(layout.journal).log()
    book = BookKeeper(journal, view.root / "book").at(stop)
    once = deduplicates(Checkpoint(Storage.at(view.checkpoint)))
    print(hours(journal, book, labels, stop, once=once).as_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
