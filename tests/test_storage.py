"""Storage reads any file system; an atomic write is whole or not there."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from stateside.core.storage import Storage, try_lock, write_atomically


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_bytes(b"b's content")
    (tmp_path / "folder" / "a.gz").write_bytes(b"not really compressed")
    return Storage.at(tmp_path)


def test_a_file_is_read_as_it_is(storage: Storage) -> None:
    assert storage.read("folder/b") == b"b's content"


def test_a_file_is_not_unpacked_because_of_its_name(storage: Storage) -> None:
    assert storage.read("folder/a.gz") == b"not really compressed"


def test_names_are_sorted(storage: Storage) -> None:
    assert storage.names("folder") == ["a.gz", "b"]
    assert storage.names() == ["folder"]


def test_a_folder_that_is_not_there_has_no_names(storage: Storage) -> None:
    assert storage.names("elsewhere") == []


def test_exists_tells_files_and_folders_from_nothing(storage: Storage) -> None:
    assert storage.exists("folder")
    assert storage.exists("folder/b")
    assert not storage.exists("folder/c")


def test_a_lock_that_cannot_be_had_for_an_error_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def fail(handle: int, operation: int) -> None:
        opened.append(handle)
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="No locks"):
        try_lock(tmp_path / "lock")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_missing_file_is_a_file_not_found_error(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("folder/c")
    with pytest.raises(FileNotFoundError):
        storage.modified_us("folder/c")


def test_the_time_of_writing_is_in_microseconds(storage: Storage, tmp_path: Path) -> None:
    os.utime(tmp_path / "folder" / "b", ns=(0, 1_700_000_000_123_456_789))
    assert storage.modified_us("folder/b") == 1_700_000_000_123_456


def test_a_folder_within_reads_the_same_files(storage: Storage) -> None:
    within = storage.within("folder")
    assert within.read("b") == b"b's content"
    assert within.path("b") == storage.path("folder/b")


def test_a_uri_and_a_path_lead_to_the_same_folder(storage: Storage, tmp_path: Path) -> None:
    by_uri = Storage.at(f"file://{tmp_path.resolve()}/")
    assert by_uri.read("folder/b") == b"b's content"
    assert by_uri.path("folder/b") == storage.path("folder/b")


def test_a_relative_path_stays_where_it_pointed_when_the_process_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    storage = Storage.at(".")
    monkeypatch.chdir("/")
    assert storage.read("file") == b"here"


@pytest.mark.parametrize("durable", [True, False])
def test_an_atomic_write_makes_its_folder_and_replaces_the_file(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one", durable=durable)
    write_atomically(path, b"two", durable=durable)
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_an_atomic_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_readers_see_the_old_content_or_the_new_one_and_never_a_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(200)]
    write_atomically(path, contents[0], durable=False)
    stop = threading.Event()

    def write() -> None:
        for content in contents:
            write_atomically(path, content, durable=False)
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = [path.read_bytes()]
    while not stop.is_set():
        seen.append(path.read_bytes())
    writer.join()
    assert set(seen) <= set(contents)
    assert len(set(seen)) > 1


def test_a_file_that_was_brought_stays_when_it_is_deleted_where_it_was(storage: Storage, tmp_path: Path) -> None:
    storage.bring("folder/b", tmp_path / "brought" / "b")
    assert (tmp_path / "brought" / "b").stat().st_ino == (tmp_path / "folder" / "b").stat().st_ino
    (tmp_path / "folder" / "b").unlink()
    assert (tmp_path / "brought" / "b").read_bytes() == b"b's content"
    with pytest.raises(FileNotFoundError):
        storage.bring("folder/b", tmp_path / "brought" / "again")


def test_a_file_that_cannot_be_linked_is_copied(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    storage.bring("folder/b", tmp_path / "brought" / "b")
    assert (tmp_path / "brought" / "b").read_bytes() == b"b's content"
    assert (tmp_path / "brought" / "b").stat().st_ino != (tmp_path / "folder" / "b").stat().st_ino
    with pytest.raises(FileNotFoundError):
        storage.bring("folder/none", tmp_path / "brought" / "none")
