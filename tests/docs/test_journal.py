"""What docs/journal.md shows is run, as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()
BLOCKS = re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", ["append", "upcast", "memory"])
def test_the_pages_example_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(dict(BLOCKS)[name], f"docs/journal.md, {name}", "exec"), {})


def test_every_example_of_the_page_is_run() -> None:
    assert [name for name, _ in BLOCKS] == ["append", "upcast", "memory"]
    assert PAGE.count("```python") == 3
