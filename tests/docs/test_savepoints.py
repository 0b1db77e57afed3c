"""The commands of the page on savepoints do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from stateside.cli import main
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.testing import append
from tests.billing.written_bills import WrittenBills, plan

PAGE = (Path(__file__).parents[2] / "docs" / "savepoints.md").read_text()


def test_the_commands_take_list_verify_restore_roll_back_and_fork(layout: Layout, tmp_path: Path) -> None:
    append(layout, [Event("e-0", "emma", "call", 0, {})])
    bills = WrittenBills.begin(layout, plan())
    bills.commit({("emma", 1_769_900_400_000_000, "call", "basic@1"): (60, 1)}, 1)
    places = {"data": str(layout.root), "spending": "bill", "trial": str(tmp_path / "trial")}
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        words = [places.get(word, word) for word in shlex.split(line, comments=True)[1:]]
        done = CliRunner().invoke(main, words, input="y\n")
        assert done.exit_code == 0, done.output
        places.setdefault("NAME", done.output.split()[0])
    assert "batch-0-" in places["NAME"]
    assert layout.pointers()["bill"].current.number == 1, "restored, then rolled back"  # type: ignore[union-attr]
    assert Layout(tmp_path / "trial").view("bill").checkpoint.exists()
