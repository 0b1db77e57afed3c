"""What docs/nodes.md shows is run, as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "nodes.md").read_text()
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize("name", ["nodes", "moving"])
def test_the_pages_example_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[name], f"docs/nodes.md, {name}", "exec"), {})


def test_every_command_of_the_page_works_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, entity in (("hamburg", "emma"), ("bremen", "ben")):
        Path(f"{name}.jsonl").write_text(f'{{"entity": "{entity}", "type": "order"}}\n')
    commands = re.findall(r"^\$ stateside (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        done = CliRunner().invoke(main, shlex.split(command))
        assert done.exit_code == 0, (command, done.output)


def test_every_example_of_the_page_is_run() -> None:
    assert list(BLOCKS) == ["nodes", "moving"]
    assert PAGE.count("```python") == 2
