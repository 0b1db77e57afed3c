"""The names of column families, out of snapshots: by the newest that counts, and never by a guess."""

import io
import json
import zipfile
from collections.abc import Callable

import pytest

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import Changelog, StateChange
from stateside.spark_state.column_families import ColumnFamilies

Put = Callable[[str, bytes], Storage]


def snapshot(version: str = "v1", **families: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr("metadata", f"{version}\n{json.dumps({'columnFamilyMapping': families})}")
    return content.getvalue()


def changed(*families: int, lineage: tuple[tuple[int, str], ...] = ()) -> Changelog:
    return Changelog([StateChange(b"", b"", family) for family in families], lineage)


def commit(batch: int, state_id: str | None = None) -> Commit:
    return Commit(batch, 0, {"0": [[state_id]]} if state_id else {})


def test_the_snapshot_of_the_batch_itself_names_them(put: Put) -> None:
    storage = put("state/0/0/1.zip", snapshot(default=1, total=2))
    assert ColumnFamilies(storage, 0).names(commit(0), 0, changed(2)) == {1: "default", 2: "total"}


def test_a_reader_that_comes_later_finds_the_newest_snapshot_before_its_batch(put: Put) -> None:
    put("state/0/0/1.zip", snapshot(total=2))
    put("state/0/0/3.zip", snapshot(total=2, kinds=3))
    storage = put("state/0/0/12.zip", snapshot(total=2, kinds=3, later=4))
    families = ColumnFamilies(storage, 0)
    assert families.names(commit(9), 0, changed(2, 3)) == {2: "total", 3: "kinds"}
    with pytest.raises(CheckpointInvalid, match="column family 4 is in no snapshot up to batch 9"):
        families.names(commit(9), 0, changed(4))


def test_with_ids_only_snapshots_of_the_lineage_count(put: Put) -> None:
    put("state/0/0/1_a.zip", snapshot(total=2))
    storage = put("state/0/0/2_other-attempt.zip", snapshot(kinds=2))
    lineage = ((1, "a"), (2, "b"))
    assert ColumnFamilies(storage, 0).names(commit(2, "c"), 0, changed(2, lineage=lineage)) == {2: "total"}


def test_a_family_that_the_batch_removed_is_named_by_the_snapshot_before(put: Put) -> None:
    """Its rows are deleted in that very batch, whose own snapshot has forgotten it."""
    put("state/0/0/1_a.zip", snapshot(total=2, kinds=3))
    storage = put("state/0/0/2_b.zip", snapshot(total=2, later=4))
    names = ColumnFamilies(storage, 0).names(commit(1, "b"), 0, changed(2, 3, 4, lineage=((1, "a"),)))
    assert (names[2], names[3], names[4]) == ("total", "kinds", "later")


def test_each_partition_has_ids_of_its_own(put: Put) -> None:
    put("state/0/0/1.zip", snapshot(total=2))
    storage = put("state/0/1/1.zip", snapshot(kinds=2))
    families = ColumnFamilies(storage, 0)
    assert families.names(commit(0), 0, changed(2)) == {2: "total"}
    assert families.names(commit(0), 1, changed(2)) == {2: "kinds"}


def test_a_batch_that_changed_nothing_needs_no_snapshot(put: Put) -> None:
    assert ColumnFamilies(put("metadata", b""), 0).names(commit(0), 0, changed()) == {}


@pytest.mark.parametrize(
    "content", [b"", b"no zip", snapshot("v2", total=2), snapshot(total=2)[:-5]], ids=["empty", "other", "v2", "cut"]
)
def test_a_snapshot_that_cannot_be_read_is_told(put: Put, content: bytes) -> None:
    storage = put("state/0/0/1.zip", content)
    with pytest.raises(CheckpointInvalid, match="snapshot of the state cannot be read") as error:
        ColumnFamilies(storage, 0).names(commit(0), 0, changed(2))
    assert str(error.value.where).endswith("state/0/0/1.zip")
