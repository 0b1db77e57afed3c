"""Plans from their files, as payloads, and amounts worked out by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from stateside.billing.calendar import Cycle
from stateside.billing.money import round_micros
from stateside.billing.plans.file import CREDIT, PlanVersion, parse_plan, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import PlanInvalid

BASIC = """
plan = "basic"
version = 3
effective = 2026-02-01
currency = "EUR"
time_zone = "Europe/Berlin"
cycle = "month"
anchor_day = 15
rounding = "half-up"

[prices.call]
included = 6000
price = "0.09"
per = 60

[prices.message]
tiers = [{ up_to = 100, price = "0.10" }, { price = "0.05" }]

[prices.data]
included = 1_000_000_000
tiers = [{ up_to = 5_000_000_000, price = "2.50", per = 1_000_000_000 }, { price = "1", per = 1_000_000_000 }]

[prices.package.weekend]
price = "4.99"

[fees.base]
price = "9.99"
"""


def basic(text: str = BASIC) -> PlanVersion:
    return parse_plan(text.encode(), "basic.toml")


def test_a_file_says_a_version_of_a_plan() -> None:
    plan = basic()
    assert plan == PlanVersion(
        "basic",
        3,
        1_769_900_400_000_000,  # 2026-01-31 23:00 UTC
        "EUR",
        Cycle("month", "Europe/Berlin", 15),
        "half-up",
        {
            "call": Tiers((Tier(0, 0, 1), Tier(6_000, 90_000, 60))),
            "message": Tiers((Tier(0, 100_000, 1), Tier(100, 50_000, 1))),
            "data": Tiers((Tier(0, 0, 1), Tier(10**9, 2_500_000, 10**9), Tier(5 * 10**9, 1_000_000, 10**9))),
            "package:weekend": Tiers((Tier(0, 4_990_000, 1),)),
            "fee:base": Tiers((Tier(0, 9_990_000, 1),)),
            "credit": CREDIT,
        },
        ("base",),
    )
    assert plan.id == "basic@3"
    assert plan.table_entries()["basic@3", "credit"] == CREDIT


def test_what_need_not_be_said() -> None:
    lines = ['plan = "p"', "version = 1", "effective = 2026-02-01T06:00:00+01:00"]
    plan = basic("\n".join([*lines, 'currency = "JPY"', 'time_zone = "UTC"', 'cycle = "week"']))
    assert plan == PlanVersion(
        "p", 1, 1_769_922_000_000_000, "JPY", Cycle("week", "UTC"), "half-even", {"credit": CREDIT}
    )


@pytest.mark.parametrize(
    ("type_", "quantity", "micros"),
    [
        ("call", 6_000, 0),  # 100 minutes are included
        ("call", 6_090, 135_000),  # 1.5 minutes at 0.09
        ("call", 6_001, 1_500),
        ("message", 100, 10_000_000),
        ("message", 250, 10_000_000 + 7_500_000),
        ("data", 10**9, 0),
        ("data", 7 * 10**9, 4 * 2_500_000 + 2 * 1_000_000),
        ("data", 10**9 + 1, 0),  # a byte costs less than a micro
        ("data", 10**9 + 400, 1),
        ("package:weekend", 2, 9_980_000),
        ("fee:base", 1, 9_990_000),
        ("credit", 2_000_000, -2_000_000),
    ],
)
def test_amounts_by_hand(type_: str, quantity: int, micros: int) -> None:
    assert basic().amount_micros(type_, quantity) == micros


def test_an_amount_is_rounded_by_the_plans_rule_and_currency() -> None:
    plan = basic()
    amount = plan.amount_micros("call", 6_000 + 190)  # 190/60 of 0.09 are 0.285
    assert amount == 285_000
    assert round_micros(amount, plan.currency, plan.rounding) == 290_000
    assert round_micros(amount, plan.currency, "half-even") == 280_000
    yen = replace(plan, currency="JPY")
    assert round_micros(yen.amount_micros("package:weekend", 1), yen.currency, yen.rounding) == 5_000_000


def test_a_version_comes_back_from_its_event_as_it_was() -> None:
    event = plan_event(basic(), "p3", 7)
    assert (event.id, event.entity, event.type, event.time_us) == ("p3", "basic", "plan", 7)
    assert PlanVersion.from_payload(json.loads(json.dumps(event.payload))) == basic()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('plan = "basic"', 'plan = "a/b"', "'a/b' is no name for a plan"),
        ('plan = "basic"', "", "says nothing of its plan"),
        ("version = 3", "version = 0", "The version 0 is not a whole number"),
        ("version = 3", "version = true", "The version True"),
        ("2026-02-01", '"2026-02-01"', "neither a day nor a time with its offset"),
        ("2026-02-01", "2026-02-01T06:00:00", "neither a day nor a time with its offset"),
        ("2026-02-01", "1969-02-01", "is not a number of microseconds since 1970"),
        ('"EUR"', '"euro"', "'euro' is no currency"),
        ("Europe/Berlin", "Europe/Hamburg", "is no time zone"),
        ('"month"', '"year"', "is no billing cycle"),
        ("anchor_day = 15", "anchor_day = 32", "cannot begin on day 32"),
        ("half-up", "half", "'half' is no rounding rule"),
        ('cycle = "month"', 'cycle = "month"\ncycles = 2', "'cycles' is no field of a plan"),
        ("[prices.call]", "[prices.fax]", "'fax' is no field of prices"),
        ("[prices.call]", "[prices.credit]", "'credit' is no field of prices"),
        ("included = 6000", "included = -1", "`included` of 'call' is -1"),
        ("included = 6000", "free = 1", "'free' is no field of the price of 'call'"),
        ("included = 6000", f"included = {2**63}", "impossible price"),
        ('"0.09"', "0.09", "is no text"),
        ('"0.09"', '"-0.09"', "is no amount of money"),
        ('"0.09"', '"9 cents"', "is no amount of money"),
        ('"0.09"', '"NaN"', "is no amount of money"),
        ('"0.09"', '"1e999999"', "is no amount of money"),
        ('"0.09"', '"0.0000009"', "has more than 6 decimals"),
        ('"0.09"', '"90000000"', "could cost more than 1000000000 units"),
        ("per = 60", "per = 0", "`per` of 'call' is 0"),
        ("per = 60", "tiers = []", "needs either a price"),
        (
            'tiers = [{ up_to = 100, price = "0.10" }, ',
            'tiers = [{ price = "0.10" }, ',
            "but the last one need `up_to`",
        ),
        ('{ price = "0.05" }', '{ up_to = 200, price = "0.05" }', "the last one must not have it"),
        ('{ price = "0.05" }', "{ per = 2 }", "Tier 2 of 'message' needs a price"),
        ("5_000_000_000", "1_000_000_000", "`up_to` of tier 1 of 'data'"),
        ("[prices.package.weekend]", '[prices.package."week end"]', "is no name for a package"),
        ("[fees.base]", '[fees."a:b"]', "is no name for a fee"),
        ("[prices.call]", "prices = 5\n[x]", "is no field of a plan|not a table|no TOML"),
        ("version = 3", "version =", "The plan is no TOML"),
    ],
)
def test_a_file_that_says_no_plan_is_refused_with_the_reason(old: str, new: str, message: str) -> None:
    assert old in BASIC
    with pytest.raises(PlanInvalid, match=message) as raised:
        basic(BASIC.replace(old, new, 1))
    assert raised.value.where == "basic.toml"


@pytest.mark.parametrize(
    "change",
    [
        {"version": None},
        {"version": "3"},
        {"effective_us": -1},
        {"effective_us": 1.5},
        {"currency": None},
        {"currency": ["EUR"]},
        {"cycle": None},
        {"cycle": {"kind": "month"}},
        {"cycle": {"kind": "month", "time_zone": "UTC", "anchor_day": 1, "more": 1}},
        {"rounding": "nearest"},
        {"rounding": []},
        {"prices": None},
        {"prices": {"call": [[0, 1, 1]]}},
        {"prices": {"credit": [[0, 1, 1]]}},
        {"prices": {"credit": [[0, -1, 1]], "call": [[1, 1, 1]]}},
        {"prices": {"credit": [[0, -1, 1]], "call": [[0, -1, 1]]}},
        {"prices": {"credit": [[0, -1, 1]], "call": 5}},
        {"prices": {"credit": [[0, -1, 1]], "call:x": [[0, 1, 1]]}},
        {"prices": {"credit": [[0, -1, 1]], "package": [[0, 1, 1]]}},
        {"fees": ["club"]},
        {"fees": 5},
        {"plan": ""},
        {"plan": 5},
    ],
    ids=str,
)
def test_a_payload_that_says_no_plan_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanInvalid):
        PlanVersion.from_payload(basic().as_payload() | change)


@pytest.mark.parametrize("field", ["plan", "version", "effective_us", "currency", "cycle", "rounding", "prices"])
def test_a_payload_that_lacks_a_field_is_refused(field: str) -> None:
    payload = basic().as_payload()
    del payload[field]
    with pytest.raises(PlanInvalid, match=f"says nothing of its {field}"):
        PlanVersion.from_payload(payload)
