"""The list of pinned facts must not fall behind the tests."""

import re
from pathlib import Path


def test_the_readme_lists_every_pinned_fact_once_and_no_other() -> None:
    folder = Path(__file__).parent
    tests = [
        name
        for file in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
        if file != Path(__file__)
    ]
    listed = re.findall(r"`(test_\w+)` \|$", (folder / "README.md").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(tests)
