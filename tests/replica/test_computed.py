"""Computed columns in rollups: the sum of the rows' values in every snapshot, whatever comes, goes or is redeclared.

The values are recomputed by a function of the test's own, from the rows.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid, ValueOverflow
from stateside.core.layout import Layout, ViewLayout
from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import Kept, RollupRows
from stateside.replica.shard import Share
from stateside.replica.store import ReplicaReader, Snapshot
from stateside.replica.tail import Tail
from stateside.views.catalogue import Computed
from stateside.views.functions import ColumnFunction, KnownFunctions, extend_functions
from tests.sizes import examples

from . import spark_job
from .replica_machine import Batch, ReplicaMachine
from .rollup_rows import ALL_KEPT, COLUMNS, KEY, Key, Row, rollups
from .spark_job import Job, answered

LONG_MAX = 2**63 - 1
FUNCTIONS: dict[tuple[str, ...], ColumnFunction] = {
    ("de",): Tiers((Tier(0, 0, 1), Tier(3, 500, 2))),  # three are included
    ("fr",): Tiers((Tier(0, -1, 1),)),
    ("it",): Tiers((Tier(0, 7, 3), Tier(2, 100, 1), Tier(6, 1, 4))),
}
PRICE, FEE = Computed("price", of="points", by=("country",)), Computed("fee", of="orders", by=("country",))
ALL_COMPUTED = [(PRICE,), (PRICE, FEE), (replace(PRICE, of="orders"),), ()]

keys = st.tuples(st.sampled_from(["emma", "ben"]), st.sampled_from(["de", "fr", "it", None]), st.integers(0, 2))
row_values = st.builds(
    Row,
    st.integers(0, 12),
    st.none() | st.integers(-9, 12) | st.sampled_from([2**57, 2**54]),
    st.none(),
    st.just(0.5),
    st.integers(0, 3),
)
changes = st.lists(st.tuples(keys, st.none() | row_values), max_size=8)


def price(country: str | None, number: int | None) -> int | None:
    """What FUNCTIONS say, worked out again, without a limit of size."""
    if country is None or number is None:
        return None
    count = max(0, number)
    if country == "de":
        return (count - 3) * 500 // 2 if count > 3 else 0
    if country == "fr":
        return -count
    first, second, third = min(count, 2), min(max(count - 2, 0), 4), max(count - 6, 0)
    return first * 7 // 3 + second * 100 + third // 4


def recounted(rows: dict[Key, Row], kept: Kept, computed: tuple[Computed, ...]) -> dict[tuple[str, ...], Any]:
    """The computed columns of all rollups; the text "too large" if one, or a row's value, is."""
    found: dict[tuple[str, ...], dict[tuple[Any, ...], Any]] = {}
    for columns in kept:
        places = [list(KEY).index(name) for name in columns]
        groups: dict[tuple[Any, ...], list[list[int | None]]] = defaultdict(list)
        for key, row in rows.items():
            numbers = [price(key[1], getattr(row, each.of)) for each in computed]
            groups[tuple(key[place] for place in places)].append(numbers)
        found[columns] = {coarser: _added(group, len(computed)) for coarser, group in groups.items()}
    return found


def _added(rows: list[list[int | None]], columns: int) -> Any:
    added = []
    for place in range(columns):
        there = [number for row in rows if (number := row[place]) is not None]
        if any(abs(number) > LONG_MAX for number in there) or abs(sum(there)) > LONG_MAX:
            return "too large"
        added.append(sum(there) if there else None)
    return added


def found(snapshot: Snapshot, kept: Kept, computed: tuple[Computed, ...]) -> dict[tuple[str, ...], Any]:
    assert (snapshot.rollups(), snapshot.computed()) == (kept, computed)
    layout = RollupRows(COLUMNS, computed)
    return {
        columns: {
            KeyCodec([KEY[name] for name in columns]).decode(key): _values(layout, row, computed)
            for key, row in snapshot.rollup(number, b"")
        }
        for number, columns in enumerate(kept)
    }


def _values(layout: RollupRows, row: bytes, computed: tuple[Computed, ...]) -> Any:
    names = [name for name, _ in layout.columns]
    assert names[len(names) - len(computed) :] == [each.name for each in computed]
    try:
        return layout.values(row)[len(names) - len(computed) :]
    except ValueOverflow:
        return "too large"


