"""The state of groups as a view: fields of the state as columns, and the timeout; older formats are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.state_catalogue import check_state, value_decoder, views_of_groups

from .test_state_variables import struct_type as struct

Put = Callable[[str, bytes | str], Storage]
EncodeSchema = Callable[..., bytes]
EncodeRow = Callable[..., bytes]

KEY = [("customer", "string"), ("number", "integer")]
STATE = struct(("number", "integer"), ("text", "string"))
SCHEMA = "state/0/0/_metadata/schema"


def groups(put: Put, encode_schema: EncodeSchema, *value: tuple[str, Any]) -> Storage:
    return put(SCHEMA, encode_schema(KEY, list(value)))


def test_a_view_has_the_states_fields_and_the_timeout(
    put: Put, encode_schema: EncodeSchema, encode_row: EncodeRow
) -> None:
    storage = groups(put, encode_schema, ("groupState", STATE), ("timeoutTimestamp", "long"))
    [view] = views_of_groups(Checkpoint(storage), 0)
    assert [column.name for column in view.key] == ["customer", "number"]
    assert [column.name for column in view.columns] == ["number_2", "text", "timeout_ms"]
    check_state(view, storage)
    decoder = value_decoder(view, storage)
    state = encode_row(["integer", "string"], [3, "three"])
    assert decoder.decode(encode_row(["struct", "long"], [state, 1_700])) == (3, "three", 1_700)
    assert decoder.decode(encode_row(["struct", "long"], [state, -1])) == (3, "three", None)
    assert decoder.decode(encode_row(["struct", "long"], [None, 1_700])) == (None, None, 1_700)


def test_without_timeouts_there_is_no_such_column(put: Put, encode_schema: EncodeSchema, encode_row: EncodeRow) -> None:
    storage = groups(put, encode_schema, ("groupState", STATE))
    [view] = views_of_groups(Checkpoint(storage), 0)
    assert [column.name for column in view.columns] == ["number_2", "text"]
    row = encode_row(["struct"], [encode_row(["integer", "string"], [3, None])])
    assert value_decoder(view, storage).decode(row) == (3, None)


def test_the_first_format_is_refused(put: Put, encode_schema: EncodeSchema) -> None:
    storage = groups(put, encode_schema, ("total", "long"), ("timeoutTimestamp", "integer"))
    with pytest.raises(CheckpointInvalid, match=r"not as known: its columns are .*stateFormatVersion=2"):
        views_of_groups(Checkpoint(storage), 0)


def test_a_field_that_cannot_be_served_is_named(put: Put, encode_schema: EncodeSchema) -> None:
    storage = groups(put, encode_schema, ("groupState", struct(("span", "variant"))))
    with pytest.raises(ViewInvalid, match="'span' has the type variant"):
        views_of_groups(Checkpoint(storage), 0)
