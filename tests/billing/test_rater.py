"""The function that Spark's workers call: the same rows whatever the batches, and whatever the worker did before."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from stateside.billing.calendar import Cycle
from stateside.billing.model import DAY_US, clock_tick, usage
from stateside.billing.pipeline import rater
from stateside.billing.pipeline.rater import IN, Rater
from stateside.billing.rating.rating import events_table
from stateside.journal import Journal
from stateside.layout import Layout

from .staged import Stage, at_us, steps, version

BEGIN_US = at_us("2026-01-01T00:00:00+01:00")
BERLIN = Cycle("month", "Europe/Berlin")
CUSTOMERS = [f"c{number}" for number in range(20)]


@pytest.fixture
def stage(layout: Layout) -> Stage:
    return Stage(layout)


def fill(stage: Stage, plan: str = "basic") -> None:
    """Two versions of a plan, customers, usage among which some is bad, and a tick of the clock."""
    chance = random.Random(3)
    prices = {"call": steps((0, 100, 1))}
    versions = [version(plan, number, BEGIN_US + number * DAY_US, BERLIN, prices) for number in (1, 2)]
    stage.publish(versions, dict.fromkeys(CUSTOMERS, plan))
    drawn = [(chance.choice([*CUSTOMERS, "nobody"]), BEGIN_US + chance.randrange(4 * DAY_US)) for _ in range(300)]
    calls = [usage(f"e{n}", customer, "call", time_us, n % 100) for n, (customer, time_us) in enumerate(drawn)]
    stage.append(BEGIN_US + 4 * DAY_US, [*calls, clock_tick(BEGIN_US, "tick")])


def rated(rater: Rater, chance: random.Random | None = None) -> list[dict[str, object]]:
    """The whole journal through the function, in batches of random sizes."""
    journal = Journal(rater.journal)
    events = events_table(journal, 0, journal.end()["0"]).select(IN).combine_chunks()
    batches, first = [], 0
    while first < events.num_rows:
        size = events.num_rows if chance is None else chance.randint(1, 60)
        batches += events.slice(first, size).combine_chunks().to_batches()
        first += size
    found: list[dict[str, object]] = pa.Table.from_batches(rater(iter(batches))).to_pylist()
    return found


def _by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["id"]))


def test_the_cut_of_the_batches_makes_no_difference_and_a_retry_gives_the_same_rows_in_the_same_order(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage)
    function = Rater(stage.layout.journal, stage.layout.root / "book", by_customer=True)
    whole = rated(function)
    monkeypatch.setattr(rater, "ROWS_PER_TABLE", 50)
    for seed in range(5):
        cut = rated(function, random.Random(seed))
        assert _by_id(cut) == _by_id(whole)
        assert rated(pickle.loads(pickle.dumps(function)), random.Random(seed)) == cut


def test_only_what_counts_and_ticks_of_the_clock_come_out_by_customer(stage: Stage) -> None:
    fill(stage)
    rows = rated(Rater(stage.layout.journal, stage.layout.root / "book", by_customer=True))
    customers = [str(row["customer"]) for row in rows]
    assert customers == sorted(customers)
    assert {row["type"] for row in rows} == {"call", "clock"}
    assert {row["plan"] for row in rows} == {"basic@1", "basic@2", None}
    assert "nobody" not in customers


def test_for_the_removal_of_duplicates_the_order_of_the_journal_is_kept(stage: Stage) -> None:
    """Sorted by customer, another event of an id would come first than in the journal, and count."""
    fill(stage)
    rows = rated(Rater(stage.layout.journal, stage.layout.root / "book", by_customer=False))
    numbers = [int(str(row["id"])[1:]) for row in rows if row["type"] == "call"]
    assert numbers == sorted(numbers)


def test_another_journal_in_the_same_place_is_rated_by_its_own_plans(stage: Stage, tmp_path: Path) -> None:
    """A worker outlives the folders of the tests, and of whoever tries something out and begins anew."""
    function = Rater(stage.layout.journal, stage.layout.root / "book", by_customer=True)
    fill(stage)
    rated(function)
    shutil.rmtree(stage.layout.journal)
    fill(stage, "other")
    assert {row["plan"] for row in rated(function)} == {"other@1", "other@2", None}
