"""Usage events and money."""

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.model import AMOUNT_MICROS_MAX, USAGE_TYPES, format_micros, usage
from stateside.errors import EventRefused
from stateside.journal import Event


@pytest.mark.parametrize("type_", USAGE_TYPES)
@pytest.mark.parametrize("amount_micros", [0, 1, AMOUNT_MICROS_MAX])
def test_usage_is_an_event_of_the_customer(type_: str, amount_micros: int) -> None:
    event = usage("u1", "emma", type_, 7, amount_micros)
    assert event == Event("u1", "emma", type_, 7, {"amount_micros": amount_micros})


@pytest.mark.parametrize("type_", ["fax", "", "Call", None])
def test_a_type_that_does_not_exist_is_refused_with_those_that_do(type_: Any) -> None:
    with pytest.raises(EventRefused, match="There are: call, message, data, package"):
        usage("u1", "emma", type_, 7, 1)


@pytest.mark.parametrize("amount", [-1, AMOUNT_MICROS_MAX + 1, 1.0, "1", True, None, float("nan")])
def test_an_amount_that_is_no_number_of_micros_is_refused(amount: Any) -> None:
    with pytest.raises(EventRefused, match="of event 'u1' is not a number of micros"):
        usage("u1", "emma", "call", 7, amount)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00"),
        (1, "0.000001"),
        (100_000_000, "100.00"),
        (1_500_000, "1.50"),
        (1_234_567_890_000, "1,234,567.89"),
        (12_345_678, "12.345678"),
        (1_230_000, "1.23"),
        (1_234_000, "1.234"),
        (-1, "-0.000001"),
        (-2_500_000, "-2.50"),
    ],
)
def test_an_amount_is_shown_with_two_decimals_or_as_many_as_it_takes(micros: int, text: str) -> None:
    assert format_micros(micros) == text


@given(st.integers(-(10**15), 10**15))
def test_an_amount_shown_hides_nothing(micros: int) -> None:
    text = format_micros(micros)
    assert Decimal(text.replace(",", "")) * 1_000_000 == micros
    assert re.fullmatch(r"-?\d{1,3}(,\d{3})*\.\d\d(\d{0,3}[1-9])?", text)
