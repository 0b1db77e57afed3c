"""What docs/entities.md shows is run, as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "entities.md").read_text()
BLOCKS = re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_example_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((name, code),) = BLOCKS
    exec(compile(code, f"docs/entities.md, {name}", "exec"), {"__name__": "__main__"})
    assert PAGE.count("```python") == 1
