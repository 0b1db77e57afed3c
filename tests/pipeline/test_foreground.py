"""What a run tells people on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from stateside.checkpoint.heartbeat import Heartbeat
from stateside.pipeline.foreground import LiveTable


def test_a_reason_is_shown_as_it_is_whatever_brackets_it_has() -> None:
    console = Console(file=io.StringIO(), width=200)
    table = LiveTable(console, "shop in [/shop]")
    table.tell("total", Heartbeat(0, None, "holding", why="no route to [/127.0.0.1:9092], key=[entity]"), [])
    console.print(table._table())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no route to [/127.0.0.1:9092], key=[entity]" in shown
    assert "shop in [/shop]" in shown
