"""The browser for the tests of the pages: found, installed, or said what to do; and not needed by `make test-fast`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.setup.test_setup import fresh_copy, tool

browser = tool("browser")
MAKE = shutil.which("make") or "make"


def chromium(folder: Path, name: str = "chromium") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_one_on_the_path_is_taken_and_one_that_is_named_before_it(tmp_path: Path) -> None:
    found = chromium(tmp_path / "bin", "google-chrome")
    assert browser.chromium({"PATH": str(tmp_path / "bin")}) == str(found)
    assert browser.chromium({"PATH": str(tmp_path / "bin"), "STATESIDE_CHROMIUM": "/their/own"}) == "/their/own"
    assert browser.chromium({"PATH": str(tmp_path)}) is None


def test_where_none_is_and_none_can_be_installed_it_says_what_to_do_and_looks_again_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("STATESIDE_CHROMIUM", raising=False)
    stamp = tmp_path / "stamp"
    assert browser.main(stamp) == 0, "everything else is tested all the same"
    told = capsys.readouterr().out
    assert "apt install chromium" in told
    assert "STATESIDE_CHROMIUM" in told
    assert not stamp.exists()
    chromium(tmp_path / "bin")
    assert browser.main(stamp) == 0
    assert stamp.exists()


def test_an_installation_that_fails_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apt = chromium(tmp_path / "bin", "apt-get")
    apt.write_text("#!/bin/sh\necho 'E: nobody is reached' >&2\nexit 100\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.delenv("STATESIDE_CHROMIUM", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert browser.main(tmp_path / "stamp") == 0
    assert "could not be installed (E: nobody is reached): install one" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "needs"), [("test", True), ("test-fast", False), ("demo", False), ("setup", False)])
def test_only_what_tests_the_pages_looks_for_one(tmp_path: Path, target: str, needs: bool) -> None:
    folder = fresh_copy(tmp_path)
    command = [MAKE, "-n", target, f"PYTHON={sys.executable}"]
    would_run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert ("tools/browser.py" in would_run) == needs
    assert ("not browser" in would_run) == (target == "test-fast")
