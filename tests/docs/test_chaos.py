"""The page about chaos, and the crash matrix: they have every scenario, and the commands as they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from stateside.cli import main
from stateside.testbed.faults import AWAY_S, SEALING_S_MAX
from stateside.testbed.scenarios import AT_RANDOM, NAMES, RANDOM_FAULTS, SCENARIOS
from stateside.testbed.witness import DEADLINE_S, FRESH_MS_MAX

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "chaos.md").read_text()
MATRIX = (DOCS / "crash-matrix.md").read_text()


def test_the_page_has_every_scenario_and_no_other() -> None:
    table = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z]+-[a-z-]+)`", table)) == set(NAMES)


def test_the_page_has_the_times_as_they_are() -> None:
    assert f"after {AWAY_S:g} s" in PAGE
    assert f"within {DEADLINE_S:g} s" in PAGE
    assert f"than {FRESH_MS_MAX / 1_000:g} s" in PAGE
    assert f"none came within {SEALING_S_MAX:g} s" in PAGE
    assert RANDOM_FAULTS == 4 and "four of these" in PAGE


def test_the_pages_commands_are_understood(tmp_path: Path) -> None:
    """All but the running, which `tests/e2e/test_chaos.py` does: the folder of an earlier run ends it before."""
    commands = re.findall(r"^    stateside (chaos .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 4
    for name in NAMES:
        (tmp_path / name).mkdir()
    for command in commands:
        arguments = shlex.split(command.replace("report.json", str(tmp_path / "report.json")))
        done = CliRunner().invoke(main, [*arguments, "--dir", str(tmp_path)])
        assert "This folder has the outcome of an earlier run" in done.output, command


def test_the_matrix_has_every_scenario_and_nothing_wrong_in_it() -> None:
    sizes = MATRIX.partition("| scenario |")[2].splitlines()[2:]
    measured = {line.split()[1] for line in sizes}
    assert measured >= set(SCENARIOS)
    assert measured <= {*SCENARIOS, AT_RANDOM}
    assert "WRONG" not in MATRIX
