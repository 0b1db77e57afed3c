"""Values as readers see them: whatever can stand in a state can stand in an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stateside.serving.rows.values import NO_VALUE, parser, renderer
from stateside.spark_state.types import parse_type


def type_of(kind: str, **parts: Any) -> str:
    return json.dumps({"type": kind, **parts})


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        ("interval year to month", 14, "P14M"),
        ("interval month", -1, "P-1M"),
        ("interval year", 0, "PT0S"),
        ("interval day to second", 90_500_000, "PT90.5S"),
        ("interval minute", -60_000_000, "PT-60S"),
        ("interval day", 0, "PT0S"),
        ("interval second", -1, "PT-0.000001S"),
        ("interval", (1, -3, 4_000_000), "P1M-3DT4S"),
        ("interval", (0, 2, 0), "P2D"),
        ("interval", (0, 0, 0), "PT0S"),
        ("void", None, None),
        (type_of("map", keyType="string", valueType="date"), (("a", 0), ("b", None)), {"a": "1970-01-01", "b": None}),
        (type_of("map", keyType="long", valueType="string"), ((7, "x"),), [{"key": 7, "value": "x"}]),
        (type_of("array", elementType=json.loads(type_of("array", elementType="decimal(3,1)"))), ((None,),), [[None]]),
    ],
)
def test_a_value_of_any_type_is_shown_in_json(type_: str, value: Any, shown: Any) -> None:
    assert renderer(parse_type(type_))(value) == shown
    assert json.loads(json.dumps(shown)) == shown


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("long", " 1"),
        ("long", "1_0"),
        ("integer", "1\n"),
        ("double", "1_0.5"),
        ("double", " 1.5"),
        ("binary", "c3R!hdGU="),
    ],
)
def test_a_key_part_is_written_in_one_way(type_: str, text: str) -> None:
    with pytest.raises(NO_VALUE):
        parser(parse_type(type_))(text)
