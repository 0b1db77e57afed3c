"""Lookups: many keys at once, their parts as texts or as JSON's values, out of one snapshot."""

from __future__ import annotations

import asyncio
import decimal
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import KeyInvalid, NotFreshEnough, RequestInvalid
from stateside.serving.rows.floor import NEWEST, AsOf, Floor
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.row_query import KEYS_MAX, LookupAnswer, lookup, parse_keys
from stateside.serving.rows.values import JsonKeys
from stateside.spark_state.types import parse_type
from tests.replica.spark_job import Row
from tests.rows import WINDOW, struct_of

from .shop import Shop

EMMA = {"customer": "emma", "country": "de", "orders": 2, "total": 104}
BEN = {"customer": "ben", "country": "fr", "orders": 1, "total": 7}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.batch({("emma", "de"): (2, 104), ("ben", "fr"): (1, 7)})
    return made


def ask(shop: Shop, keys: Any, as_of: AsOf = NEWEST) -> LookupAnswer:
    with shop.reader() as reader:
        parsed = parse_keys(reader.shape, {"keys": keys})
        return asyncio.run(lookup(Relation(reader), parsed, Floor(wait_ms=0), as_of=as_of))


def test_rows_stand_in_the_order_of_the_keys_and_null_where_there_is_none(shop: Shop) -> None:
    keys = [["emma", "de"], ["emma", "fr"], ["ben", "fr"], ["", ""], ["emma", "de"]]
    assert ask(shop, keys).rows == [EMMA, None, BEN, None, EMMA]


def test_many_keys_are_of_one_batch(shop: Shop) -> None:
    rows: dict[tuple[str, str], Row | None] = {(f"c{number}", "de"): (1, number) for number in range(KEYS_MAX)}
    shop.batch({**rows, ("emma", "de"): None})
    answer = ask(shop, [[f"c{number}", "de"] for number in range(KEYS_MAX)])
    assert [row and row["total"] for row in answer.rows] == list(range(KEYS_MAX))
    assert ask(shop, [["emma", "de"], ["c1", "de"]], AsOf(0)).rows == [EMMA, None], "as of the batch before"
    with pytest.raises(NotFreshEnough, match="it stands at batch 1, batch 2 was asked for"):
        ask(shop, [["emma", "de"]], AsOf(2))


@pytest.mark.parametrize("keys", [None, [], {}, "emma", 5, [["emma", "de"]] * (KEYS_MAX + 1)])
def test_what_is_no_list_of_keys_is_refused(shop: Shop, keys: Any) -> None:
    with pytest.raises(RequestInvalid, match=r"no list of keys|more than 1,000"):
        ask(shop, keys)


@pytest.mark.parametrize("key", ["emma", ["emma"], [], ["emma", "de", "x"], [["emma"], "de"], ["emma", 5], [{}, {}]])
def test_what_is_no_whole_key_is_refused_with_its_parts(shop: Shop, key: Any) -> None:
    with pytest.raises(KeyInvalid, match=r"customer|country"):
        ask(shop, [["emma", "de"], key])


def test_a_body_with_anything_else_is_refused(shop: Shop) -> None:
    with shop.reader() as reader, pytest.raises(RequestInvalid, match="no list of keys"):
        parse_keys(reader.shape, {"keys": [["emma", "de"]], "limit": 5})


# Keys given as JSON

TYPES = ["string", "long", "double", "boolean", "decimal(9,2)", "timestamp", "date"]


def parsed(types: list[str], given: Any) -> list[Any]:
    columns = [(f"c{place}", parse_type(type_)) for place, type_ in enumerate(types)]
    return JsonKeys("'view'", columns).parse(given)


