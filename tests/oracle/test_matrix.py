"""The oracle: after every batch a replica has the rows that Spark's own reader of the state, `statestore`, has.

Each case of the matrix is a query of its own that knows nothing of Stateside, on random events, with a restart. Its
checkpoint is then served as `stateside serve CHECKPOINT` does, and its commits are let through one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import combinations
from itertools import pairwise as neighbours
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sizes import sized
from tests.spark_settings import conf

from .matrix import Case, all_cases, full_cases, short_cases
from .page import PAGE, page
from .queries import query
from .running import start
from .staged import Row, Staged
from .statestore import Told, side, told
from .typed_events import Events

RUNS = sized((2, 2), (3, 2))  # how many batches with events come before each restart
CASES = sized(short_cases, full_cases)()


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES, ids=str)
def test_after_every_batch_a_replica_has_the_rows_that_spark_says_the_state_has(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    with conf(spark, case.conf()):
        leaving = run(spark, tmp_path, case)
        staged = Staged(tmp_path / "checkpoint", tmp_path / "staged")
        states = compare_after_every_batch(spark, tmp_path / "checkpoint", staged)
        compare_sides(spark, tmp_path / "checkpoint", staged)
    compare_history(tmp_path, states)
    compare_answers(staged, states)
    compare_a_late_replica(tmp_path, states)
    if leaving:
        assert any(left(batches) for batches in states.values()), "no row ever left the state"


def met(cases: Iterable[Case], *names: str) -> set[tuple[str, ...]]:
    return {tuple(getattr(case, name) for name in names) for case in cases}


def test_every_two_values_that_can_meet_do_so_in_the_full_run() -> None:
    for names in combinations([field.name for field in fields(Case)], 2):
        assert met(full_cases(), *names) == met(all_cases(), *names), names
    store = ("operator", "provider", "format", "changes")
    assert met(full_cases(), *store) == met(all_cases(), *store)


def test_every_value_is_in_the_short_run_and_every_way_to_store_a_state() -> None:
    for name in (field.name for field in fields(Case)):
        assert met(short_cases(), name) == met(all_cases(), name), name
    store = ("provider", "format", "changes")
    assert met(short_cases(), *store) == met(all_cases(), *store)


def test_the_page_in_the_docs_tells_what_is_run() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.oracle.page"


States = dict[str, dict[int, Told]]


def run(spark: SparkSession, folder: Path, case: Case) -> bool:
    """Run the case's query with restarts; whether rows should have left its state."""
    events, number = Events(case.columns(), case.seed), 0
    asked = query(case.operator, events.read(spark, _made(folder / "events")), events)
    with conf(spark, asked.conf):
        for batches in RUNS:
            for _ in range(batches):
                events.write(folder / "events", number)
                number += 1
            start(asked.frame, asked.mode, folder / "checkpoint")
    return asked.leaving


def compare_after_every_batch(spark: SparkSession, checkpoint: Path, staged: Staged) -> States:
    states: States = {}
    batches = staged.batches()
    for batch in batches:
        staged.let_through(batch)
        for name, catalogue in staged.views().items():
            if name not in states:
                states[name] = told(spark, checkpoint, catalogue, batches)
            assert texts(staged.rows(name)) == texts(states[name][batch].decoded()), (name, batch)
    assert states
    assert not any(map(staged.loaded, states)), "a replica was loaded"
    return states


def compare_sides(spark: SparkSession, checkpoint: Path, staged: Staged) -> None:
    """Asked for a side, and not for a store, Spark's reader goes by the numbers of rows, and shows less of them."""
    for name, catalogue in staged.views().items():
        if catalogue.kind == "join":
            index = len(catalogue.key) - 1
            rows = [row[:index] + row[index + 1 : -1] for row in staged.rows(name)]
            assert texts(rows) == texts(side(spark, checkpoint, catalogue, staged.batches()[-1]).decoded())


def compare_history(folder: Path, states: States) -> None:
    """One that follows all commits at once can be read as of each of them."""
    staged = Staged(folder / "checkpoint", folder / "history")
    staged.let_through(*staged.batches())
    for name, batches in states.items():
        for batch, state in batches.items():
            assert texts(staged.rows(name, as_of=batch)) == texts(state.decoded()), (name, batch)


def compare_answers(staged: Staged, states: States) -> None:
    for name, batches in states.items():
        assert staged.answered(name) == batches[max(batches)].answered(staged.views()[name]), name


def compare_a_late_replica(folder: Path, states: States) -> None:
    """One that sees the last commit only has to load the state."""
    late = Staged(folder / "checkpoint", folder / "late")
    late.let_through(late.batches()[-1])
    for name, batches in states.items():
        assert late.loaded(name)
        assert texts(late.rows(name)) == texts(batches[max(batches)].decoded()), name


def texts(rows: Iterable[Row]) -> list[str]:
    """Rows that can be compared: what is no number equals itself there."""
    return sorted(map(repr, rows))


def left(batches: Mapping[int, Told]) -> bool:
    sizes = [len(batches[batch].rows) for batch in sorted(batches)]
    return any(later < earlier for earlier, later in neighbours(sizes))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