class Replica(ReplicaMachine):
    """A replica whose writer applies batches, ends and begins again, is loaded, and is told other computed columns."""

    @initialize(kept=st.sampled_from(ALL_KEPT), computed=st.sampled_from(ALL_COMPUTED))
    def open(self, kept: Kept, computed: tuple[Computed, ...]) -> None:
        self.begin()
        extend_functions(Path(self.folder.name) / "steps.json", FUNCTIONS)
        self.kept, self.computed = kept, computed
        self.reopen()

    def rollups(self) -> Any:
        return rollups(self.kept, self.computed, KnownFunctions("spending", Path(self.folder.name) / "steps.json"))

    @rule(batch=changes)
    def apply(self, batch: Batch) -> None:
        self.take(batch)

    @rule(computed=st.sampled_from(ALL_COMPUTED))
    def declare_others(self, computed: tuple[Computed, ...]) -> None:
        if computed != self.computed:
            self.declared_anew()
        self.computed = computed
        self.writer.keep_rollups(self.rollups())

    @rule(batch=changes)
    def load(self, batch: Batch) -> None:
        self.fill_another([batch])

    def check(self) -> None:
        reader = ReplicaReader(self.path)
        with reader.snapshot() as snapshot:
            assert found(snapshot, self.kept, self.computed) == recounted(self.rows, self.kept, self.computed)
        for batch, rows in self.past.items():
            with reader.snapshot(as_of=batch) as snapshot:
                assert found(snapshot, self.kept, self.computed) == recounted(rows, self.kept, self.computed)
        reader.close()


Replica.TestCase.settings = settings(max_examples=examples(12, 40), stateful_step_count=12, deadline=None)
TestReplica = Replica.TestCase


# Followed, loaded and rolled back: a tail on a checkpoint