def test_parts_are_texts_or_json_s_own_values() -> None:
    texts = ["emma", "5", "0.5", "true", "1.25", "1970-01-01T00:00:01Z", "1970-01-02"]
    values = ["emma", 5, 0.5, True, 1.25, "1970-01-01T00:00:01Z", "1970-01-02"]
    expected = ["emma", 5, 0.5, True, decimal.Decimal("1.25"), 1_000_000, 1]
    assert parsed(TYPES, texts) == parsed(TYPES, values) == expected
    assert parsed(TYPES, [None] * len(TYPES)) == [None] * len(TYPES)
    assert parsed(["string"], "emma") == parsed(["string"], ["emma"]) == ["emma"]
    assert parsed(["double"], [3]) == [3.0]
    assert parsed([], []) == []


@pytest.mark.parametrize(
    ("type_", "part"),
    [
        ("string", 5),
        ("string", True),
        ("long", 5.5),
        ("long", True),
        ("long", "x"),
        ("boolean", 1),
        ("timestamp", 20260101),
        ("date", 5),
        ("long", {"a": 1}),
        ("long", [5]),
        ("double", "x"),
    ],
)
def test_a_part_of_another_type_is_refused(type_: str, part: Any) -> None:
    with pytest.raises(KeyInvalid, match=f"is no {type_}, which the key's part 'c0' is"):
        parsed([type_], [part])


def test_a_struct_is_given_part_by_part_or_as_an_object() -> None:
    start, end = "1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"
    expected = ["emma", (1_000_000, 2_000_000), 5]
    types = ["string", WINDOW, "long"]
    assert parsed(types, ["emma", start, end, 5]) == expected
    assert parsed(types, ["emma", {"end": end, "start": start}, 5]) == expected
    for other in (["emma", {"start": start}, 5], ["emma", {"start": start, "end": end, "x": 1}, 5]):
        with pytest.raises(KeyInvalid, match="has not the fields start, end"):
            parsed(types, other)
    for short in (["emma", start, end], ["emma", start], ["emma", start, end, 5, 6]):
        with pytest.raises(KeyInvalid, match="parts, a whole key of 'view' has 4"):
            parsed(types, short)
    nested = struct_of(at=WINDOW, name="string")
    assert parsed([nested], [{"at": {"start": start, "end": end}, "name": "x"}]) == [((1_000_000, 2_000_000), "x")]
    assert parsed([nested], [start, end, "x"]) == [((1_000_000, 2_000_000), "x")]
    of_one = struct_of(start="timestamp")
    assert parsed([of_one], [start]) == parsed([of_one], [{"start": start}]) == [(1_000_000,)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["start", "end", "x"]), parts),
    max_leaves=6,
)


ALIKE = {"string": st.text(max_size=3), "long": st.integers() | st.integers().map(str), "date": st.dates().map(str)}


@given(st.lists(st.sampled_from(sorted(ALIKE)), max_size=3), st.data())
def test_many_keys_are_parsed_as_each_of_them_is(types: list[str], data: st.DataObject) -> None:
    """Such that all look alike, which are parsed a column at a time, and such with anything among them."""
    part = [st.just(data.draw(ALIKE[type_])) | ALIKE[type_] for type_ in types]
    key = st.tuples(*part).map(list)
    sent = data.draw(st.lists(key | (key | json_values if data.draw(st.booleans()) else key), min_size=1, max_size=6))
    if len(types) == 1 and data.draw(st.booleans()):
        sent = [each[0] if isinstance(each, list) and each else each for each in sent]
    keys = JsonKeys("'view'", [(f"c{place}", parse_type(type_)) for place, type_ in enumerate(types)])
    try:
        expected = [keys.parse(each) for each in sent]
    except KeyInvalid as error:
        with pytest.raises(KeyInvalid, match=re.escape(error.what)):
            keys.parse_all(sent)
    else:
        assert list(map(list, keys.parse_all(sent))) == expected


@given(json_values, st.lists(st.sampled_from([*TYPES, WINDOW]), max_size=3))
def test_whatever_is_sent_is_a_key_or_refused(sent: Any, types: list[str]) -> None:
    try:
        assert len(parsed(types, sent)) == len(types)
    except KeyInvalid as refused:
        assert "\n" not in str(refused)
