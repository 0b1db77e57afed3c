"""docs/cluster.md: its commands have the options that it gives them, and are run.

`stateside run` and `stateside dev cluster` in tests/testbed/test_cluster.py, the demo in tests/e2e/test_demo.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.layout import Layout
from stateside.journal.backends.kafka.topic_folder import topic_of
from stateside.testbed.broker import Broker
from tests.docs.commands import DOCS, command, commands
from tests.sizes import in_full

COMMANDS = [*commands("cluster.md"), *commands("standby.md")]  # of the latter, tests/e2e/test_upgrade.py runs both


@pytest.mark.parametrize("shown", COMMANDS, ids=" ".join)
def test_every_command_has_the_options_that_it_is_given(shown: list[str]) -> None:
    told = CliRunner().invoke(main, [*shown, "--help"])
    assert told.exit_code == 0, told.output
    given = {argument for argument in shown if argument.startswith("--")}
    assert given <= set(re.findall(r"--[a-z-]+", told.output))


def test_its_commands_are_found() -> None:
    assert len(COMMANDS) == 5 + 2


@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(900)  # the first one fetches the broker's jars
def test_a_folders_journal_is_the_topic_that_is_created(broker: Broker, layout: Layout) -> None:
    shown = command("cluster.md", "journal", "create", dir=layout.root)
    shown = [word.replace("kafka:9092", broker.address) for word in shown]
    for _ in range(2):  # the page: it may be repeated
        done = CliRunner().invoke(main, shown)
        assert done.exit_code == 0, done.output
    assert topic_of(layout.journal).name == "billing"


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(600)
@in_full("tests/testbed/test_cluster.py and tests/e2e/test_chaos.py kill the same parts")
def test_the_pages_example_kills_and_restarts_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(
        r"<!-- test: cluster -->\n```python\n(.*?)```", (DOCS / "cluster.md").read_text(), re.DOTALL
    )
    exec(compile(example, "docs/cluster.md", "exec"), {"__name__": "__main__"})
