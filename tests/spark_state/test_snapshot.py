"""Snapshots of the state: which one counts, and reading it, out of real RocksDB folders made here."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from stateside.core.errors import CheckpointInvalid
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint, Commit, Plan
from stateside.spark_state.changelog import StateChange, changelog_name, state_stem
from stateside.spark_state.provider import Provider, newest_chain
from stateside.spark_state.rocksdb_snapshot import StateSnapshot, newest_versions, read_contents

Put = Callable[[str, bytes], Storage]
FOLDER = "state/0/0"
KEYS = 20_000


def store(root: Path, version: str, pairs: dict[bytes, bytes], **families: int) -> Storage:
    """A snapshot as Spark leaves it: the tables under other names in `SSTs/`, everything else in the zip."""
    local, folder = root / "local", root / FOLDER
    with Rdict(str(local), Options(raw_mode=True)) as database:
        for key, value in pairs.items():
            database[key] = value
        database.flush()
    content, tables = io.BytesIO(), []
    (folder / "SSTs").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(content, "w") as archive:
        for path in sorted(local.iterdir()):
            if path.suffix == ".sst":
                named = f"{path.stem}-unique.sst"
                size_bytes = path.stat().st_size
                tables.append({"localFileName": path.name, "dfsSstFileName": named, "sizeBytes": size_bytes})
                path.rename(folder / "SSTs" / named)
            elif path.name.startswith(("CURRENT", "MANIFEST", "OPTIONS")):
                archive.write(path, path.name)
        metadata = {"sstFiles": tables, "numKeys": len(pairs), "columnFamilyMapping": families}
        archive.writestr("metadata", f"v1\n{json.dumps(metadata)}")
    (folder / f"{version}.zip").write_bytes(content.getvalue())
    return Storage.at(root)


def rows(count: int) -> dict[bytes, bytes]:
    return {b"\x00" + struct.pack(">q", number): b"\x00%d" % number for number in range(count)}


def rows_of(snapshot: StateSnapshot, *, prefixed: bool = False) -> list[StateChange]:
    return [row for block in snapshot.blocks(prefixed=prefixed) for row in block]


def table(storage: Storage) -> Path:
    [path] = (Path(storage.root) / FOLDER / "SSTs").iterdir()
    return path


def test_the_rows_are_those_that_were_stored(tmp_path: Path) -> None:
    storage = store(tmp_path, "5_a", rows(KEYS))
    with StateSnapshot(storage, f"{FOLDER}/5_a.zip", tmp_path / "scratch") as snapshot:
        found = rows_of(snapshot)
    assert found == [StateChange(key[1:], value[1:]) for key, value in sorted(rows(KEYS).items())]


def test_the_rows_of_a_family_are_its_own_alone(tmp_path: Path) -> None:
    pairs = {struct.pack("<h", family) + b"k%d" % number: b"v" for family in (1, 2, 258) for number in range(3)}
    storage = store(tmp_path, "5", pairs, default=1, total=2, kinds=258)
    with StateSnapshot(storage, f"{FOLDER}/5.zip", tmp_path / "scratch") as snapshot:
        assert snapshot.families == {1: "default", 2: "total", 258: "kinds"}
        for family in (1, 2, 258):
            assert list(snapshot.family_rows(family)) == [StateChange(b"k%d" % n, b"v", family) for n in range(3)]
        assert list(snapshot.family_rows(3)) == []


def test_a_prefixed_key_comes_in_its_two_parts(tmp_path: Path) -> None:
    storage = store(tmp_path, "5", {struct.pack("<i", 3) + b"\x00ab" + b"\x00cde": b"\x00v"})
    with StateSnapshot(storage, f"{FOLDER}/5.zip", tmp_path / "scratch") as snapshot:
        assert rows_of(snapshot, prefixed=True) == [StateChange(b"ab", b"v", key_rest=b"cde")]


def test_a_key_that_cannot_be_prefixed_is_told(tmp_path: Path) -> None:
    storage = store(tmp_path, "5", {b"\x01": b"\x00v"})
    with (
        StateSnapshot(storage, f"{FOLDER}/5.zip", tmp_path / "scratch") as snapshot,
        pytest.raises(CheckpointInvalid, match="a key is cut short"),
    ):
        rows_of(snapshot, prefixed=True)


def test_a_snapshot_without_rows_has_none(tmp_path: Path) -> None:
    storage = store(tmp_path, "5", {})
    with StateSnapshot(storage, f"{FOLDER}/5.zip", tmp_path / "scratch") as snapshot:
        assert rows_of(snapshot) == []


def test_a_damaged_table_is_told_and_never_read_as_a_shorter_one(tmp_path: Path) -> None:
    storage = store(tmp_path, "5", rows(KEYS))
    content = bytearray(table(storage).read_bytes())
    content[len(content) // 2] ^= 0x55
    table(storage).write_bytes(content)
    with (
        pytest.raises(CheckpointInvalid, match="checksum mismatch"),
        StateSnapshot(storage, f"{FOLDER}/5.zip", tmp_path / "scratch") as snapshot,
    ):
        rows_of(snapshot)


def test_a_table_that_was_cut_short_is_told_by_its_name(tmp_path: Path) -> None:
    storage = store(tmp_path, "5", rows(KEYS))
    table(storage).write_bytes(table(storage).read_bytes()[:-100])
    with pytest.raises(CheckpointInvalid, match=r"it has \d+ bytes and should have \d+") as error:
        StateSnapshot(storage, f"{FOLDER}/5.zip", tmp_path / "scratch")
    assert "-unique.sst" in str(error.value)


@given(st.data())
def test_a_zip_that_is_damaged_anywhere_is_told_or_still_says_the_same(data: st.DataObject) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles": [], "columnFamilyMapping": {"total": 2}}')
    damaged = bytearray(content.getvalue())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory() as folder:
        (Path(folder) / "5.zip").write_bytes(damaged)
        try:
            found = read_contents(Storage.at(folder), "5.zip")
        except CheckpointInvalid:
            return
    assert found.families == {2: "total"}


def commit(batch: int, state_id: str | None = None) -> Commit:
    return Commit(batch, 0, {"0": [[state_id]]} if state_id else {})


@pytest.fixture
def changelog_file(put: Put, compress: Any, encode_changelog: Any) -> Callable[..., Storage]:
    def make(stem: str, *lineage: tuple[int, str]) -> Storage:
        items = [{"version": version, "checkpointUniqueId": state_id} for version, state_id in lineage]
        content = encode_changelog([], items if "_" in stem else None)
        return put(f"{FOLDER}/{stem}.changelog", compress(content))

    return make


MakeChangelog = Callable[..., Storage]


def chained(storage: Storage, target: Commit) -> list[str] | None:
    """The names of the chain's files, without their folder."""
    found = newest_versions(storage, target, 0, 0)
    if found is None:
        return None
    snapshot, changelogs = found
    names = [f"{state_stem(snapshot, 0, 0)}.zip"] if snapshot else []
    return [name.removeprefix(f"{FOLDER}/") for name in [*names, *(changelog_name(each, 0, 0) for each in changelogs)]]


