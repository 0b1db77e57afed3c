"""Rounding against decimal.Decimal, amounts for people, and amounts that are too large."""

import re
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, ROUND_UP, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.money import DIGITS, ROUNDINGS, Rounding, checked, format_micros, minor_digits, round_micros
from stateside.core.errors import CurrencyUnknown, MoneyOverflow

DECIMAL_RULES = {"half-even": ROUND_HALF_EVEN, "half-up": ROUND_HALF_UP, "down": ROUND_DOWN, "up": ROUND_UP}
amounts = st.one_of(
    st.integers(-(10**15), 10**15),
    st.integers(-(10**6), 10**6).map(lambda halves: halves * 500),  # halves of a mill: ties in every currency
    st.integers(-(10**4), 10**4).map(lambda halves: halves * 500_000),
)


@given(amounts, st.sampled_from(["EUR", "JPY", "KWD"]), st.sampled_from(ROUNDINGS))
def test_an_amount_is_rounded_as_decimal_rounds_it(amount: int, currency: str, rule: Rounding) -> None:
    with localcontext(prec=40):
        minor = Decimal(1).scaleb(-DIGITS[currency])
        expected = (Decimal(amount) / 1_000_000).quantize(minor, DECIMAL_RULES[rule]) * 1_000_000
    assert round_micros(amount, currency, rule) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("half-even", [10_000, 20_000, 20_000, 20_000, -20_000, 0]),
        ("half-up", [10_000, 20_000, 20_000, 30_000, -20_000, 10_000]),
        ("down", [10_000, 10_000, 10_000, 20_000, -10_000, 0]),
        ("up", [10_000, 20_000, 20_000, 30_000, -20_000, 10_000]),
    ],
)
def test_cents_by_hand(rule: Rounding, expected: list[int]) -> None:
    amounts = [10_000, 15_000, 15_001, 25_000, -15_000, 5_000]
    assert [round_micros(amount, "EUR", rule) for amount in amounts] == expected


def test_a_yen_has_no_decimals_and_a_dinar_three() -> None:
    assert round_micros(1_500_000, "JPY", "half-up") == 2_000_000
    assert round_micros(1_234_500, "KWD", "half-up") == 1_235_000
    assert (minor_digits("JPY"), minor_digits("EUR"), minor_digits("KWD")) == (0, 2, 3)


@pytest.mark.parametrize("currency", ["", "eur", "EURO", "XXX"])
def test_what_is_no_currency_is_refused(currency: str) -> None:
    with pytest.raises(CurrencyUnknown, match="is no currency"):
        round_micros(1, currency, "up")


def test_currencies_are_known_once_each() -> None:
    assert len(DIGITS) > 140
    assert all(re.fullmatch("[A-Z]{3}", currency) for currency in DIGITS)


@pytest.mark.parametrize("amount", [2**63 - 1, -(2**63)])
def test_the_largest_amounts_pass_and_the_next_ones_do_not(amount: int) -> None:
    assert checked(amount) == amount
    with pytest.raises(MoneyOverflow, match="larger than any that can be stored"):
        checked(amount + (1 if amount > 0 else -1))
    with pytest.raises(MoneyOverflow):
        round_micros(amount, "EUR", "up")


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


@pytest.mark.parametrize(
    ("micros", "currency", "text"),
    [
        (1_500_000, "EUR", "1.50 EUR"),
        (1_234_000_000, "JPY", "1,234 JPY"),
        (1_500_000, "JPY", "1.5 JPY"),
        (-1_500_000, "KWD", "-1.500 KWD"),
    ],
)
def test_an_amount_with_its_currency_has_that_ones_decimals(micros: int, currency: str, text: str) -> None:
    assert format_micros(micros, currency) == text


@given(st.integers(-(10**15), 10**15))
def test_an_amount_shown_hides_nothing(micros: int) -> None:
    text = format_micros(micros)
    assert Decimal(text.replace(",", "")) * 1_000_000 == micros
    assert re.fullmatch(r"-?\d{1,3}(,\d{3})*\.\d\d(\d{0,3}[1-9])?", text)
