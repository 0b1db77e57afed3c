"""The place that somebody calls a checkpoint: every mistake is told with what lies there and what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateside.core.errors import CheckpointInvalid, RequestInvalid
from stateside.core.storage import Storage
from stateside.spark_state.checkpoint_folder import NAMED_MAX, FoundCheckpoint, examine, located
from tests.written import PACKAGE, WORDS, Written, words


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointInvalid) as error:
        examine(Storage.at(folder))
    assert error.value.next_step
    assert str(folder) in str(error.value.where)
    return str(error.value)


class TestACheckpoint:
    def test_it_is_waited_for_until_its_first_batch_is_finished(self, tmp_path: Path) -> None:
        folder = tmp_path / "words"
        assert examine(Storage.at(folder)) is FoundCheckpoint.NO_FOLDER
        folder.mkdir()
        (folder / ".metadata.tmp").touch()  # as Spark begins to write it
        assert examine(Storage.at(folder)) is FoundCheckpoint.NO_QUERY
        written = Written(folder, WORDS)
        assert examine(Storage.at(folder)) is FoundCheckpoint.NO_BATCH
        written.batch(words(a=1))
        assert examine(Storage.at(folder)) is FoundCheckpoint.STATE

    def test_a_query_without_state_is_told_once_it_has_finished_a_batch(self, tmp_path: Path) -> None:
        written = Written(tmp_path)
        assert examine(Storage.at(tmp_path)) is FoundCheckpoint.NO_BATCH
        written.batch()
        assert "keeps no state" in refused(tmp_path)

    @pytest.mark.parametrize(
        ("conf", "told"),
        [
            ({"providerClass": "com.example.Store"}, "kept by com.example.Store"),
            ({"compression.codec": "lzf"}, "compressed by lzf"),
            ({"encodingFormat": "protobuf"}, "encoded as protobuf"),
            ({"rowChecksum.enabled": "true"}, "carry checksums"),
        ],
    )
    def test_a_state_that_cannot_be_read_is_told(self, tmp_path: Path, conf: dict[str, str], told: str) -> None:
        settings = {f"spark.sql.streaming.stateStore.{name}": value for name, value in conf.items()}
        Written(tmp_path, WORDS, conf=settings).batch(words(a=1))
        assert told in refused(tmp_path)

    @pytest.mark.parametrize("codec", ["zstd", "snappy", "org.apache.spark.io.LZ4CompressionCodec"])
    def test_a_codec_that_can_be_read_is_taken_by_either_of_its_names(self, tmp_path: Path, codec: str) -> None:
        conf = {"spark.sql.streaming.stateStore.compression.codec": codec}
        Written(tmp_path, WORDS, conf=conf).batch(words(a=1))
        assert examine(Storage.at(tmp_path)) is FoundCheckpoint.STATE

    def test_rocksdb_is_a_store_that_can_be_read(self, tmp_path: Path) -> None:
        conf = {"spark.sql.streaming.stateStore.providerClass": f"{PACKAGE}.RocksDBStateStoreProvider"}
        Written(tmp_path, WORDS, conf=conf).batch(words(a=1))
        assert examine(Storage.at(tmp_path)) is FoundCheckpoint.STATE

    def test_an_unknown_version_of_its_files_is_told(self, tmp_path: Path) -> None:
        written = Written(tmp_path, WORDS)
        written.batch(words(a=1))
        written.put("offsets/0", "v9\n{}\n0")
        assert "format 'v9' is not known" in refused(tmp_path)


class TestSomethingElse:
    def test_a_file_is_no_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "words").touch()
        assert "This is a file" in refused(tmp_path / "words")

    def test_a_folder_of_other_things_is_no_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        assert "no checkpoint" in refused(tmp_path)

    def test_an_applications_folder_is_served_in_another_way(self, tmp_path: Path) -> None:
        (tmp_path / "views" / "bill").mkdir(parents=True)
        (tmp_path / "views" / "bill" / "catalogue.json").touch()
        assert f"--dir {tmp_path}" in refused(tmp_path)

    def test_a_folder_above_checkpoints_offers_them(self, tmp_path: Path) -> None:
        Written(tmp_path / "words", WORDS).batch(words(a=1))
        Written(tmp_path / "team" / "orders", WORDS).batch(words(a=1))
        told = refused(tmp_path)
        assert f"Below it there are: {tmp_path / 'words'}, {tmp_path / 'team' / 'orders'}." in told

    def test_of_many_checkpoints_below_it_offers_some(self, tmp_path: Path) -> None:
        for number in range(NAMED_MAX + 2):
            Written(tmp_path / f"q{number}", WORDS).batch(words(a=1))
        assert refused(tmp_path).endswith(f"q{NAMED_MAX - 1}, ….")

    @pytest.mark.parametrize("part", ["state", "state/0", "state/0/0"])
    def test_a_part_of_a_checkpoint_is_told_with_the_whole_one(self, tmp_path: Path, part: str) -> None:
        Written(tmp_path / "words", WORDS).batch(words(a=1))
        assert f"Name the whole one: {tmp_path / 'words'}." in refused(tmp_path / "words" / part)


class TestAddresses:
    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    @pytest.mark.parametrize("end", ["", "/"])
    def test_a_local_place_has_one_name_however_it_is_written(self, tmp_path: Path, prefix: str, end: str) -> None:
        location, storage = located(f"{prefix}{tmp_path}{end}")
        assert (location, storage.root) == (str(tmp_path), str(tmp_path))

    def test_a_relative_path_is_made_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert located("words")[0] == str(tmp_path / "words")

    @pytest.mark.parametrize("address", ["foo://bucket/x", "s3a://bucket/x"])
    def test_an_address_of_an_unknown_kind_is_told_with_those_that_there_are(self, address: str) -> None:
        with pytest.raises(RequestInvalid, match="s3://") as error:
            located(address)
        assert ("for s3a:// write s3://" in str(error.value)) == address.startswith("s3a")

    def test_a_password_is_neither_taken_nor_repeated(self) -> None:
        with pytest.raises(RequestInvalid) as error:
            located("s3://KEY:SECRET@bucket/x")
        assert "SECRET" not in str(error.value)
