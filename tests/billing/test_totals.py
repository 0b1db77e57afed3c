"""Totals: live rows and documents in one answer, right at every moment."""

from __future__ import annotations

import asyncio
import sys
import threading
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.archive.table_reader import FollowedTable
from stateside.billing.answers.document_store import DocumentStore, Gate, followed
from stateside.billing.answers.period_names import Ends, PublishedPlans
from stateside.billing.answers.totals import ROLLUP, ArchiveSums, TotalsPart, TotalSums, all_totals, period_totals
from stateside.billing.calendar import Cycle
from stateside.billing.model import DAY_US
from stateside.core.errors import RequestInvalid
from stateside.core.layout import Layout
from stateside.core.processes import Child
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.serving.stamp import iso_time
from tests.sizes import not_in_fast
from tests.waiting import wait_until

from .written_bills import BASIC, SWISS, WrittenBills, plan, step

BERLIN = Cycle("month", "Europe/Berlin")
JANUARY, FEBRUARY, MARCH = (
    BERLIN.containing(us).end_us for us in (1_768_000_000_000_000, 1_770_500_000_000_000, 1_773_000_000_000_000)
)
OPEN = Gate(10**9, 10**18)  # which lets everything through
ZONES = {"honolulu": "Pacific/Honolulu", "kiritimati": "Pacific/Kiritimati"}  # 24 hours apart
DAYS = ("2026-01-14", "2026-01-15")
PERIODS = {"2026-01": JANUARY, "2026-02": FEBRUARY, "2026-03": MARCH}


@pytest.fixture
def bills(layout: Layout) -> WrittenBills:
    return WrittenBills.begin(layout, plan(), plan(SWISS))


def totals(bills: WrittenBills, reader: ViewReader, sums: ArchiveSums, label: str) -> dict[str, Any]:
    plans = PublishedPlans(lambda: bills.plans, "test")
    ends = Ends.of(label, {name: each.cycle for name, each in bills.plans.items()})
    live = asyncio.run(reader.rollup(ROLLUP, [], Floor(wait_ms=0)))
    return {
        "batch": live.stamp.batch,
        **period_totals(ends, live.rows, sums.of(ends.ends_us, Gate.of(live.stamp)), plans),
    }


def test_a_period_s_totals_are_by_type_and_never_over_currencies(bills: WrittenBills, layout: Layout) -> None:
    bills.commit(
        {
            ("emma", JANUARY, "call", "basic@1"): (120, 2),
            ("ben", JANUARY, "call", "basic@1"): (60, 1),
            ("urs", JANUARY, "call", "swiss@1"): (180, 3),
            ("urs", JANUARY, "fee:base", "swiss@1"): (1, 1),
            ("urs", FEBRUARY, "fee:base", "swiss@1"): (1, 1),
        }
    )
    step(layout)
    reader = ViewReader(layout.view("bill"))
    found = totals(bills, reader, ArchiveSums(followed(layout)), "2026-01")
    reader.close()
    assert [(one["currency"], one["type"], one["quantity"], one["amount_micros"]) for one in found["totals"]] == [
        ("CHF", "call", 180, 180_000),
        ("CHF", "fee:base", 1, 9_990_000),
        ("EUR", "call", 180, 90_000),
    ]
    assert [(one["currency"], one["events"], one["amount_micros"]) for one in found["currencies"]] == [
        ("CHF", 4, 10_170_000),
        ("EUR", 3, 90_000),
    ]


DAILY = BASIC.replace('"basic"', '"daily"').replace('"month"', '"day"')
HONOLULU, KIRITIMATI = (DAILY.replace("daily", name).replace("Europe/Berlin", zone) for name, zone in ZONES.items())


def test_a_day_that_ends_with_the_month_is_no_part_of_it(layout: Layout) -> None:
    bills = WrittenBills.begin(layout, plan(), plan(DAILY))
    usage = {("emma", JANUARY, "call", "basic@1"): (120, 2), ("ben", JANUARY, "call", "daily@1"): (180, 1)}
    bills.commit(usage)
    found = {one["period"]: one for one in periods(bills)}
    assert {label: one["plans"] for label, one in found.items()} == {
        "2026-01": {"basic@1": "2026-01-31T23:00:00Z"},
        "2026-01-31": {"daily@1": "2026-01-31T23:00:00Z"},
    }
    assert [one["currencies"][0]["amount_micros"] for one in found.values()] == [90_000, 180_000]


def test_a_day_of_another_zone_that_ends_with_the_next_one_here_is_told_apart_by_plan_and_end() -> None:
    plans = {each.id: each for each in (plan(HONOLULU), plan(KIRITIMATI))}
    ends = {label: Ends.of(label, {name: each.cycle for name, each in plans.items()}) for label in DAYS}
    first, second = (ends[label].shown_by_plan() for label in DAYS)
    assert first["honolulu@1"] == second["kiritimati@1"], "both end at one moment, under two names"
    assert first["kiritimati@1"] < first["honolulu@1"]


