"""Changelogs of versions 1 to 4: every change in order, none from a file that is cut or unknown."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit, Plan
from stateside.spark_state.changelog import (
    StateChange,
    _parse,
    changelog_name,
    check_encoding,
    read_changelog,
)
from tests.sizes import examples

Put = Callable[[str, bytes], Storage]
Encode = Callable[..., bytes]

COMMIT = Commit(4, 0, {})
COMMIT_V2 = Commit(4, 0, {"0": [["id-of-0"], ["id-of-1"]], "1": [["a", "b"]]})
LINEAGE: list[dict[str, Any]] = [
    {"version": 4, "checkpointUniqueId": "before"},
    {"version": 5, "checkpointUniqueId": "x"},
]
FamilyRecord = tuple[int, bytes, bytes | None, bool]
FAMILY_RECORDS: list[FamilyRecord] = [
    (2, b"key", b"value", False),
    (300, b"", b"", False),
    (7, b"key", None, False),
    (300, b"key", b"more", True),
]
RECORDS = [(b"key one", b"value"), (b"key two", None), (b"", b""), (b"key one", b"again")]

records = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=40)), max_size=6)
family_records = st.lists(
    st.tuples(
        st.integers(-(2**15), 2**15 - 1), st.binary(max_size=40), st.none() | st.binary(max_size=40), st.booleans()
    ),
    max_size=6,
)
lineages: st.SearchStrategy[list[Any] | None] = st.none() | st.just([]) | st.just(LINEAGE)


@settings(max_examples=examples(100, 500))
@given(records, lineages)
def test_every_change_comes_out_in_order(
    encode_changelog: Encode, records: list[tuple[bytes, bytes | None]], lineage: list[dict[str, Any]] | None
) -> None:
    changes = _parse(encode_changelog(records, lineage), "file").changes
    assert list(changes) == [StateChange(key, value) for key, value in records]


@settings(max_examples=examples(100, 500))
@given(family_records, lineages)
def test_every_change_of_a_column_family_comes_out_in_order(
    encode_family_changelog: Encode, records: list[FamilyRecord], lineage: list[dict[str, Any]] | None
) -> None:
    changelog = _parse(encode_family_changelog(records, lineage), "file")
    assert changelog.changes == [
        StateChange(key, value, family, appended and value is not None) for family, key, value, appended in records
    ]
    assert changelog.lineage == tuple((item["version"], item["checkpointUniqueId"]) for item in lineage or [])


def test_a_changelog_of_column_families_is_read_from_its_file(
    put: Put, compress: Encode, encode_family_changelog: Encode
) -> None:
    storage = put("state/0/1/5_id-of-1.changelog", compress(encode_family_changelog(FAMILY_RECORDS, LINEAGE)))
    changelog = read_changelog(storage, COMMIT_V2, operator=0, partition=1)
    assert changelog.lineage == ((4, "before"), (5, "x"))
    assert list(changelog.changes)[2:] == [
        StateChange(b"key", None, 7),
        StateChange(b"key", b"more", 300, appended=True),
    ]


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30), st.none() | st.binary(max_size=9))))
def test_a_key_in_two_parts_comes_out_as_both(records: list[tuple[bytes, bytes, bytes | None]]) -> None:
    content = b""
    for first, rest, value in records:
        key = struct.pack("<i", len(first) + 1) + b"\x00" + first + b"\x00" + rest
        content += struct.pack(">i", len(key)) + key
        content += struct.pack(">i", -1) if value is None else struct.pack(">ib", len(value) + 1, 0) + value
    content += struct.pack(">i", -1)
    expected = [StateChange(first, value, key_rest=rest) for first, rest, value in records]
    assert list(_parse(content, "file", prefixed=True).changes) == expected


@pytest.mark.parametrize("size", [-1, 0, 99, 2**31 - 1])
def test_a_key_whose_first_part_is_longer_than_itself_is_damaged(size: int) -> None:
    key = struct.pack("<i", size) + b"\x00row"
    with pytest.raises(CheckpointInvalid):
        _parse(struct.pack(">i", len(key)) + key + struct.pack(">ii", -1, -1), "file", prefixed=True)


def test_a_batchs_changes_are_read_from_its_file(put: Put, compress: Encode, encode_changelog: Encode) -> None:
    storage = put("state/0/1/5.changelog", compress(encode_changelog(RECORDS)))
    assert list(read_changelog(storage, COMMIT, operator=0, partition=1).changes) == [
        StateChange(*record) for record in RECORDS
    ]


def test_with_format_v2_the_commit_names_the_file_that_counts(
    put: Put, compress: Encode, encode_changelog: Encode
) -> None:
    put("state/0/1/5_id-of-another-attempt.changelog", compress(encode_changelog([(b"wrong", b"")], LINEAGE)))
    storage = put("state/0/1/5_id-of-1.changelog", compress(encode_changelog(RECORDS, LINEAGE)))
    assert list(read_changelog(storage, COMMIT_V2, operator=0, partition=1).changes) == [
        StateChange(*record) for record in RECORDS
    ]


def test_the_version_of_a_file_is_its_batch_and_one() -> None:
    assert changelog_name(COMMIT, 0, 1) == "state/0/1/5.changelog"
    assert changelog_name(COMMIT_V2, 0, 1) == "state/0/1/5_id-of-1.changelog"
    assert changelog_name(COMMIT_V2, 1, 0) == "state/1/0/5_a.changelog"


def test_a_file_that_spark_has_deleted_is_a_gap(put: Put) -> None:
    storage = put("metadata", b"")
    with pytest.raises(CheckpointGap, match="The changes of batch 4 are gone") as gap:
        list(read_changelog(storage, COMMIT, 0, 1).changes)
    assert str(gap.value.where).endswith("state/0/1/5.changelog")


@pytest.mark.parametrize("lineage", [None, LINEAGE], ids=["version 1", "version 3"])
def test_a_content_cut_at_any_byte_is_damaged_and_never_shorter(
    encode_changelog: Encode, lineage: list[dict[str, Any]] | None
) -> None:
    content = encode_changelog(RECORDS, lineage)
    for cut in range(len(content)):
        with pytest.raises(CheckpointInvalid) as damaged:
            _parse(content[:cut], "state/0/0/5.changelog")
        assert "state/0/0/5.changelog" in str(damaged.value)


@pytest.mark.parametrize("version", ["v0", "v5", "v9"])
def test_a_version_that_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(CheckpointInvalid, match=f"version {version[1]} cannot be read"):
        _parse(b"\x00\x02" + version.encode() + bytes(20), "file")


@pytest.mark.parametrize("size", [-2, -(2**31), 2**31 - 1])
def test_an_impossible_size_is_damage(encode_changelog: Encode, size: int) -> None:
    content = encode_changelog(RECORDS[:1])
    for at_byte in (0, 4 + 1 + len(RECORDS[0][0])):
        damaged = content[:at_byte] + struct.pack(">i", size) + content[at_byte + 4 :]
        with pytest.raises(CheckpointInvalid, match=r"cut short|cannot have") as error:
            _parse(damaged, "file")
        assert "file, byte" in str(error.value)


@pytest.mark.parametrize("stored", [b"\x01key", b""], ids=["another encoding", "no encoding"])
def test_a_row_of_another_encoding_is_refused(stored: bytes) -> None:
    content = struct.pack(">i", len(stored)) + stored + struct.pack(">ii", -1, -1)
    with pytest.raises(CheckpointInvalid, match="encoding"):
        _parse(content, "file")


@pytest.mark.parametrize("lineage", [None, LINEAGE], ids=["version 2", "version 4"])
def test_a_changelog_of_column_families_cut_at_any_byte_is_damaged(
    encode_family_changelog: Encode, lineage: list[dict[str, Any]] | None
) -> None:
    content = encode_family_changelog(FAMILY_RECORDS, lineage)
    for cut in range(len(content)):
        with pytest.raises(CheckpointInvalid, match="file"):
            _parse(content[:cut], "file")


@pytest.mark.parametrize("kind", [0x02, 0x20, 0xFF])
def test_a_kind_of_record_that_is_not_known_is_refused(encode_family_changelog: Encode, kind: int) -> None:
    content = bytearray(encode_family_changelog(FAMILY_RECORDS))
    content[4] = kind
    with pytest.raises(CheckpointInvalid, match=f"records of kind {kind:02x} are not known"):
        _parse(bytes(content), "file")


@pytest.mark.parametrize(("setting", "value"), [("encodingFormat", "json"), ("rowChecksum.enabled", "true")])
def test_rows_that_are_encoded_in_another_way_are_refused_by_the_settings_of_their_batch(
    setting: str, value: str
) -> None:
    """Taken for plain rows they could pass: a checksum's first byte may well be the version byte of a plain row."""
    name = f"spark.sql.streaming.stateStore.{setting}"
    with pytest.raises(CheckpointInvalid, match=setting.split(".")[0]):
        check_encoding(Plan(0, Position.of({}), 0, 0, {name: value}), "offsets/0")
    check_encoding(Plan(0, Position.of({}), 0, 0, {}), "offsets/0")
