"""What changed from snapshot to snapshot: found in the tables that only one of the two has, whatever RocksDB merged."""

import json
import random
import zipfile
from pathlib import Path

import pytest
from rocksdict import BlockBasedOptions, Checkpoint, DBCompressionType, Options, Rdict

from stateside.core.errors import CheckpointGap
from stateside.core.storage import Storage
from stateside.spark_state import rocksdb_snapshot
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.rocksdb_snapshot import read_version_changes

VERSIONS = 12
KEYS = 300


class Store:
    """A store that writes every version as Spark does without changelogs: a zip, and tables that are shared."""

    def __init__(self, folder: Path, **mapping: int) -> None:
        self._folder, self._mapping = folder, mapping or {"default": 0}
        options = Options(raw_mode=True)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_zero_file_num_compaction_trigger(3)
        options.set_max_bytes_for_level_base(20_000)
        options.set_target_file_size_base(5_000)
        table = BlockBasedOptions()
        table.set_format_version(5)
        options.set_block_based_table_factory(table)
        self.database = Rdict(str(folder / "database"), options)
        self._version = 0

    def commit(self) -> Commit:
        self.database.flush()
        self._version += 1
        copy, state = self._folder / f"copy-{self._version}", self._folder / "checkpoint" / "state" / "0" / "0"
        Checkpoint(self.database).create_checkpoint(str(copy))
        (state / "SSTs").mkdir(parents=True, exist_ok=True)
        tables = sorted(copy.glob("*.sst"))
        entries = [
            {"localFileName": t.name, "dfsSstFileName": f"x-{t.name}", "sizeBytes": t.stat().st_size} for t in tables
        ]
        for table in tables:
            (state / "SSTs" / f"x-{table.name}").write_bytes(table.read_bytes())
        with zipfile.ZipFile(state / f"{self._version}.zip", "w") as archive:
            archive.writestr(
                "metadata", "v1\n" + json.dumps({"sstFiles": entries, "columnFamilyMapping": self._mapping})
            )
            for file in copy.iterdir():
                if file.suffix != ".sst":
                    archive.write(file, file.name)
        return Commit(self._version - 1, 0, {})

    @property
    def storage(self) -> Storage:
        return Storage.at(self._folder / "checkpoint")


@pytest.mark.parametrize("seed", range(4))
def test_changes_from_version_to_version_lead_to_the_rows_that_the_store_has(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_snapshot, "KEYS_AT_ONCE", 7)
    draw, store = random.Random(seed), Store(tmp_path)
    model: dict[bytes, bytes] = {}
    rows: dict[bytes, bytes] = {}
    before, most = None, 0
    for version in range(VERSIONS):
        for _ in range(draw.choice([0, 5, 100])):
            key, value = b"\x00key-%d" % draw.randrange(KEYS), b"\x00" + bytes(draw.randrange(60))
            if draw.random() < 0.4:
                model.pop(key, None)
                store.database.delete(key)
            else:
                model[key] = value
                store.database.put(key, value)
        if draw.random() < 0.2:
            store.database.compact_range(None, None)
        commit = store.commit()
        changes = read_version_changes(store.storage, before, commit, 0, 0, tmp_path / "scratch").changes
        for change in changes:
            if change.value is None:
                rows.pop(b"\x00" + change.key, None)
            else:
                rows[b"\x00" + change.key] = b"\x00" + change.value
        assert rows == model, version
        before, most = commit, max(most, len(model))
    assert most > 50
    assert not (tmp_path / "scratch").exists()


def test_only_the_tables_that_are_new_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(1_000):
        store.database.put(b"\x00%06d" % number, b"\x00")
    before = store.commit()
    store.database.put(b"\x00new", b"\x00value")
    store.database.delete(b"\x00000007")
    after = store.commit()
    changes = read_version_changes(store.storage, before, after, 0, 0, tmp_path / "scratch").changes
    assert [(change.key, change.value) for change in changes] == [(b"000007", None), (b"new", b"value")]


def test_keys_of_column_families_have_their_ids(tmp_path: Path) -> None:
    store = Store(tmp_path, default=1, total=2)
    store.database.put(b"\x02\x00\x00key", b"\x00value")
    commit = store.commit()
    [change] = read_version_changes(store.storage, None, commit, 0, 0, tmp_path / "scratch").changes
    assert (change.family, change.key, change.value) == (2, b"\x00key", b"\x00value")


@pytest.mark.parametrize("gone", ["1.zip", "2.zip", "SSTs"])
def test_without_a_file_the_difference_cannot_be_told_and_the_state_is_to_be_loaded(tmp_path: Path, gone: str) -> None:
    store = Store(tmp_path)
    store.database.put(b"\x00a", b"\x00")
    before = store.commit()
    store.database.put(b"\x00b", b"\x00")
    after = store.commit()
    path = tmp_path / "checkpoint" / "state" / "0" / "0" / gone
    path.rename(path.with_name("away"))
    with pytest.raises(CheckpointGap, match=r"What batch . changed cannot be told: .* is gone"):
        read_version_changes(store.storage, before, after, 0, 0, tmp_path / "scratch")


def test_deletions_of_ranges_cannot_be_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.database.put(b"\x00a", b"\x00")
    before = store.commit()
    store.database.delete_range(b"\x00", b"\x01")
    after = store.commit()
    with pytest.raises(CheckpointGap, match="deletions of ranges"):
        read_version_changes(store.storage, before, after, 0, 0, tmp_path / "scratch")
