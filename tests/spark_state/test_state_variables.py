"""State variables: read from Spark's metadata and schema files, and refused where anything is not as known."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.state_variables import KeyDecoder, StateVariable, ValueDecoder, read_variables
from stateside.spark_state.types import Column
from tests.sizes import thinned

Put = Callable[[str, bytes | str], Storage]
EncodeRow = Callable[..., bytes]
Fields = list[tuple[str, Any]]
Family = tuple[str, Any, Any, dict[str, Any]]

SCHEMA = "state/0/_stateSchema/default/0_one"
NO_PREFIX = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
PREFIX = {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": 1}


def struct_type(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]}


GROUPING = struct_type(("user", "string"), ("region", "integer"))
MAP_KEY = struct_type(("key", GROUPING), ("userKey", struct_type(("kind", "string"))))
TOTAL: Family = ("total", GROUPING, struct_type(("sum", "long")), NO_PREFIX)
FRESH: Family = (
    "fresh",
    GROUPING,
    struct_type(("value", struct_type(("sum", "long"))), ("ttlExpirationMs", "long")),
    NO_PREFIX,
)
TIMERS: Family = (
    "$procTimers_keyToTimestamp",
    struct_type(("key", GROUPING), ("expiryTimestampMs", "long")),
    struct_type(("__dummy__", "void")),
    PREFIX,
)
KINDS: Family = ("kinds", MAP_KEY, struct_type(("sum", "long")), PREFIX)
KINDS_VARIABLE = StateVariable(
    "kinds",
    "MapState",
    False,
    (Column("user", "string"), Column("region", "integer")),
    (Column("kind", "string"),),
    (Column("sum", "long"),),
)


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def chunk(document: Any) -> bytes:
    return struct.pack(">i", 1) + utf(json.dumps(document))


def schema_file(*families: Family, version: str = "v3") -> bytes:
    content = utf(version) + struct.pack(">i", len(families))
    for name, key, value, encoder in families:
        content += utf(name) + bytes(2) + chunk(key) + bytes(2) + chunk(value) + chunk(encoder) + chunk({})
    return content


def metadata(*variables: tuple[str, str, bool], paths: tuple[str, ...] = ("file:/gone/0_one",)) -> str:
    declared = [{"stateName": n, "stateVariableType": k, "ttlEnabled": t} for n, k, t in variables]
    store = {"storeName": "default", "numPartitions": 3, "stateSchemaFilePaths": list(paths)}
    properties = json.dumps({"timeMode": "NoTime", "outputMode": "Update", "stateVariables": declared})
    return "v2\n" + json.dumps({"stateStoreInfo": [store], "operatorPropertiesJson": properties})


def test_variables_have_the_columns_of_their_parts(put: Put) -> None:
    put(SCHEMA, schema_file(TOTAL, FRESH, KINDS))
    declared = [("total", "ValueState", False), ("fresh", "ValueState", True), ("kinds", "MapState", False)]
    variables = read_variables(put("state/0/_metadata/v2/0", metadata(*declared)), operator=0)
    assert variables["kinds"] == KINDS_VARIABLE
    assert [column.name for column in variables["total"].columns] == ["sum"]
    assert [column.name for column in variables["fresh"].columns] == ["sum", "expires_ms"]
    assert [column.name for column in variables["kinds"].key] == ["user", "region", "kind"]


def test_the_newest_start_of_the_query_counts(put: Put) -> None:
    put(SCHEMA, schema_file(TOTAL, KINDS))
    put("state/0/_metadata/v2/9", metadata(("total", "ValueState", False)))
    storage = put("state/0/_metadata/v2/10", metadata(("kinds", "MapState", False)))
    assert list(read_variables(storage, operator=0)) == ["kinds"]


def test_a_list_has_the_place_of_an_entry_in_its_key(put: Put) -> None:
    put(SCHEMA, schema_file(("last", *FRESH[1:])))
    storage = put("state/0/_metadata/v2/0", metadata(("last", "ListState", True)))
    variable = read_variables(storage, operator=0)["last"]
    assert [(column.name, column.type) for column in variable.key[2:]] == [("index", "integer")]
    assert [column.name for column in variable.columns] == ["sum", "expires_ms"]


@pytest.mark.parametrize(
    ("others", "name"), [((), "timers"), ((("timers", "ValueState", False),), "$procTimers_keyToTimestamp")]
)
def test_timers_are_a_variable_of_that_name_unless_the_processor_has_one_itself(
    put: Put, others: tuple[tuple[str, str, bool], ...], name: str
) -> None:
    put(SCHEMA, schema_file(TIMERS, ("timers", *TOTAL[1:])))
    storage = put("state/0/_metadata/v2/0", metadata((TIMERS[0], "TimerState", False), *others))
    variable = read_variables(storage, operator=0)[name]
    assert [column.name for column in variable.key] == ["user", "region", "expires_ms"]
    assert variable.columns == ()


def test_the_key_of_a_timer_is_the_grouping_key_and_the_time(encode_row: EncodeRow) -> None:
    variable = StateVariable(
        "timers", "TimerState", False, KINDS_VARIABLE.grouping, (Column("expires_ms", "long"),), ()
    )
    first = b"\x00" + encode_row(["struct"], [encode_row(["string", "integer"], ("emma", None))])
    key = struct.pack("<i", len(first)) + first + b"\x00" + encode_row(["long"], [1_700])
    assert KeyDecoder(variable).decode(key, "file") == ("emma", None, 1_700)


def test_before_the_first_batch_there_are_no_variables(put: Put) -> None:
    with pytest.raises(FileNotFoundError):
        read_variables(put("metadata", b""), operator=0)


def test_an_aggregation_has_no_variables(put: Put) -> None:
    storage = put("state/0/_metadata/metadata", 'v1\n{"stateStoreInfo":[{"numPartitions":2}]}')
    with pytest.raises(CheckpointInvalid, match="Only the state of a transformWithState has variables"):
        read_variables(storage, operator=0)


def test_a_schema_cut_at_any_byte_is_damaged(put: Put) -> None:
    put("state/0/_metadata/v2/0", metadata(("total", "ValueState", False)))
    content = schema_file(TOTAL, KINDS)
    for cut in thinned(range(len(content)), 7):
        with pytest.raises(CheckpointInvalid, match="schema cannot be read") as damaged:
            read_variables(put(SCHEMA, content[:cut]), operator=0)
        assert str(damaged.value.where).endswith(SCHEMA)


@pytest.mark.parametrize(
    ("family", "kind", "expires", "reason"),
    [
        ((*TOTAL[:3], PREFIX), "ValueState", False, "encoded in a way that is not known"),
        ((*KINDS[:3], {**PREFIX, "numColsPrefixKey": 2}), "MapState", False, "encoded in a way that is not known"),
        (TOTAL, "ValueState", True, "a field value was expected"),
        (("other", *TOTAL[1:]), "ValueState", False, "redeclared"),
        (TOTAL, "TreeState", False, "the variable total is a TreeState, which is not known"),
    ],
)
def test_what_is_not_as_known_is_refused(put: Put, family: Family, kind: str, expires: bool, reason: str) -> None:
    put(SCHEMA, schema_file(family))
    name = "total" if family[0] == "other" else family[0]
    storage = put("state/0/_metadata/v2/0", metadata((name, kind, expires)))
    with pytest.raises(CheckpointInvalid, match=reason):
        read_variables(storage, operator=0)


def test_a_variable_that_was_removed_and_made_anew_with_another_type_is_refused(put: Put) -> None:
    """A replica may still have rows of the old type, which would decode to nonsense."""
    put(SCHEMA, schema_file(TOTAL))
    put(
        "state/0/_stateSchema/default/5_two",
        schema_file(("total", GROUPING, struct_type(("sum", "double")), NO_PREFIX)),
    )
    paths = ("file:/gone/0_one", "file:/gone/5_two")
    storage = put("state/0/_metadata/v2/5", metadata(("total", "ValueState", False), paths=paths))
    with pytest.raises(CheckpointInvalid, match="the variable total was redeclared with another type"):
        read_variables(storage, operator=0)


def test_an_old_schema_may_be_gone_and_the_newest_may_not(put: Put) -> None:
    put("state/0/_stateSchema/default/5_two", schema_file(TOTAL))
    paths = ("file:/gone/0_one", "file:/gone/5_two")
    storage = put("state/0/_metadata/v2/5", metadata(("total", "ValueState", False), paths=paths))
    assert list(read_variables(storage, operator=0)) == ["total"]
    storage = put("state/0/_metadata/v2/6", metadata(("total", "ValueState", False), paths=paths[::-1]))
    with pytest.raises(CheckpointInvalid, match="schema 0_one is gone"):
        read_variables(storage, operator=0)


def test_the_key_of_a_map_state_is_the_grouping_key_and_the_maps(encode_row: EncodeRow) -> None:
    key = map_key(encode_row, ("emma", 7), ("call",))
    assert KeyDecoder(KINDS_VARIABLE).decode(key, "file") == ("emma", 7, "call")


def test_a_cut_key_of_a_map_state_is_damaged(encode_row: EncodeRow) -> None:
    key = map_key(encode_row, ("emma", 7), ("call",))
    size = 4 + struct.unpack_from("<i", key)[0]
    for cut in (0, 3, 4, size - 1, size):
        with pytest.raises(CheckpointInvalid):
            KeyDecoder(KINDS_VARIABLE).decode(key[:cut], "file")


def test_a_value_that_expires_gives_its_fields_and_the_time(encode_row: EncodeRow) -> None:
    fresh = StateVariable("fresh", "ValueState", True, (), (), (Column("sum", "long"), Column("kind", "string")))
    row = encode_row(["struct", "long"], [encode_row(["long", "string"], [5, None]), 1_700])
    assert ValueDecoder(fresh).decode(row) == (5, None, 1_700)


def map_key(encode_row: EncodeRow, grouping: tuple[Any, ...], key: tuple[Any, ...]) -> bytes:
    first = b"\x00" + encode_row(["struct"], [encode_row(["string", "integer"], grouping)])
    second = b"\x00" + encode_row(["struct"], [encode_row(["string"], key)])
    return struct.pack("<i", len(first)) + first + second
