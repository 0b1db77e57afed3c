"""What docs/journal-kafka.md shows is run as it stands there, at a real broker."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.testbed.broker import Broker

pytestmark = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(900)]  # the first one fetches the broker's jars

PAGE = (Path(__file__).parents[2] / "docs" / "journal-kafka.md").read_text()
COMMANDS = re.findall(r"^\$ stateside (.*)$", PAGE, re.MULTILINE)
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def at(broker: Broker, text: str) -> str:
    return text.replace("localhost:9092", broker.address)


def test_every_command_of_the_page_works_one_after_the_other(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.jsonl").write_text('{"entity": "emma", "type": "call", "tags": ["night"]}\n')
    for command in COMMANDS:
        done = CliRunner().invoke(main, shlex.split(at(broker, command)))
        assert done.exit_code == 0, (command, done.output)


def test_the_pages_example_holds(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(at(broker, BLOCKS["kafka"]), "docs/journal-kafka.md", "exec"), {"__name__": "__main__"})
    assert PAGE.count("```python") == len(BLOCKS) == 1