def test_the_newest_snapshot_of_the_lineage_counts_and_the_changelogs_after_it(
    put: Put, changelog_file: MakeChangelog
) -> None:
    for stem in ("2_b.zip", "3_c.zip", "4_other.zip", "6_later.zip"):
        put(f"{FOLDER}/{stem}", b"")
    changelog_file("3_c", (2, "b"))
    changelog_file("4_d", (2, "b"), (3, "c"))
    storage = changelog_file("5_e", (2, "b"), (3, "c"), (4, "d"))
    assert chained(storage, commit(4, "e")) == ["3_c.zip", "4_d.changelog", "5_e.changelog"]
    assert chained(storage, commit(2, "c")) == ["3_c.zip"]


def test_a_changelog_missing_after_the_snapshot_breaks_the_chain(put: Put, changelog_file: MakeChangelog) -> None:
    put(f"{FOLDER}/2_b.zip", b"")
    storage = changelog_file("4_d", (2, "b"), (3, "c"))
    assert chained(storage, commit(3, "d")) is None
    assert chained(storage, commit(4, "e")) is None


def test_before_the_first_snapshot_all_changelogs_are_the_state(changelog_file: MakeChangelog) -> None:
    changelog_file("1_a")
    storage = changelog_file("2_b", (1, "a"))
    assert chained(storage, commit(1, "b")) == ["1_a.changelog", "2_b.changelog"]


def test_a_lineage_that_begins_with_a_snapshot_that_is_gone_is_no_way(changelog_file: MakeChangelog) -> None:
    changelog_file("3_c", (2, "b"))
    storage = changelog_file("4_d", (2, "b"), (3, "c"))
    assert chained(storage, commit(3, "d")) is None


def test_without_ids_the_numbers_count(put: Put, changelog_file: MakeChangelog) -> None:
    for version in (2, 3, 4, 5, 6):
        changelog_file(str(version))
    put(f"{FOLDER}/2.zip", b"")
    storage = put(f"{FOLDER}/6.zip", b"")
    assert chained(storage, commit(4)) == ["2.zip", "3.changelog", "4.changelog", "5.changelog"]
    assert chained(storage, commit(5)) == ["6.zip"]
    assert chained(storage, commit(0)) is None


def test_the_files_of_a_chain_are_the_zip_its_tables_and_the_changelogs(tmp_path: Path) -> None:
    storage = store(tmp_path, "5", rows(1))
    (tmp_path / FOLDER / "6.changelog").touch()
    plan = Plan(5, Position.start(), 0, 0, {"spark.sql.streaming.stateStore.providerClass": Provider.ROCKSDB.value})
    chain = newest_chain(Checkpoint(storage), plan, commit(5), 0, 0)
    assert chain is not None
    names = chain.file_names(storage)
    assert names == [f"{FOLDER}/5.zip", f"{FOLDER}/SSTs/{table(storage).name}", f"{FOLDER}/6.changelog"]
    assert all(storage.exists(name) for name in names)
