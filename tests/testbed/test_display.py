"""The display without a terminal: a line at each phase, with how much of it is done."""

from __future__ import annotations

import io

from rich.console import Console

from stateside.testbed.demo_report import Display, DisplayState


def moment(phase: str, share_done: float) -> DisplayState:
    return DisplayState(
        phase=phase,
        share_done=share_done,
        events=3,
        stamp=None,
        lag_events=0,
        open_periods=[],
        sealed_periods=[],
        invoices=0,
        notes=0,
        dead_letters=0,
        duplicates=0,
        requests=0,
        failed=0,
        restarts=0,
        bills=[],
    )


def test_every_phase_is_told_at_once_and_not_again_at_once() -> None:
    console = Console(file=io.StringIO(), width=200)
    with Display(console) as display:
        for share in (0.0, 0.25, 0.5):
            display.show(moment("months pass", share))
        display.show(moment("asking for every bill", 0.25))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["months pass", "asking for every bill 25%"]
