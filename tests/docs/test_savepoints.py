"""The commands of the page on savepoints do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from stateside.cli import main
from stateside.core.layout import Layout
from tests.billing.written_bills import WrittenBills, plan

PAGE = (Path(__file__).parents[2] / "docs" / "savepoints.md").read_text()


def test_the_commands_take_list_and_restore_one(layout: Layout) -> None:
    bills = WrittenBills.begin(layout, plan())
    bills.commit({("emma", 1_769_900_400_000_000, "call", "basic@1"): (60, 1)}, 1)
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    named = ""
    for line in block[1].splitlines():
        words = [str(layout.root) if word == "data" else word for word in shlex.split(line, comments=True)[1:]]
        words = [named if word.startswith("batch-") else word for word in words]
        done = CliRunner().invoke(main, words, input="y\n")
        assert done.exit_code == 0, done.output
        named = named or done.output.split()[0]
    assert "batch-0-" in named
    assert len(list(layout.view("bill").root.glob("checkpoint.before-*"))) == 1
