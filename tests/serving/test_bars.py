"""The bars that people see while replicas are being loaded."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from stateside.cli.tables import LoadBars
from stateside.replica.bootstrap import LoadProgress


def told(*steps: LoadProgress) -> str:
    shown = StringIO()
    bars = LoadBars(Console(file=shown, force_terminal=True, width=120))
    for step in steps:
        bars(step)
        bars._progress.refresh()
    bars.close()
    return shown.getvalue()


def test_a_bar_tells_the_view_how_far_it_is_and_how_many_rows_there_are() -> None:
    text = told(LoadProgress("bill", 7, 1_000, 0.1), LoadProgress("bill", 7, 25_000, 0.42))
    assert "loading bill" in text
    assert "42%" in text
    assert "25,000 rows" in text


def test_views_have_a_bar_each_and_one_that_is_done_goes() -> None:
    text = told(
        LoadProgress("bill", 7, 1, 0.1), LoadProgress("spending", 9, 1, 0.2), LoadProgress("bill", 7, 2, 1.0),
        LoadProgress("spending", 9, 3, 0.3),
    )  # fmt: skip
    last = text.rsplit("loading spending", 1)[1]
    assert "30%" in last
    assert "bill" not in last