TOTAL = Computed("price", of="total", by=("country",))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A view with the computed column `price`, and a function for Germany alone."""
    made = Job(Layout(tmp_path).view("spending"), rollups=[["country"], []])
    declare(made.view, [["country"], []])
    extend_functions(made.view.functions, {("de",): FUNCTIONS[("de",)]})
    return made


def step(view: ViewLayout) -> bool:
    """What a tail does that starts now; whether there was a batch."""
    tail = Tail(view)
    try:
        return tail.step()
    finally:
        tail.close()


def declare(view: ViewLayout, kept: list[list[str]], *computed: Computed) -> None:
    found = replace(spark_job.catalogue(kept), computed=computed or (TOTAL,))
    view.catalogue.unlink(missing_ok=True)  # a new file, as write_atomically makes it
    view.catalogue.write_bytes(found.as_json())


def total(view: ViewLayout, as_of: int | None = None) -> int | None:
    """The price of all rows together, as the rollup has it; it must be that of the rows of the same batch."""
    reader = ReplicaReader(view.replica)
    with reader.snapshot(as_of) as snapshot:
        [(_, row)] = snapshot.rollup(1, b"")
        added = RollupRows(spark_job.catalogue().columns, snapshot.computed()).values(row)[-1]
        prices = [price(country, number) for (_, country), (_, number) in spark_job.replica_rows(snapshot).items()]
    reader.close()
    assert added == sum(filter(None, prices))
    assert added is None or isinstance(added, int)
    return added


def test_a_batch_with_an_entry_that_the_table_lacks_waits_for_it_and_says_so(job: Job) -> None:
    job.run({("emma", "de"): (1, 10)})
    step(job.view)
    job.run({("emma", "de"): (2, 20), ("ben", "it"): (1, 8)})
    with pytest.raises(CheckpointInvalid, match=r"The view 'spending' has no function for \['it'\]") as missing:
        step(job.view)
    assert missing.value.where == str(job.view.functions)
    assert answered(job.view)[:2] == (0, job.states[0]), "readers have the batch before, whole"
    assert total(job.view) == 7 * 250
    extend_functions(job.view.functions, FUNCTIONS)
    assert step(job.view)
    assert answered(job.view)[:2] == (1, job.states[1])
    assert total(job.view) == 17 * 250 + 4 + 400
    assert total(job.view, as_of=0) == 7 * 250


def test_readers_are_told_which_entry_is_missing(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.run({("ben", "it"): (1, 8)})
    stop, tail = threading.Event(), Tail(job.view)
    running = threading.Thread(target=tail.run, args=(stop,))
    running.start()
    deadline = time.monotonic() + 90
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    running.join()
    batch, _, trouble = answered(job.view)
    assert batch == -1
    assert trouble is not None
    assert "'spending' has no function for ['it']" in trouble
    assert str(job.view.functions) in trouble


def test_without_rollups_too_no_batch_is_shown_that_could_not_be_computed(job: Job) -> None:
    declare(job.view, [])
    for number, country in enumerate(("it", "fr")):
        job.run({("ben", country): (1, 8)})
        with pytest.raises(CheckpointInvalid, match="has no function for"):
            step(job.view)
        assert answered(job.view)[0] == number - 1
        extend_functions(job.view.functions, {(country,): FUNCTIONS[(country,)]})
        step(job.view)
        assert answered(job.view)[:2] == (number, job.rows)


def test_a_tail_that_met_a_missing_entry_goes_on_by_itself_once_it_is_there(job: Job) -> None:
    tail = Tail(job.view)
    for country in ("it", "fr"):
        job.run({("ben", country): (1, 8)})
        with pytest.raises(CheckpointInvalid, match="has no function for"):
            tail.step()
        extend_functions(job.view.functions, {(country,): FUNCTIONS[(country,)]})
        assert tail.step()
    tail.close()
    assert total(job.view) == 4 + 400 - 8


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "default store"])
def test_a_replica_that_is_loaded_or_rolled_back_has_the_computed_sums_of_its_rows(tmp_path: Path, ids: bool) -> None:
    job = Job(Layout(tmp_path).view("spending"), ids=ids)
    declare(job.view, [["country"], []])
    for number in range(10):
        job.run({(f"c{row}", "dfi"[row % 3]): (1, number + row) for row in range(number % 2, 20, 2)})
    prices: dict[tuple[str, ...], ColumnFunction] = {
        ("d",): FUNCTIONS[("de",)],
        ("f",): FUNCTIONS[("fr",)],
        ("i",): FUNCTIONS[("it",)],
    }
    job.snapshot(8)
    job.purge(7)
    with pytest.raises(CheckpointInvalid, match="has no function for"):
        step(job.view)
    assert answered(job.view)[0] == -1, "nothing of it was taken over"
    extend_functions(job.view.functions, prices)
    step(job.view)
    assert (job.view.replica / "current").exists(), "it was loaded"
    assert priced(job) == priced_rows(job)
    job.roll_back(8)
    job.run({("new", "d"): (1, 99), ("c2", "i"): None})
    step(job.view)
    assert answered(job.view)[1] == job.rows
    assert priced(job) == priced_rows(job)


def priced(job: Job) -> dict[str, Any]:
    reader = ReplicaReader(job.view.replica)
    with reader.snapshot() as snapshot:
        layout = RollupRows(spark_job.catalogue().columns, snapshot.computed())
        found = {
            str(KeyCodec(["string"]).decode(key)[0]): layout.values(row)[-1] for key, row in snapshot.rollup(0, b"")
        }
    reader.close()
    return found


def priced_rows(job: Job) -> dict[str, Any]:
    names = {"d": "de", "f": "fr", "i": "it"}
    found: dict[str, int] = defaultdict(int)
    for (_, country), (_, number) in job.rows.items():
        found[country] += price(names[country], number) or 0
    return dict(found)


def test_a_share_has_the_computed_sums_of_its_share(job: Job, tmp_path: Path) -> None:
    extend_functions(job.view.functions, FUNCTIONS)
    for number in range(3):
        job.run({(f"c{row}", "de" if row % 2 else "it"): (1, number * row) for row in range(20)})
    parts = []
    for index in (1, 2):
        view = Layout(tmp_path / str(index)).view("spending")
        view.root.mkdir(parents=True)
        for name in ("checkpoint", "catalogue.json", "steps.json"):
            (view.root / name).symlink_to(job.view.root / name)
        tail = Tail(view, share=Share(index, 2))
        tail.step()
        tail.close()
        parts.append(total(view) or 0)
    assert all(parts)
    assert sum(parts) == sum(price(country, number) or 0 for (_, country), (_, number) in job.rows.items())


def test_other_computed_columns_on_an_old_folder_are_made_from_the_rows(job: Job) -> None:
    job.run({("emma", "de"): (5, 10)})
    step(job.view)
    declare(job.view, [["country"], []], TOTAL, Computed("fee", of="orders", by=("country",)))
    assert not step(job.view), "there is no new batch"
    reader = ReplicaReader(job.view.replica)
    with reader.snapshot() as snapshot:
        [(_, row)] = snapshot.rollup(1, b"")
        assert RollupRows(spark_job.catalogue().columns, snapshot.computed()).values(row) == [5, 10, 7 * 250, 2 * 250]
    reader.close()
