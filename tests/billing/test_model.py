"""Usage events, assignments and ticks of the clock."""

from typing import Any

import pytest

from stateside.billing.model import (
    QUANTITY_MAX,
    USAGE_TYPES,
    assignment,
    bill_type,
    clock_tick,
    usage,
)
from stateside.core.errors import CurrencyUnknown, EventRefused
from stateside.journal import Event


def name_of(type_: str) -> str | None:
    return "weekend" if type_ in ("package", "fee") else None


@pytest.mark.parametrize("type_", USAGE_TYPES)
def test_usage_is_an_event_of_the_customer(type_: str) -> None:
    name = name_of(type_)
    expected = {"quantity": 1} if name is None else {"quantity": 1, "name": name}
    assert usage("u1", "emma", type_, 7, 1, name=name) == Event("u1", "emma", type_, 7, expected)


def test_usage_carries_its_currency_if_the_source_knows_it() -> None:
    event = usage("u1", "emma", "credit", 7, 5, currency="EUR")
    assert event.payload == {"quantity": 5, "currency": "EUR"}
    with pytest.raises(CurrencyUnknown, match="'EURO' is no currency"):
        usage("u1", "emma", "credit", 7, 5, currency="EURO")


@pytest.mark.parametrize("type_", ["fax", "", "Call", None, "clock", "assign"])
def test_a_type_that_does_not_exist_is_refused_with_those_that_do(type_: Any) -> None:
    with pytest.raises(EventRefused, match="There are: call, message, data, package, fee, credit"):
        usage("u1", "emma", type_, 7, 1)


@pytest.mark.parametrize("type_", USAGE_TYPES)
@pytest.mark.parametrize("quantity", [-1, None, 1.0, "1", True, float("nan")])
def test_a_quantity_that_is_none_is_refused(type_: str, quantity: Any) -> None:
    with pytest.raises(EventRefused, match="of event 'u1' is not a number of"):
        usage("u1", "emma", type_, 7, quantity, name=name_of(type_))


@pytest.mark.parametrize("type_", USAGE_TYPES)
def test_an_absurd_quantity_is_refused_and_the_largest_one_is_not(type_: str) -> None:
    usage("u1", "emma", type_, 7, QUANTITY_MAX[type_], name=name_of(type_))
    with pytest.raises(EventRefused, match=f"from 0 to {QUANTITY_MAX[type_]}"):
        usage("u1", "emma", type_, 7, QUANTITY_MAX[type_] + 1, name=name_of(type_))


def test_packages_and_fees_say_which_and_nothing_else_does() -> None:
    with pytest.raises(EventRefused, match="The package of event 'u1' has no name"):
        usage("u1", "emma", "package", 7, 1)
    with pytest.raises(EventRefused, match="The call of event 'u1' has the name 'x'"):
        usage("u1", "emma", "call", 7, 1, name="x")
    assert bill_type("package", "weekend") == "package:weekend"
    assert bill_type("call", None) == "call"


def test_an_assignment_is_an_event_of_the_customer() -> None:
    assert assignment("a1", "emma", "basic", 5, 7) == Event(
        "a1", "emma", "assign", 7, {"plan": "basic", "effective_us": 5}
    )
    assert assignment("a1", "emma", "basic", 5, 7, holder="Emma E.").payload["holder"] == "Emma E."
    for plan, effective_us in (("", 5), (None, 5), ("basic", "5"), ("basic", True)):
        with pytest.raises(EventRefused, match="of the assignment 'a1'"):
            assignment("a1", "emma", plan, effective_us, 7)  # type: ignore[arg-type]


def test_a_customer_with_a_slash_is_refused_as_no_address_could_have_it() -> None:
    with pytest.raises(EventRefused, match="which no address could have"):
        usage("u1", "em/ma", "call", 7, 1)
    with pytest.raises(EventRefused, match="which no address could have"):
        assignment("a1", "em/ma", "basic", 5, 7)


def test_a_tick_of_the_clock_has_a_time_and_nothing_else() -> None:
    assert clock_tick(7, "t1") == Event("t1", "clock", "clock", 7, {})
