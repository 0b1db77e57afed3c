"""Which types can be served, in values and in keys."""

import json

import pytest

from stateside.views.catalogue import unkeyable, unserved

ARRAY = json.dumps({"type": "array", "elementType": "long", "containsNull": True})
MAP = json.dumps({"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True})


def struct(*fields: tuple[str, object]) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": name, "type": type_} for name, type_ in fields]})


@pytest.mark.parametrize("type_", ["long", "string", "decimal(38,2)", "binary", struct(("a", "long")), "varchar(3)"])
def test_what_can_stand_in_a_key_can_be_served(type_: str) -> None:
    assert unserved(type_) is None
    assert unkeyable(type_) is None


@pytest.mark.parametrize("type_", [ARRAY, MAP, struct(("a", json.loads(ARRAY))), "interval day to second", "interval"])
def test_lists_maps_and_intervals_are_served_and_nobody_asks_by_them(type_: str) -> None:
    assert unserved(type_) is None
    assert "Nobody can ask by" in str(unkeyable(type_))


@pytest.mark.parametrize(
    ("type_", "instead"),
    [
        ("time(6)", "as a string"),
        (struct(("a", "long"), ("a", "long")), "a name of its own"),
        (json.dumps({"type": "array", "elementType": "variant", "containsNull": True}), "as a string"),
        (json.dumps({"type": "other"}), "not known"),
    ],
)
def test_for_other_types_there_is_something_to_do_instead(type_: str, instead: str) -> None:
    assert instead in str(unserved(type_))
    assert instead in str(unkeyable(type_))


def test_a_collation_makes_no_key() -> None:
    assert unserved("string collate UNICODE_CI") is None
    assert "collation" in str(unkeyable("string collate UNICODE_CI"))
