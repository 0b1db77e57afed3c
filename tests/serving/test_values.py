"""Values as readers see them: those with parts."""

import json
from decimal import Decimal
from typing import Any

import pytest

from stateside.checkpoint.types import parse_type
from stateside.serving.values import renderer


def map_type(key: Any, value: Any) -> str:
    return json.dumps({"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True})


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        (map_type("string", "date"), (("a", 0), ("b", None)), {"a": "1970-01-01", "b": None}),
        (map_type("integer", "string"), ((1, "a"),), [{"key": 1, "value": "a"}]),
        (map_type("string", json.loads(map_type("decimal(5,2)", "long"))), (("a", ((Decimal("1.50"), 7),)),),
         {"a": [{"key": "1.50", "value": 7}]}),
        (map_type("string", "long"), None, None),
    ],
)  # fmt: skip
def test_a_map_is_an_object_if_its_keys_are_strings_and_else_a_list_of_pairs(
    type_: str, value: Any, shown: Any
) -> None:
    assert renderer(parse_type(type_))(value) == shown


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        ("interval year to month", 14, "P1Y2M"),
        ("interval month", -12, "-P1Y"),
        ("interval year", 0, "P0M"),
        ("interval day to second", 3 * 86_400_000_000 + 500_000, "P3DT0.5S"),
        ("interval hour", -7_200_000_000, "-PT7200S"),
        ("interval day", 0, "PT0S"),
        ("interval", (-1, 40, 1_000_000), "P-1M40DT1S"),
        ("interval", (0, 0, 0), "P0M0DT0S"),
        ("interval day", None, None),
    ],
)
def test_an_interval_is_shown_as_iso_8601_has_it(type_: str, value: Any, shown: str | None) -> None:
    assert renderer(parse_type(type_))(value) == shown
