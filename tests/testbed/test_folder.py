"""The demo's folder: claimed, refused, kept or removed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from stateside.core.errors import PipelineFailed, RequestInvalid
from stateside.testbed.run_folder import StageFolder

SETTINGS = {"customers": 3}


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_new_folder_is_made_and_a_demo_of_the_same_settings_may_go_on_in_it(tmp_path: Path, console: Console) -> None:
    for _ in range(2):
        with StageFolder(tmp_path / "new" / "one", console) as folder:
            folder.claim(SETTINGS)
    assert [path.name for path in (tmp_path / "new" / "one").iterdir()] == ["demo.json"]


def test_other_settings_are_refused(tmp_path: Path, console: Console) -> None:
    with StageFolder(tmp_path, console) as folder:
        folder.claim(SETTINGS)
        with pytest.raises(RequestInvalid, match=r"This folder has a demo with \{'customers': 3\}"):
            folder.claim({"customers": 4})


@pytest.mark.parametrize("sign", ["journal", "views", "tables"])
def test_the_folder_of_another_application_is_refused_and_left_as_it_is(
    tmp_path: Path, console: Console, sign: str
) -> None:
    (tmp_path / sign).mkdir()
    with StageFolder(tmp_path, console) as folder, pytest.raises(RequestInvalid, match=f"it has {sign}, but no demo"):
        folder.claim(SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == [sign]


@pytest.mark.parametrize("content", [b"", b'{"customers"', b"\xff\xfe"])
def test_damaged_settings_are_refused(tmp_path: Path, console: Console, content: bytes) -> None:
    (tmp_path / "demo.json").write_bytes(content)
    with StageFolder(tmp_path, console) as folder, pytest.raises(RequestInvalid, match="settings cannot be read"):
        folder.claim(SETTINGS)


def test_a_temporary_folder_is_removed_at_the_end(temporary: Path, console: Console) -> None:
    with StageFolder(None, console) as folder:
        folder.claim(SETTINGS)
        assert folder.root.parent == temporary
    assert list(temporary.iterdir()) == []
    assert said(console) == ""


def test_a_temporary_folder_is_removed_after_ctrl_c(temporary: Path, console: Console) -> None:
    with pytest.raises(KeyboardInterrupt), StageFolder(None, console):
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_a_temporary_folder_is_kept_after_an_error_and_named(temporary: Path, console: Console) -> None:
    with pytest.raises(PipelineFailed), StageFolder(None, console) as folder:
        raise PipelineFailed("It broke")
    assert list(temporary.iterdir()) == [folder.root]
    assert str(folder.root) in said(console)


def test_a_temporary_folder_is_kept_where_the_sums_are_off(temporary: Path, console: Console) -> None:
    with StageFolder(None, console) as folder:
        folder.kept = True
    assert list(temporary.iterdir()) == [folder.root]
    assert str(folder.root) in said(console)
