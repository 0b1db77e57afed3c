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
