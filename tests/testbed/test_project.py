"""`stateside new`: what it makes works as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateside.core.errors import RequestInvalid
from stateside.ops.project import make_project
from tests.sizes import in_full


@pytest.mark.spark
@pytest.mark.e2e
@in_full("the tutorial's test runs it")
def test_the_generated_test_passes_as_generated(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "stateside", "new", "shop"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert made.stdout == "Made shop/. Its README.md says how to test, run and ask it.\n"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path / "shop", env=environment, capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


def test_every_file_carries_the_project_s_name(tmp_path: Path) -> None:
    folder = make_project("web_shop", tmp_path)
    assert {path.name for path in folder.iterdir()} == {
        *(".gitignore", "README.md", "events.jsonl", "pyproject.toml"),
        *("stateside.toml", "test_web_shop.py", "web_shop.py"),
    }
    assert not any(word in path.read_text() for path in folder.iterdir() for word in ("NAME", "VERSION"))


@pytest.mark.parametrize(
    "name", ["", "Shop", "1shop", "my-shop", "../shop", "class", "json", "stateside", "pyspark", "a" * 32]
)
def test_a_name_that_could_not_be_a_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestInvalid, match="cannot be the name of a project"):
        make_project(name, tmp_path)
    assert not any(tmp_path.iterdir())


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(RequestInvalid, match="is there already"):
        make_project("shop", tmp_path)
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["thesis.txt"]
