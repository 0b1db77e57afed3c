"""What small objects promise, whatever they are stored on. A storage joins in three lines, at the end of this file.

Leases, epochs and pointers rely on these promises alone.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from stateside.core.storage import LocalObjects, SmallObjects
from tests.sizes import not_in_fast, sized
from tests.waiting import wait_until

THREADS = 4
SWAPS = sized(4, 250)


def increment(objects: SmallObjects, name: str) -> None:
    """Add one to the number in an object, again and again until nobody else did meanwhile."""
    while True:
        found = objects.read(name)
        version, number = (None, 0) if found is None else (found.version, int(found.content))
        if objects.compare_and_swap(name, version, b"%d" % (number + 1)):
            return


class SmallObjectsContract(ABC):
    """The suite. A test sees fresh objects, in the folders `a` and `b`."""

    @abstractmethod
    def open(self, folder: Path) -> SmallObjects:
        """Open the objects, as another process would; `folder` belongs to this test alone."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> SmallObjects:
        return self.open(tmp_path)

    def test_an_absent_object_is_none_and_none_is_listed(self, objects: SmallObjects) -> None:
        assert objects.read("a/1") is None
        assert objects.names("a") == []

    def test_an_object_is_created_once(self, objects: SmallObjects) -> None:
        assert objects.compare_and_swap("a/1", None, b"first")
        assert not objects.compare_and_swap("a/1", None, b"second")
        found = objects.read("a/1")
        assert found is not None and found.content == b"first"

    def test_an_object_is_swapped_from_the_version_that_was_read_and_from_no_other(self, objects: SmallObjects) -> None:
        assert not objects.compare_and_swap("a/1", "0" * 64, b"of an absent one")
        objects.compare_and_swap("a/1", None, b"first")
        first = objects.read("a/1")
        assert first is not None and objects.compare_and_swap("a/1", first.version, b"second")
        second = objects.read("a/1")
        assert second is not None and second.version != first.version
        assert not objects.compare_and_swap("a/1", first.version, b"third")
        assert objects.read("a/1") == second

    def test_another_process_sees_a_swap_at_once(self, objects: SmallObjects, tmp_path: Path) -> None:
        objects.compare_and_swap("a/1", None, b"first")
        other = self.open(tmp_path)
        found = other.read("a/1")
        assert found is not None and other.compare_and_swap("a/1", found.version, b"second")
        assert not objects.compare_and_swap("a/1", found.version, b"late")

    def test_of_many_who_create_an_object_at_the_same_time_one_does(self, tmp_path: Path) -> None:
        self.open(tmp_path)
        together = Barrier(THREADS)

        def create(name: str) -> list[int]:
            objects, won = self.open(tmp_path), []
            for number in range(SWAPS):
                together.wait()
                if objects.compare_and_swap(f"a/{number}", None, name.encode()):
                    won.append(number)
            return won

        with ThreadPoolExecutor(THREADS) as pool:
            won = [number for each in pool.map(create, "abcd") for number in each]
        assert sorted(won) == list(range(SWAPS))

    def test_no_swap_is_lost_among_many_at_the_same_time(self, tmp_path: Path) -> None:
        objects = self.open(tmp_path)

        def count(_: int) -> None:
            own = self.open(tmp_path)
            for _ in range(SWAPS):
                increment(own, "a/count")

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(count, range(THREADS)))
        found = objects.read("a/count")
        assert found is not None and int(found.content) == THREADS * SWAPS

    def test_a_reader_sees_whole_objects_only(self, objects: SmallObjects, tmp_path: Path) -> None:
        contents = {bytes([letter]) * 100_000 for letter in b"xyz"}
        objects.replace("a/1", min(contents))

        def write(_: int) -> None:
            for content in sorted(contents) * SWAPS:
                objects.replace("a/1", content, durable=False)

        with ThreadPoolExecutor(1) as pool:
            writing, reader = pool.submit(write, 0), self.open(tmp_path)
            while not writing.done():
                found = reader.read("a/1")
                assert found is not None and found.content in contents
            writing.result()

    def test_objects_are_listed_by_folder_and_gone_when_deleted(self, objects: SmallObjects) -> None:
        for name in ("a/1", "a/2", "b/3"):
            objects.compare_and_swap(name, None, name.encode())
        assert sorted(objects.names("a")) == ["1", "2"]
        objects.delete("a/1")
        objects.delete("a/1")
        assert (objects.names("a"), objects.read("a/1")) == (["2"], None)
        assert objects.compare_and_swap("a/1", None, b"again")


class TestLocalObjectsWithoutHardLinks(SmallObjectsContract):
    @pytest.fixture(autouse=True)
    def without_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Path, target: Path) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)

    def open(self, folder: Path) -> SmallObjects:
        for name in "ab":
            (folder / name).mkdir(exist_ok=True)
        return LocalObjects(folder)


SWAPPER = """
import sys
from pathlib import Path
from stateside.core.storage import LocalObjects
objects = LocalObjects(Path(sys.argv[1]))
print("swaps", flush=True)
while True:
    found = objects.read("a/count")
    assert objects.compare_and_swap("a/count", found.version, b"%d" % (int(found.content) + 1))
"""


class TestLocalObjects(SmallObjectsContract):
    def open(self, folder: Path) -> SmallObjects:
        for name in "ab":
            (folder / name).mkdir(exist_ok=True)
        return LocalObjects(folder)

    def test_a_folder_that_is_away_is_an_error_and_is_not_made_again(self, tmp_path: Path) -> None:
        away = LocalObjects(tmp_path / "away")
        with pytest.raises(OSError):
            away.names("a")
        with pytest.raises(OSError):
            away.compare_and_swap("a/1", None, b"")
        with pytest.raises(OSError):
            away.replace("a/1", b"")
        assert not (tmp_path / "away").exists()

    @not_in_fast("whole processes")
    def test_a_process_killed_in_a_swap_leaves_a_whole_object_that_others_swap_on(self, tmp_path: Path) -> None:
        objects = self.open(tmp_path)
        increment(objects, "a/count")
        for _ in range(sized(2, 50)):
            with subprocess.Popen([sys.executable, "-c", SWAPPER, str(tmp_path)], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None and process.stdout.readline() == b"swaps\n"
                before = objects.read("a/count")
                wait_until(lambda before=before: objects.read("a/count") != before)  # type: ignore[misc]
                process.send_signal(signal.SIGKILL)
            found = objects.read("a/count")
            assert found is not None
            increment(objects, "a/count")
            after = objects.read("a/count")
            assert after is not None and int(after.content) == int(found.content) + 1