class Counting(dict[str, Any]):
    """A row that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        Counting.looks += name == "period_end"
        return super().__getitem__(name)


@given(
    st.lists(st.tuples(st.sampled_from(["basic@1", "daily@1", "swiss@1"]), st.integers(0, 120), st.booleans())),
)
def test_all_totals_are_each_period_s_and_every_row_is_looked_at_once(used: list[tuple[str, int, bool]]) -> None:
    versions = {each.id: each for each in (plan(), plan(DAILY), plan(SWISS))}
    plans = PublishedPlans(lambda: versions, "test")
    ends = [
        (name, versions[name].cycle.containing(JANUARY + day * DAY_US).end_us, sealed) for name, day, sealed in used
    ]
    sums = TotalSums(60, 1, 30, 30)
    live = [Counting(row(name, end_us, sums)) for name, end_us, sealed in ends if not sealed]
    archived = [TotalsPart(end_us, name, "call", sums) for name, end_us, sealed in ends if sealed]
    Counting.looks = 0
    found = all_totals(live, archived, plans)
    assert Counting.looks == len(live)
    cycles = {name: each.cycle for name, each in versions.items()}
    assert found == [period_totals(Ends.of(one["period"], cycles), live, archived, plans) for one in found]
    assert sum(one["events"] for period in found for one in period["totals"]) == len(used)
    assert len({one["period"] for one in found}) == len(found)
    assert [one["period_ends"][0] for one in found] == sorted(one["period_ends"][0] for one in found)


def row(name: str, end_us: int, sums: TotalSums) -> dict[str, Any]:
    of_row = zip(("quantity", "events", "amount_micros"), sums, strict=False)
    return {"plan": name, "period_end": iso_time(end_us), "type": "call", **dict(of_row)}


def periods(bills: WrittenBills) -> list[dict[str, Any]]:
    step(bills.layout)
    reader = ViewReader(bills.layout.view("bill"))
    live = asyncio.run(reader.rollup(ROLLUP, [], Floor(wait_ms=0)))
    reader.close()
    sealed = ArchiveSums(followed(bills.layout)).of(None, Gate.of(live.stamp))
    return all_totals(live.rows, sealed, PublishedPlans(lambda: bills.plans, "test"))


@pytest.mark.e2e
def test_a_watcher_sees_the_right_total_in_every_answer_while_three_periods_seal(
    bills: WrittenBills, layout: Layout
) -> None:
    """Documents are stored before the batch is committed, as the real sink does it, with a pause between the two.

    Without the gate, which is the stamp's watermark, an answer in that pause counts a period twice: the
    test then fails, see the next one.
    """
    customers = [f"c{number}" for number in range(40)]
    bills.commit(
        {
            (who, end, "call", "basic@1"): (60 + 60 * (n + 1), 3)
            for end in PERIODS.values()
            for n, who in enumerate(customers)
        }
    )
    expected = 90_000 * sum(range(1, 41))
    step(layout)
    wrong, answers, pauses = watch(bills, layout, expected)
    assert not wrong
    assert answers > 20
    assert pauses > 0, "or the moment that matters was never looked at"


@pytest.mark.e2e
def test_without_the_gate_the_watcher_sees_a_period_twice(
    bills: WrittenBills, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the test above can fail."""
    gated = ArchiveSums.of
    monkeypatch.setattr(ArchiveSums, "of", lambda self, ends_us, gate: gated(self, ends_us, OPEN))
    bills.commit({("emma", end, "call", "basic@1"): (120, 3) for end in PERIODS.values()})
    step(layout)
    wrong, _, _ = watch(bills, layout, 90_000)
    assert wrong


FOLLOW = """
import pathlib, sys, threading
from stateside.core.layout import Layout
from stateside.replica.tail import Tail
Tail(Layout(pathlib.Path(sys.argv[1])).view("bill")).run(threading.Event())
"""


def wait_beside(tail: Child, condition: Callable[[], bool]) -> None:
    def so_far() -> bool:
        assert tail.returncode() is None, tail.tail()
        return condition()

    wait_until(so_far, tail.tail)


