"""The pace of all bills: their amount up to an hour of the period, against the previous period at the same hour.

Two hours correspond if as many days and hours have passed since the first midnight, by the clocks of the plan's time
zone: the 18th of April at two in the afternoon, and the 18th of March. The last full hour before the job's clock
counts. If the period is over, or the previous one has no such day, the whole period counts. The hours come from the
journal, the amounts of the periods from the totals at the same position. The difference between hours and totals is
reported: the journal may have dropped events, or may have late events twice.

**Hours** are a fold of the journal, in a child process, one fold at a time:

    python -m stateside.billing.answers.pace FOLDER OFFSET PERIOD...     by the events before OFFSET

    {"newest_us": 1776519000000000, "hours": [["basic@1", 1777586400000000, 30, 91500, 1], …]}

An hour's amount is the increase of the bills: the price of all that a customer had used by the hour's end, less the
price of the usage by its beginning, line by line. So the hours up to one of them are the bills at that time, and all
hours of a period are its amount, to the micro. An event counts in the hour of its event time, not of its arrival. Hours
are wall clock hours in the plan's time zone, counted from the period's first midnight: hour 30 is from six to seven in
the morning of the second day. Why the hours are no view: docs/design/billing.md.

The journal is only read. Segments whose zone maps exclude these periods are not opened. De-duplication, where the query
drops duplicates, and sums run in DuckDB, which spills to disk beyond `MEMORY_MAX`.

**Cache** (`Paces`). A fold takes some seconds per million events of two periods. A cached pace is valid as long as the
totals are unchanged; or, while events keep arriving, until its age is `KEPT_S` or `SHARE` times the duration of its
fold, whichever is longer. Its stamp has its age. The first caller waits for `WAIT_S`, and then gets None. After a
failed fold there is no other for `SHARE` times its duration: callers get the cached pace, or else the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.answers.explain import deduplicates
from stateside.billing.answers.period_names import Ends
from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.calendar import Cycle, local
from stateside.billing.invoicing.amounts import Amounts, Longs, groups, longs, period_ends
from stateside.billing.model import GRACE_US, HOUR_US, VIEW, lateness_in_force
from stateside.billing.plans.file import PlanVersion
from stateside.billing.rating.rating import events_of, is_usage, joined, rate
from stateside.core import Layout, Storage, processes
from stateside.core.errors import StateError
from stateside.journal import PARTITION, Conditions, Log, NumberRange, open_journal, stretches
from stateside.serving import Stamp, iso_time
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
    usage = rated.filter(is_usage(rated))
    times_us, ends = longs(usage["time"]), period_ends(usage, book)
    numbers, wanted = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.bool_)
    for (plan,), rows in groups(usage, "plan"):
        numbers[rows] = hour_numbers(book.plans[plan].cycle, times_us[rows], ends[rows])
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
    wall = local(time_us, zone)
    return wall.date(), wall.hour


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


_ALL: Final = 10**6  # more hours than in any period
Totals = Mapping[str, Any]  # of a period, as shown by `totals.period_totals`


def label_before(label: str, cycles: Mapping[str, Cycle]) -> str | None:
    """The name of the previous period; None for a name without a period in any plan."""
    for plan, end_us in Ends.of(label, cycles).by_plan.items():
        return cycles[plan].containing(cycles[plan].ending(end_us).start_us - 1).label
    return None


def pace(
    totals: Totals,
    before: Totals,
    found: Hours,
    plans: Mapping[str, PlanVersion],
    watermark_us: int,
    allowed_us: int = GRACE_US,
) -> dict[str, Any]:
    """The pace as the API shows it, by currency. `found` has the hours of both periods, from the totals' events."""
    cycles = {name: plan.cycle for name, plan in plans.items()}
    ends, ends_before = (Ends.of(one["period"], cycles) for one in (totals, before))
    now_us = max(found.newest_us, watermark_us + allowed_us)
    passed = {plan: _passed(cycles[plan], end_us, now_us) for plan, end_us in ends.by_plan.items()}
    currencies = sorted({one["currency"] for one in totals["currencies"]})
    shown = []
    for currency in currencies:
        names = [name for name, plan in plans.items() if plan.currency == currency and name in passed]
        sides = [_PeriodSide.of(one, names, found.hours) for one in (ends, ends_before)]
        shown.append(_shown(currency, sides, (totals, before), {name: passed[name] for name in names}, cycles))
    over = all(hours == _ALL for hours in passed.values())
    return {
        "period": totals["period"],
        "before": before["period"],
        "now": iso_time(min(now_us, max(ends.ends_us, default=now_us))),
        "over": over,
        "currencies": shown,
    }


