"""The value of a list state: entries with their sizes, as appended values are put together."""

import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.column_families import delimiter_of, split_entries

Put = Callable[[str, bytes | str], Storage]
SETTING = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"


def framed(entries: list[bytes], delimiter: bytes) -> bytes:
    return delimiter.join(struct.pack("<i", len(entry)) + entry for entry in entries)


@given(st.lists(st.binary(max_size=50), min_size=1), st.sampled_from([b"", b","]))
def test_entries_come_out_as_they_were_appended(entries: list[bytes], delimiter: bytes) -> None:
    assert list(split_entries(framed(entries, delimiter), delimiter, "file")) == entries


@pytest.mark.parametrize("delimiter", [b"", b","])
def test_a_list_cut_within_an_entry_is_damaged(delimiter: bytes) -> None:
    value = framed([b"one", b"three"], delimiter)
    for cut in set(range(len(value))) - {len(framed([b"one"], delimiter))}:
        with pytest.raises(CheckpointInvalid, match="cut short"):
            list(split_entries(value[:cut], delimiter, "file"))


def test_entries_with_another_delimiter_than_expected_are_damaged() -> None:
    with pytest.raises(CheckpointInvalid, match="not apart as expected"):
        list(split_entries(framed([b"one", b"three"], b""), b",", "file"))


@pytest.mark.parametrize(("conf", "delimiter"), [({}, b","), ({SETTING: "1"}, b","), ({SETTING: "2"}, b"")])
def test_the_offsets_file_tells_the_delimiter_and_old_ones_have_a_comma(
    put: Put, conf: dict[str, str], delimiter: bytes
) -> None:
    assert delimiter_of(checkpoint(put, conf)) == delimiter


def test_an_unknown_merge_operator_is_refused_by_its_number(put: Put) -> None:
    with pytest.raises(CheckpointInvalid, match=r"merge operator 3, which is not known .*offsets/4"):
        delimiter_of(checkpoint(put, {SETTING: "3"}))


def test_before_the_first_commit_the_delimiter_is_not_known(put: Put) -> None:
    with pytest.raises(FileNotFoundError):
        delimiter_of(Checkpoint(put("metadata", b"")))


def checkpoint(put: Put, conf: dict[str, str]) -> Checkpoint:
    put("commits/4", 'v1\n{"nextBatchWatermarkMs":0}')
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf})
    return Checkpoint(put("offsets/4", f'v1\n{metadata}\n{{"logOffset":4}}'))
