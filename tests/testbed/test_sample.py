"""A sample: exact while there are few values, fair and bounded when there are many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.testbed.witness import Sample


def sample_of(values: list[float], kept_max: int) -> Sample:
    sample = Sample(kept_max)
    for value in values:
        sample.add(value)
    return sample


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=50))
def test_few_values_are_all_in_it(values: list[int]) -> None:
    ordered = sorted(values)
    wanted = {"p50": ordered[len(values) // 2], "p99": ordered[len(values) * 99 // 100], "max": ordered[-1]}
    assert sample_of([float(value) for value in values], kept_max=50).quantiles() == wanted


def test_of_many_all_are_counted_the_largest_is_known_and_the_others_are_near() -> None:
    sample = sample_of([float(value) for value in range(20_000)], kept_max=2_000)
    found = sample.quantiles()
    assert (sample.count, found["max"]) == (20_000, 19_999)
    assert found["p50"] == pytest.approx(10_000, rel=0.1)
    assert found["p99"] == pytest.approx(19_800, rel=0.05)


def test_without_any_value_it_says_nothing_but_zeros() -> None:
    assert Sample().quantiles() == {"p50": 0, "p99": 0, "max": 0}
