"""The commands on a page of the docs, for tests that run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[list[str]]:
    """The arguments of every `stateside` command that stands on a line of its own."""
    lines = re.findall(r"^(?: {4}|\$ )?stateside (.+)$", (DOCS / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def command(page: str, *words: str, **places: object) -> list[str]:
    """The one command with these words; `places` has other values for words that name the page's own places."""
    (found,) = (each for each in commands(page) if set(words) <= set(each))
    for name, value in places.items():
        at = found.index(f"--{name}") + 1
        found[at] = str(value)
    return found