def watch(bills: WrittenBills, layout: Layout, expected: int) -> tuple[list[Any], int, int]:
    """Ask all the while as three periods seal; the wrong answers, how many there were, how many inside a pause."""
    stop, paused = threading.Event(), threading.Event()
    wrong: list[Any] = []
    counts = {"answers": 0, "pauses": 0, "batch": -1}

    def look() -> None:
        reader, sums = ViewReader(layout.view("bill")), ArchiveSums(followed(layout))
        while not stop.is_set():
            inside = paused.is_set()
            for label in PERIODS:
                found = totals(bills, reader, sums, label)
                (shown,) = found["currencies"]
                counts["answers"] += 1
                counts["batch"] = found["batch"]
                counts["pauses"] += inside and paused.is_set()
                if shown["amount_micros"] != expected:
                    wrong.append(found)
        reader.close()

    watcher = threading.Thread(target=look)
    watcher.start()
    tail = Child([sys.executable, "-c", FOLLOW, str(layout.root)], layout.root.parent / "tail.log")
    try:
        for end in PERIODS.values():
            gone = bills.seal(end)
            seen = counts["pauses"]
            paused.set()
            wait_beside(tail, lambda seen=seen: counts["pauses"] > seen + 3)  # type: ignore[misc]
            paused.clear()
            bills.commit(gone)
            wait_beside(tail, lambda: counts["batch"] == bills.batch_number - 1)
    finally:
        stop.set()
        watcher.join()
        tail.stop()
    return wrong, counts["answers"], counts["pauses"]


def test_a_file_is_added_up_once_and_an_answer_then_takes_milliseconds(
    bills: WrittenBills, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    read = ArchiveSums._entries

    def entries(self: ArchiveSums, file: Any) -> Any:
        if file.path not in self._by_file:
            reads.append(file.path)
        return read(self, file)

    monkeypatch.setattr(ArchiveSums, "_entries", entries)
    bills.commit({(f"c{n}", end, "call", "basic@1"): (120, 1) for n in range(50) for end in PERIODS.values()})
    sums = ArchiveSums(followed(layout))
    bills.commit(bills.seal(JANUARY))

    def ask() -> int:
        return sum(one.sums.amount_micros for one in sums.of([JANUARY], OPEN))

    assert [ask(), ask()] == [50 * 90_000] * 2
    assert len(reads) == 1
    bills.commit(bills.seal(FEBRUARY))
    assert ask() == 50 * 90_000
    assert len(reads) == 1, "February's file cannot have January's documents"
    assert min(timeit.repeat(ask, number=1, repeat=20)) < 0.1, "it is about a millisecond"


def test_sums_beyond_64_bits_are_exact(bills: WrittenBills, layout: Layout) -> None:
    largest = 3 * 10**18
    bills.commit({(f"c{n}", JANUARY, "credit", "basic@1"): (largest, 1) for n in range(5)})
    bills.commit(bills.seal(JANUARY))
    total = TotalSums()
    for entry in ArchiveSums(followed(layout)).of([JANUARY], OPEN):
        total = total.plus(entry.sums)
    assert total == TotalSums(5 * largest, 5, -5 * largest, -5 * largest)


def test_before_there_is_a_table_there_are_no_documents(tmp_path: Path) -> None:
    assert ArchiveSums(FollowedTable(tmp_path / "none", tmp_path / "mark.json")).of([JANUARY], OPEN) == []


CYCLES = {
    "berlin@1": BERLIN,
    "tokyo@1": Cycle("month", "Asia/Tokyo"),
    "fifteenth@1": Cycle("month", "Europe/Berlin", 15),
    "last@1": Cycle("month", "Europe/Berlin", 31),
    "weekly@1": Cycle("week", "Pacific/Kiritimati"),
    "daily@1": Cycle("day", "Pacific/Kiritimati"),
    "west@1": Cycle("day", "Pacific/Pago_Pago"),
}


@pytest.mark.parametrize("name", CYCLES)
def test_a_period_is_found_by_its_name_in_every_cycle(name: str) -> None:
    for number in range(600):
        period = CYCLES[name].containing(1_766_000_000_000_000 + number * 77_777_000_000)
        assert Ends.of(period.label, CYCLES).by_plan[name] == period.end_us


@pytest.mark.parametrize(
    "label", ["", "2026", "2026-13", "2026-02-30", "2026-W54", "2026-01@40x", "1890-01", "9999-01", "../x"]
)
def test_what_names_no_period_is_refused(label: str) -> None:
    with pytest.raises(RequestInvalid, match="no period"):
        Ends.of(label, CYCLES)


@not_in_fast("a group of rows is large")
def test_one_of_many_customers_is_looked_up_in_one_group_of_rows(bills: WrittenBills, layout: Layout) -> None:
    """Else a bill would take as long as reading a period's invoices of everybody."""
    count = 20_000
    bills.commit({(f"c{n:05}", JANUARY, "call", "basic@1"): (120, 1) for n in range(count)})
    bills.commit(bills.seal(JANUARY))
    (file,) = followed(layout).files()
    groups = pq.ParquetFile(file.path).metadata
    assert groups.num_row_groups > 2
    place = groups.schema.names.index("customer")
    bounds = [groups.row_group(n).column(place).statistics for n in range(groups.num_row_groups)]
    having = [bound for bound in bounds if bound.min <= "c12345" <= bound.max]
    assert len(having) == 1
    (document,) = DocumentStore(followed(layout)).of_customer("c12345")
    assert document.number == "I-000012346"
