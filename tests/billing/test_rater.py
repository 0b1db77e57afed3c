"""Rating in Spark's workers: the same rows whatever the batches, and whatever the worker did before."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.model import DAY_US, clock_tick, usage
from stateside.billing.pipeline import source
from stateside.billing.pipeline.source import Rater
from stateside.billing.rating import reports
from stateside.billing.rating.rating import events_table, rate
from stateside.core.layout import Layout
from stateside.journal import FileLog
from tests.sizes import not_in_fast

from .staged import Stage, at_us, tiers, version

BEGIN_US = at_us("2026-01-01T00:00:00+01:00")
BERLIN = Cycle("month", "Europe/Berlin")
CUSTOMERS = [f"c{number}" for number in range(20)]


@pytest.fixture
def stage(layout: Layout) -> Stage:
    return Stage(layout)


def fill(stage: Stage, plan: str = "basic") -> None:
    """Two versions of a plan, customers, usage among which some is bad, and a tick of the clock."""
    chance = random.Random(3)
    prices = {"call": tiers((0, 100, 1))}
    versions = [version(plan, number, BEGIN_US + number * DAY_US, BERLIN, prices) for number in (1, 2)]
    stage.publish(versions, dict.fromkeys(CUSTOMERS, plan))
    drawn = [(chance.choice([*CUSTOMERS, "nobody"]), BEGIN_US + chance.randrange(4 * DAY_US)) for _ in range(300)]
    calls = [usage(f"e{n}", customer, "call", time_us, n % 100) for n, (customer, time_us) in enumerate(drawn)]
    stage.append(BEGIN_US + 4 * DAY_US, [*calls, clock_tick(BEGIN_US, "tick")])


def rated(rater: Rater, chance: random.Random | None = None) -> list[dict[str, object]]:
    """The rows of the whole journal, in ranges of random sizes."""
    end = FileLog(rater.journal).end()["0"]
    found: list[dict[str, object]] = []
    first = 0
    while first < end:
        last = end if chance is None else min(end, first + chance.randint(1, 60))
        found += [row for rows in rater.rows(first, last) for row in rows.to_pylist()]
        first = last
    return found


def _sorted(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


@not_in_fast("a property over many cuts")
def test_the_cut_of_the_ranges_makes_no_difference_and_a_retry_gives_the_same_rows_in_the_same_order(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage)
    function = Rater(stage.layout.journal, stage.layout.view("bill").root, with_ids=False)
    whole = rated(function)
    monkeypatch.setattr(source, "ROWS_PER_TABLE", 50)
    for seed in range(5):
        cut = rated(function, random.Random(seed))
        assert _sorted(cut) == _sorted(whole)
        assert rated(pickle.loads(pickle.dumps(function)), random.Random(seed)) == cut


def test_only_what_counts_and_ticks_of_the_clock_come_out_by_customer(stage: Stage) -> None:
    fill(stage)
    rows = rated(Rater(stage.layout.journal, stage.layout.view("bill").root, with_ids=False))
    customers = [str(row["customer"]) for row in rows]
    assert customers == sorted(customers)
    assert {row["type"] for row in rows} == {"call", "clock"}
    assert {row["plan"] for row in rows} == {"basic@1", "basic@2", None}
    assert "nobody" not in customers


def test_for_the_removal_of_duplicates_the_order_of_the_journal_is_kept(stage: Stage) -> None:
    """Sorted by customer, another event of an id would come first than in the journal, and count."""
    fill(stage)
    rows = rated(Rater(stage.layout.journal, stage.layout.view("bill").root, with_ids=True))
    numbers = [int(str(row["id"])[1:]) for row in rows if row["type"] == "call"]
    assert numbers == sorted(numbers)


def test_its_reports_are_those_of_the_whole_range_that_a_task_reads(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage)
    monkeypatch.setattr(reports, "EVENTS_MIN", 1)
    monkeypatch.setattr(source, "ROWS_PER_TABLE", 50)
    view, journal = stage.layout.view("bill"), FileLog(stage.layout.journal)
    end = journal.end()["0"]
    rated(Rater(journal.directory, view.root, with_ids=True))
    found = reports.reports_of(view).read(str(journal.id()))
    assert [report.start for report in found] == [0, *(report.stop for report in found[:-1])]
    assert found[-1].stop == end
    book = BookKeeper(journal, None).at(end)
    bad = rate(events_table(journal, 0, end), book).filter(pc.field("reason") == "unknown-customer")
    assert [offset for report in found for offset in report.bad] == bad["offset"].to_pylist() != []


def test_another_journal_in_the_same_place_is_rated_by_its_own_plans(stage: Stage, tmp_path: Path) -> None:
    """A worker outlives the folders of the tests, and of whoever tries something out and begins again."""
    function = Rater(stage.layout.journal, stage.layout.view("bill").root, with_ids=False)
    fill(stage)
    rated(function)
    shutil.rmtree(stage.layout.journal)
    fill(stage, "other")
    assert {row["plan"] for row in rated(function)} == {"other@1", "other@2", None}
