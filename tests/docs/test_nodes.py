"""What docs/nodes.md shows is run, as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "nodes.md").read_text()
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize("name", ["nodes", "moving"])
def test_the_pages_example_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[name], f"docs/nodes.md, {name}", "exec"), {})


def test_every_example_of_the_page_is_run() -> None:
    assert list(BLOCKS) == ["nodes", "moving"]
    assert PAGE.count("```python") == 2
