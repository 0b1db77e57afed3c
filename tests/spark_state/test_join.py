"""The sides of a join as views: from four stores, or from column families; what is not known is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.catalogue import Catalogue
from stateside.views.state_catalogue import check_state, value_decoder, views_of_join

from .test_state_variables import NO_PREFIX, Family, schema_file
from .test_state_variables import struct_type as struct

Put = Callable[[str, bytes | str], Storage]
EncodeSchema = Callable[..., bytes]
EncodeRow = Callable[..., bytes]

KEY = [("field0", "string"), ("index", "long")]
LEFT = [("customer", "string"), ("paid", "decimal(20,2)"), ("matched", "boolean")]
RIGHT = [("index", "long"), ("index", "string"), ("matched", "boolean")]


def stores(put: Put, encode_schema: EncodeSchema, *, key: list[Any] = KEY, left: list[Any] = LEFT) -> Storage:
    put("state/0/0/left-keyWithIndexToValue/_metadata/schema", encode_schema(key, left))
    put("state/0/0/right-keyWithIndexToValue/_metadata/schema", encode_schema(KEY, RIGHT))
    return put("state/0/_metadata/metadata", 'v1\n{"stateStoreInfo":[{"numPartitions":2}]}')


def families(put: Put, *given: Family) -> Storage:
    put("state/0/_stateSchema/default/0_one", schema_file(*given))
    store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": ["file:/gone/0_one"]}
    return put(
        "state/0/_metadata/v2/0", "v2\n" + json.dumps({"stateStoreInfo": [store], "operatorPropertiesJson": "{}"})
    )


def shown(view: Catalogue) -> tuple[list[str], list[str]]:
    return [column.name for column in view.key], [column.name for column in view.columns]


def test_each_side_is_a_view_of_its_own_store(put: Put, encode_schema: EncodeSchema, encode_row: EncodeRow) -> None:
    storage = stores(put, encode_schema)
    left, right = views_of_join(Checkpoint(storage), 0)
    assert [(view.view, view.store, view.family) for view in (left, right)] == [
        ("left", "left-keyWithIndexToValue", None),
        ("right", "right-keyWithIndexToValue", None),
    ]
    assert shown(left) == (["field0", "index"], ["customer", "paid", "matched"])
    row = encode_row(["long", "string", "boolean"], [7, "seven", True])
    assert value_decoder(right, storage).decode(row) == (7, "seven", True)
    for view in (left, right):
        check_state(view, storage)
        assert Catalogue.parse(view.as_json(), "file") == view


def test_columns_of_one_name_are_told_apart_by_numbers(put: Put, encode_schema: EncodeSchema) -> None:
    _, right = views_of_join(Checkpoint(stores(put, encode_schema)), 0)
    assert shown(right) == (["field0", "index"], ["index_2", "index_3", "matched"])


def test_with_column_families_each_side_has_one(put: Put) -> None:
    given = [(f"{side}-keyWithIndexToValue", struct(*KEY), struct(*LEFT), NO_PREFIX) for side in ("left", "right")]
    storage = families(put, *given)
    left, right = views_of_join(Checkpoint(storage), 0)
    assert (left.store, left.family, right.family) == (None, "left-keyWithIndexToValue", "right-keyWithIndexToValue")
    check_state(left, storage)


def test_a_join_in_a_format_that_is_not_known_is_refused(put: Put) -> None:
    storage = families(put, ("left-keyWithTsToValues", struct(*KEY), struct(*LEFT), NO_PREFIX))
    with pytest.raises(CheckpointInvalid, match=r"not among left-keyWithTsToValues.*stateFormatVersion=2 or 3"):
        views_of_join(Checkpoint(storage), 0)


@pytest.mark.parametrize(
    ("key", "left", "reason"),
    [
        ([("field0", json.loads('{"type":"array","elementType":"long"}')), ("index", "long")], LEFT, "'field0'"),
        (KEY, [("span", "variant"), ("matched", "boolean")], "left side .* 'span'"),
    ],
)
def test_a_column_that_cannot_be_served_is_named(
    put: Put, encode_schema: EncodeSchema, key: list[Any], left: list[Any], reason: str
) -> None:
    with pytest.raises(ViewInvalid, match=reason):
        views_of_join(Checkpoint(stores(put, encode_schema, key=key, left=left)), 0)


def test_a_state_of_other_columns_than_the_views_is_refused(put: Put, encode_schema: EncodeSchema) -> None:
    left, _ = views_of_join(Checkpoint(stores(put, encode_schema)), 0)
    storage = stores(put, encode_schema, left=[("customer", "long"), *LEFT[1:]])
    with pytest.raises(ViewInvalid, match="should be customer string, the state has customer long"):
        check_state(left, storage)