@dataclass(frozen=True, slots=True)
class _PeriodSide:
    """One of the two periods in one currency."""

    ends: Mapping[str, int]  # by plan
    hours: Sequence[Hour]

    @classmethod
    def of(cls, ends: Ends, plans: Sequence[str], hours: Sequence[Hour]) -> _PeriodSide:
        mine = {plan: end_us for plan, end_us in ends.by_plan.items() if plan in plans}
        return cls(mine, [hour for hour in hours if mine.get(hour.plan) == hour.end_us])

    def up_to(self, passed: Mapping[str, int]) -> int:
        """The amount before a given hour of each plan."""
        return sum(hour.amount_micros for hour in self.hours if hour.number < passed[hour.plan])

    def days(self, count: int) -> list[int]:
        """The amount of each day."""
        sums: dict[int, int] = defaultdict(int)
        for hour in self.hours:
            sums[hour.number // HOURS_PER_DAY] += hour.amount_micros
        return [sums[day] for day in range(count)]

    def unplaced(self, totals: Totals, currency: str) -> int:
        """The part of the totals that is in no hour."""
        amount: int = sum(one["amount_micros"] for one in totals["currencies"] if one["currency"] == currency)
        return amount - sum(hour.amount_micros for hour in self.hours)


def _shown(
    currency: str,
    sides: Sequence[_PeriodSide],
    both: Sequence[Totals],
    passed: Mapping[str, int],
    cycles: Mapping[str, Cycle],
) -> dict[str, Any]:
    plan = min(passed)  # the plan whose days are shown; plans of one currency mostly share a time zone
    (first, count), (first_before, count_before) = (_length(cycles[plan], side.ends[plan]) for side in sides)
    hours = min(passed[plan], count * HOURS_PER_DAY)
    now, before = sides
    return {
        "currency": currency,
        "hours": hours,
        "first_day": str(first),
        "first_day_before": str(first_before),
        "amount_micros": now.up_to(passed),
        "amount_before_micros": before.up_to(passed),
        "days": now.days(min(count, -(-(hours + 1) // HOURS_PER_DAY))),
        "days_before": before.days(count_before),
        "days_in_period": count,
        "unplaced_micros": now.unplaced(both[0], currency),
        "unplaced_before_micros": before.unplaced(both[1], currency),
    }


def _passed(cycle: Cycle, end_us: int, now_us: int) -> int:
    """The number of full hours of a period that have passed; `_ALL` if the period is over."""
    period = cycle.ending(end_us)
    if now_us >= end_us:
        return _ALL
    if now_us < period.start_us:
        return 0
    return int(hour_numbers(cycle, np.array([now_us]), np.array([end_us]))[0])


def _length(cycle: Cycle, end_us: int) -> tuple[date, int]:
    """A period's first day, and its number of days."""
    period = cycle.ending(end_us)
    first, last = (local(us, cycle.time_zone).date() for us in (period.start_us, period.end_us - 1))
    return first, (last - first) // timedelta(days=1) + 1


KEPT_S: Final = 60.0
SHARE: Final = 20  # folds may take one twentieth of the time
WAIT_S: Final = 10.0
FOLD_S_MAX: Final = 900
PERIODS_KEPT: Final = 24


@dataclass(frozen=True, slots=True)
class CachedPace:
    """A pace, with the totals of its fold."""

    stamp: Stamp
    totals: tuple[Totals, Totals]
    document: Mapping[str, Any]
    made_s: float
    took_s: float

    def serves(self, totals: tuple[Totals, Totals], now_s: float) -> bool:
        """Whether the pace is still valid."""
        return totals == self.totals or now_s - self.made_s < max(KEPT_S, SHARE * self.took_s)

    def stamp_at(self, now_s: float) -> Stamp:
        """The stamp, with the present age."""
        return replace(self.stamp, age_ms=self.stamp.age_ms + int((now_s - self.made_s + self.took_s) * 1_000))


@dataclass(frozen=True, slots=True)
class Failed:
    error: BaseException
    ended_s: float
    took_s: float

    def stands(self, now_s: float) -> bool:
        """Whether it is too early for another fold."""
        return now_s - self.ended_s < SHARE * self.took_s


class Paces:
    """The paces of a folder's periods: one instance for each worker process."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept: OrderedDict[str, CachedPace] = OrderedDict()
        self._failed: OrderedDict[str, Failed] = OrderedDict()
        self._made: dict[str, asyncio.Task[CachedPace]] = {}
        self._one = asyncio.Lock()

    async def of(
        self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]
    ) -> tuple[Stamp, Mapping[str, Any]] | None:
        """The pace of the period of these totals, at this stamp; None while not ready."""
        label, now_s = totals["period"], time.monotonic()
        kept, failed = self._kept.get(label), self._failed.get(label)
        if kept is None and failed is not None and failed.stands(now_s):
            raise failed.error.with_traceback(None)
        if kept is None or not (kept.serves((totals, before), now_s) or (failed is not None and failed.stands(now_s))):
            task = self._made.get(label) or self._make(stamp, totals, before, plans)
            if kept is None:
                done, _ = await asyncio.wait([task], timeout=WAIT_S)
                kept = task.result() if done else None
        return None if kept is None else (kept.stamp_at(time.monotonic()), kept.document)

    def _make(
        self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]
    ) -> asyncio.Task[CachedPace]:
        label, began_s = totals["period"], time.monotonic()
        task = asyncio.get_running_loop().create_task(self._fold(stamp, totals, before, plans))
        self._made[label] = task
        task.add_done_callback(lambda task: self._keep(label, task, began_s))
        return task

    async def _fold(self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]) -> CachedPace:
        began_s = time.monotonic()
        async with self._one:
            found = await self._hours(stamp, totals["period"], before["period"])
        document = pace(totals, before, found, plans, stamp.watermark_us, lateness_in_force(self._layout))
        now_s = time.monotonic()
        return CachedPace(stamp, (totals, before), document, now_s, now_s - began_s)

    def _keep(self, label: str, task: asyncio.Task[CachedPace], began_s: float) -> None:
        del self._made[label]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failed.pop(label, None)
            _put(self._kept, label, task.result())
        else:
            now_s = time.monotonic()
            _put(self._failed, label, Failed(error, now_s, now_s - began_s))

    async def _hours(self, stamp: Stamp, *labels: str) -> Hours:
        stop = str(stamp.position[PARTITION])
        command = [sys.executable, "-m", "stateside.billing.answers.pace", str(self._layout.root), stop, *labels]
        try:
            code, output, errors = await processes.run(command, FOLD_S_MAX)
        except TimeoutError:
            raise StateError(f"Adding up the hours of {labels[0]} took more than {FOLD_S_MAX} s") from None
        if code:
            last = (errors.strip().splitlines() or ["without a word"])[-1]
            raise StateError(f"The hours of {labels[0]} cannot be added up: {last}")
        return Hours.parse(output)


def _put(among: OrderedDict[str, Any], label: str, value: CachedPace | Failed) -> None:
    """Store a value, and evict the oldest beyond PERIODS_KEPT."""
    among[label] = value
    among.move_to_end(label)
    while len(among) > PERIODS_KEPT:
        among.popitem(last=False)


def main(folder: Path, stop: int, labels: Sequence[str]) -> None:
    layout = Layout(folder)
    view, journal = layout.view(VIEW), open_journal(layout.journal).log()
    book = BookKeeper(journal, view.root / "book").at(stop)
    once = deduplicates(Checkpoint(Storage.at(view.checkpoint)))
    print(hours(journal, book, labels, stop, once=once).as_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
