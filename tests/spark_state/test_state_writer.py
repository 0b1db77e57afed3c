"""Rows and changelogs written here are those that the readers, and the encoders made from the drawings, know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import read_changelog
from stateside.spark_state.state_writer import ChangelogWriter, RowEncoder
from stateside.spark_state.types import Column
from tests.rows import VALUES, encode_row, values_of

TYPES = sorted(type_ for type_ in VALUES if type_ != "void")


@given(st.data())
def test_a_row_is_encoded_as_the_drawing_says(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=70))
    values = data.draw(values_of(types))
    columns = [Column(f"c{number}", type_) for number, type_ in enumerate(types)]
    assert RowEncoder(columns).encode(values) == encode_row(types, values)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("long", 2**63), ("integer", "7"), ("string", 7), ("decimal(9,2)", 1.5), ("long", 1.5), ("boolean", "x")],
)
def test_a_value_of_another_type_is_refused_with_its_column(type_: str, value: Any) -> None:
    encoder = RowEncoder([Column("id", "long"), Column("amount", type_)])
    with pytest.raises(ValueError, match="'amount'"):
        encoder.encode([1, value])


@given(rows=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200) | st.just(bytes(70_000))), max_size=50))
def test_a_changelog_is_read_back(rows: list[tuple[bytes, bytes]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("state")
    path = folder / "state/0/0/1_one.changelog"
    writer = ChangelogWriter(path, "one")
    for key, value in rows:
        writer.put(key, value)
    writer.close()
    found = read_changelog(Storage.at(folder), Commit(0, 0, {"0": [["one"]]}), 0, 0)
    assert [(change.key, change.value) for change in found.changes] == rows
    assert found.lineage == ((1, "one"),)
