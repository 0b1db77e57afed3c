"""The commands of docs/upgrade.md, run in their order on a folder that version 0.1.0 wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.compatibility.test_version_0_1_0 import ARCHIVE
from tests.docs.commands import DOCS
from tests.sizes import in_full

LINE = re.compile(r"^    ((?:stateside|chmod) .+)$", re.MULTILINE)


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.timeout(600)
@in_full("tests/compatibility runs such a folder on in one session")
def test_a_folder_of_0_1_0_is_upgraded_and_every_number_stays(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "billing").rename(tmp_path / "data")
    said = [run(line, tmp_path) for line in LINE.findall((DOCS / "upgrade.md").read_text())]
    verified, before, checked, _, ran, after = said
    assert "Nothing is wrong" in verified
    assert re.search(r"bill\s+continues", checked)
    assert "caught up: bill at" in ran
    assert all("holds" in each and "BROKEN" not in each for each in (before, after))
    assert "137 documents" in before and "137 documents" in after
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0


def run(line: str, folder: Path) -> str:
    words = line.split()
    command = [sys.executable, "-m", *words] if words[0] == "stateside" else words
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400, env=dict(os.environ))
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout + done.stderr
