"""Every command that docs/journal-upkeep.md shows is run, as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.cli.journal import journal

PAGE = (Path(__file__).parents[2] / "docs" / "journal-upkeep.md").read_text()
COMMANDS = re.findall(r"^\$ stateside (.*)$", PAGE, re.MULTILINE)


def test_every_command_of_the_page_works_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.jsonl").write_text('{"entity": "emma", "type": "call", "tags": ["night"]}\n')
    for command in COMMANDS:
        done = CliRunner().invoke(main, shlex.split(command))
        assert done.exit_code == 0, (command, done.output)
    assert Path("calls.parquet").exists()


def test_the_page_shows_every_command() -> None:
    elsewhere = {"create"}  # docs/journal-kafka.md
    assert {command.split()[1] for command in COMMANDS} == set(journal.commands) - elsewhere
