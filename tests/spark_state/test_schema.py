"""The state's schema: columns of keys and values, out of any number of chunks."""

import json
from collections.abc import Callable

import pytest

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.types import Column, StateSchema, read_schema

Put = Callable[[str, bytes], Storage]
Encode = Callable[..., bytes]
NAME = "state/3/0/_metadata/schema"
KEY = [("customer", "string"), ("period_end", "timestamp")]
VALUE = [("sum", "long"), ("Straße", "decimal(10,2)")]
EXPECTED = StateSchema(
    key=(Column("customer", "string"), Column("period_end", "timestamp")),
    value=(Column("sum", "long"), Column("Straße", "decimal(10,2)")),
)


@pytest.mark.parametrize("chunk_chars", [7, 100, 65_535])
def test_the_columns_are_put_together_from_their_chunks(put: Put, encode_schema: Encode, chunk_chars: int) -> None:
    storage = put(NAME, encode_schema(KEY, VALUE, chunk_chars=chunk_chars))
    assert read_schema(storage, operator=3) == EXPECTED


def test_nested_types_are_kept_as_json(put: Put, encode_schema: Encode) -> None:
    array = {"type": "array", "elementType": "long", "containsNull": True}
    schema = read_schema(put(NAME, encode_schema(KEY, [("list", array)])), operator=3)
    assert schema.value == (Column("list", '{"containsNull": true, "elementType": "long", "type": "array"}'),)


def test_before_the_first_batch_there_is_no_schema(put: Put) -> None:
    with pytest.raises(FileNotFoundError):
        read_schema(put("metadata", b""), operator=3)


def test_a_schema_cut_at_any_byte_is_damaged(put: Put, encode_schema: Encode) -> None:
    content = encode_schema(KEY, VALUE)
    for cut in range(len(content)):
        storage = put(NAME, content[:cut])
        with pytest.raises(CheckpointInvalid, match="schema cannot be read") as damaged:
            read_schema(storage, operator=3)
        assert str(damaged.value.where).endswith(NAME)


def test_version_1_has_each_schema_as_one_text(put: Put, encode_text: Encode) -> None:
    fields = ({"type": "struct", "fields": [{"name": n, "type": t} for n, t in part]} for part in (KEY, VALUE))
    content = encode_text("v1") + b"".join(encode_text(json.dumps(struct)) for struct in fields)
    assert read_schema(put(NAME, content), operator=3) == EXPECTED


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_another_version_is_told(put: Put, encode_schema: Encode, version: str) -> None:
    with pytest.raises(CheckpointInvalid, match=f"version '{version}' is not known"):
        read_schema(put(NAME, encode_schema(KEY, VALUE, version=version)), operator=3)
