"""What docs/queries.md shows is run, as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "queries.md").read_text()
BLOCKS = re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_example_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((name, code),) = BLOCKS
    exec(compile(code, f"docs/queries.md, {name}", "exec"), {})
    assert PAGE.count("```python") == 1
