"""Small typed JSON files: one step to write, one error for damage, versions, private files."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from stateside.core.errors import CheckpointInvalid, PositionInvalid, SetupError
from stateside.core.json_file import JsonFile


@dataclass(frozen=True)
class Mark:
    name: str
    count: int = 0


MARK = JsonFile("The mark", lambda document: Mark(**document), damage=CheckpointInvalid, next_step="Delete it")
VERSIONED: JsonFile[Mark] = JsonFile("The mark", lambda document: Mark(**document), versions=(1, 2))
SECRET: JsonFile[str] = JsonFile("The key", lambda d: str(d["key"]), lambda key: {"key": key}, private=True)


def test_a_written_value_is_read_again(tmp_path: Path) -> None:
    MARK.write(tmp_path / "new" / "mark.json", Mark("a", 3))
    assert MARK.read(tmp_path / "new" / "mark.json") == Mark("a", 3)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mark.json"], "no temporary file is left"


def test_a_missing_file_has_no_value_unless_it_is_needed(tmp_path: Path) -> None:
    assert MARK.read(tmp_path / "none") is None
    assert MARK.read_if_valid(tmp_path / "none") is None
    with pytest.raises(CheckpointInvalid, match="The mark cannot be read: FileNotFoundError"):
        MARK.load(tmp_path / "none")


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '"a"', '{"name": "a", "other": 1}', "{}", "\xff"])
def test_a_damaged_file_is_named_with_the_next_step(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mark.json"
    path.write_text(content, "latin-1")
    with pytest.raises(CheckpointInvalid, match="The mark cannot be read: ") as damaged:
        MARK.read(path)
    assert damaged.value.where == str(path)
    assert damaged.value.next_step == "Delete it"
    assert MARK.read_if_valid(path) is None


def test_an_error_of_our_own_in_the_content_is_damage_too(tmp_path: Path) -> None:
    def parse(document: object) -> str:
        raise PositionInvalid(f"{document} is no position")

    file = JsonFile("The reach", parse, damage=CheckpointInvalid)
    (tmp_path / "reach.json").write_text("7")
    with pytest.raises(CheckpointInvalid, match="The reach cannot be read: 7 is no position"):
        file.read(tmp_path / "reach.json")


def test_the_last_version_is_written_and_all_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    VERSIONED.write(path, Mark("a"))
    assert path.read_text() == '{"version": 2, "name": "a", "count": 0}'
    path.write_text('{"version": 1, "name": "b"}')
    assert VERSIONED.read(path) == Mark("b")
    path.write_text('{"version": 3, "name": "b"}')
    with pytest.raises(VERSIONED.damage, match="it has version 3, this Stateside writes 2"):
        VERSIONED.read(path)


def test_a_private_file_is_for_its_owner_and_errors_do_not_quote_it(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    SECRET.write(path, "s3cret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text('{"s3cret"')
    with pytest.raises(SECRET.damage) as damaged:
        SECRET.read(path)
    assert "s3cret" not in str(damaged.value)
    assert damaged.value.__cause__ is None
    path.chmod(0o640)
    with pytest.raises(SetupError, match="others than its owner"):
        SECRET.read(path)
