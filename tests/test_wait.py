"""Waits with a deadline: for a condition, or until an action no longer fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stateside.core.wait import retry, wait_until

NEVER_S = 1e-9


def test_a_wait_ends_with_the_first_value_even_a_falsy_one() -> None:
    values = iter([None, False, 0, 1])
    assert wait_until(lambda: next(values), 60.0, 0.0) == 0


def test_after_the_deadline_the_last_value_is_returned() -> None:
    assert wait_until(lambda: None, 0.0) is None
    assert wait_until(lambda: False, NEVER_S, 0.0) is False
    assert wait_until(lambda: "at once", 0.0) == "at once"


def failing(errors: Iterator[Exception]) -> str:
    for error in errors:
        raise error
    return "done"


def test_an_action_is_repeated_until_it_no_longer_fails() -> None:
    errors = iter([LookupError(1), LookupError(2)])
    assert retry(lambda: failing(errors), LookupError, 60.0, 0.0) == "done"


def test_after_the_deadline_the_failure_is_raised() -> None:
    errors = iter([LookupError(1), LookupError(2)])
    with pytest.raises(LookupError, match="1"):
        retry(lambda: failing(errors), LookupError, 0.0)


def test_a_failure_that_does_not_pass_is_raised_at_once() -> None:
    errors = iter([LookupError(1), LookupError(2), LookupError(3)])
    with pytest.raises(LookupError, match="2"):
        retry(lambda: failing(errors), LookupError, 60.0, 0.0, passes=lambda error: error.args != (2,))
    with pytest.raises(ValueError, match="other"):
        retry(lambda: failing(iter([ValueError("other")])), LookupError, 60.0, 0.0)
