"""Steps by hand and by their laws, and the file that has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid, ValueOverflow
from stateside.core.layout import Layout
from stateside.views.computed import Step, Steps, StepTable, extend_steps

LONG_MAX = 2**63 - 1
ALLOWANCE = Steps((Step(0, 0, 1), Step(6_000, 90_000, 60)))  # 100 minutes free, then 0.09 a minute
TIERS = Steps((Step(0, 100_000, 1), Step(100, 50_000, 1), Step(1_000, 10_000, 1)))
CREDIT = Steps((Step(0, -1, 1),))


@st.composite
def random_steps(draw: st.DrawFn, micros_min: int = -(10**9)) -> Steps:
    rising = draw(st.lists(st.integers(1, 10**9), unique=True, max_size=4))
    priced = st.tuples(st.integers(micros_min, 10**9), st.integers(1, 10**9))
    return Steps(tuple(Step(above, *draw(priced)) for above in [0, *sorted(rising)]))


quantities = st.one_of(st.integers(0, 10**4), st.integers(0, 10**12))


@pytest.mark.parametrize(
    ("steps", "quantity", "micros"),
    [
        (ALLOWANCE, 0, 0),
        (ALLOWANCE, 6_000, 0),
        (ALLOWANCE, 6_001, 1_500),
        (ALLOWANCE, 6_060, 90_000),
        (ALLOWANCE, 6_061, 91_500),
        (TIERS, 100, 10_000_000),
        (TIERS, 101, 10_050_000),
        (TIERS, 1_500, 10_000_000 + 900 * 50_000 + 500 * 10_000),
        (Steps((Step(0, 1, 3),)), 2, 0),
        (Steps((Step(0, 1, 3), Step(4, 1, 3))), 8, 2),  # 4/3 and 4/3, each rounded down
        (CREDIT, 2_500_000, -2_500_000),
        (TIERS, -5, 0),
    ],
)
def test_values_by_hand(steps: Steps, quantity: int, micros: int) -> None:
    assert steps.value(quantity) == micros


@given(random_steps(micros_min=0), quantities, quantities)
def test_more_never_costs_less_where_no_price_is_negative(steps: Steps, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 0 <= steps.value(low) <= steps.value(high)


@given(random_steps(), quantities)
def test_the_value_is_that_of_the_parts_each_rounded_down(steps: Steps, quantity: int) -> None:
    edges = [step.above for step in steps.steps[1:]] + [max(quantity, 10**13)]
    parts = [max(0, min(quantity, edge) - step.above) for step, edge in zip(steps.steps, edges, strict=True)]
    assert sum(parts) == quantity
    single = [Steps((Step(0, step.micros, step.per),)) for step in steps.steps]
    assert steps.value(quantity) == sum(one.value(part) for one, part in zip(single, parts, strict=True))


@given(random_steps(), st.lists(st.one_of(quantities, st.integers(-10, 10), st.integers(0, LONG_MAX)), max_size=5))
def test_many_at_once_have_the_values_that_each_has(steps: Steps, many: list[int]) -> None:
    try:
        expected = [steps.value(quantity) for quantity in many]
    except ValueOverflow:
        with pytest.raises(ValueOverflow):
            steps.values(np.array(many, np.int64))
    else:
        assert steps.values(np.array(many, np.int64)).tolist() == expected


@given(random_steps())
def test_steps_come_back_from_json_as_they_were(steps: Steps) -> None:
    assert Steps.parse(json.loads(json.dumps(steps.as_json()))) == steps


def test_the_largest_value_is_told_and_a_larger_one_is_an_error() -> None:
    one = Steps((Step(0, 1, 1),))
    assert one.value(LONG_MAX) == LONG_MAX
    assert CREDIT.value(LONG_MAX) == -LONG_MAX
    dear = Steps((Step(0, 2, 1),))
    with pytest.raises(ValueOverflow, match="more than can be stored"):
        dear.value(LONG_MAX)
    with pytest.raises(ValueOverflow, match="more than can be stored"):
        dear.values(np.array([1, LONG_MAX]))


def test_a_product_beyond_64_bits_is_right_if_the_value_is_not() -> None:
    steps = Steps((Step(0, 10**12, 10**12),))
    assert steps.values(np.array([10**15, 7])).tolist() == [10**15, 7]


@pytest.mark.parametrize(
    "content",
    [[], [[1, 1, 1]], [[0, 1, 0]], [[0, 1, 1], [0, 2, 1]], [[0, 1, 1], [5, 1, 1], [4, 1, 1]], [[0, 1]], [[0, 1.5, 1]],
     [[0, True, 1]], [[0, 2**63, 1]], [["0", 1, 1]], None, 5, [5]],
)  # fmt: skip
def test_what_are_no_steps_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"step|whole number"):
        Steps.parse(content)


def test_a_view_has_its_steps_beside_its_checkpoint(layout: Layout) -> None:
    assert layout.view("bill").steps == layout.view("bill").root / "steps.json"


def test_a_table_that_nobody_wrote_yet_is_empty(tmp_path: Path) -> None:
    table = StepTable.load(tmp_path / "steps.json")
    assert len(table) == 0
    assert table.get(("basic@1", "call")) is None


def test_a_table_grows_and_is_read_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "view" / "steps.json"
    extend_steps(path, {("basic@1", "call"): ALLOWANCE})
    extended = extend_steps(path, {("basic@1", "data"): TIERS, ("basic@1", "call"): ALLOWANCE})
    assert StepTable.load(path) == extended
    assert extended.get(["basic@1", "data"]) == TIERS
    assert extended.steps(("basic@1", "call"), path) == ALLOWANCE


def test_a_table_is_written_only_if_there_is_something_new(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    extend_steps(path, {("basic@1", "call"): ALLOWANCE})
    before = path.stat()
    extend_steps(path, {("basic@1", "call"): ALLOWANCE})
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_steps_that_rows_were_shown_with_never_change(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    extend_steps(path, {("basic@1", "call"): ALLOWANCE})
    with pytest.raises(CheckpointInvalid, match="The steps for basic@1/call are"):
        extend_steps(path, {("basic@1", "call"): TIERS})
    assert StepTable.load(path).get(("basic@1", "call")) == ALLOWANCE


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match=r"There are no steps for gold@2/call \(.*steps.json\)"):
        StepTable({}).steps(("gold@2", "call"), tmp_path / "steps.json")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"version": 2, "entries": []}', b'{"version": 1, "entries": [{}]}']
)
def test_a_damaged_table_says_which_file_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "steps.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointInvalid, match="The steps of the view cannot be read"):
        StepTable.load(path)
