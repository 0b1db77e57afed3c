"""docs/cluster.md: its commands have the options that it gives them. `tests/testbed` and `tests/e2e` run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
COMMANDS = re.findall(r"^    stateside (.+)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_options_that_it_is_given(command: str) -> None:
    arguments = shlex.split(command)
    told = CliRunner().invoke(main, [*arguments, "--help"])
    assert told.exit_code == 0, told.output
    given = {argument for argument in arguments if argument.startswith("--")}
    assert given <= set(re.findall(r"--[a-z-]+", told.output))


def test_its_commands_are_found() -> None:
    assert len(COMMANDS) == 5
