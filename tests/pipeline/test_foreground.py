"""What a run tells people on a terminal."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from stateside.pipeline.foreground import (
    PAUSE_US,
    SLOW_MS,
    LinesForMachines,
    LinesForPeople,
    LiveTable,
    Teller,
    summary,
)
from stateside.views.heartbeat import Heartbeat


def test_a_reason_is_shown_as_it_is_whatever_brackets_it_has() -> None:
    console = Console(file=io.StringIO(), width=200)
    table = LiveTable(console, "shop in [/shop]")
    table.tell("total", Heartbeat(0, None, "holding", why="no route to [/127.0.0.1:9092], key=[entity]"), [])
    console.print(table._table())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no route to [/127.0.0.1:9092], key=[entity]" in shown
    assert "shop in [/shop]" in shown


def progress(batch: int, *, ms: int = 5, late: int = 0, dead_letters: int = 0) -> dict[str, Any]:
    return {
        **{
            "batchId": batch,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "numInputRows": 1_000,
            "deadLetters": dead_letters,
        },
        **{"durationMs": {"triggerExecution": ms}, "stateOperators": [{"numRowsDroppedByWatermark": late}]},
    }


def told(teller: Teller, output: io.StringIO, state: Any, *finished: dict[str, Any], time_us: int = 0) -> list[str]:
    before = len(output.getvalue())
    teller.tell("total", Heartbeat(time_us, None, state), list(finished))
    return output.getvalue()[before:].splitlines()


def test_people_are_told_of_slow_batches_late_rows_and_dead_letters() -> None:
    lines = LinesForPeople(output := io.StringIO())
    assert told(lines, output, "running", progress(0)) == ["total: running"]
    assert told(lines, output, "idle", progress(1, ms=SLOW_MS)) == ["total: batch 1 was slow: 10.0 s for 1,000 events"]
    assert told(lines, output, "idle", progress(2, late=2), progress(3, late=1, dead_letters=4)) == [
        "total: 3 rows came too late, after the watermark: the view does not have them",
        "total: 4 dead letters: `stateside dead-letters --dir …` lists them with the reasons",
    ]


def test_people_are_told_of_what_got_lost_now_and_then_and_never_less_than_all() -> None:
    lines = LinesForPeople(output := io.StringIO())
    told(lines, output, "running", progress(0, late=1), time_us=1)
    assert told(lines, output, "running", progress(1, late=1), time_us=2) == []
    assert told(lines, output, "running", progress(2, late=1), time_us=PAUSE_US) == []
    assert told(lines, output, "idle", time_us=1 + PAUSE_US)[0].startswith("total: 2 rows came too late")
    assert told(lines, output, "running", progress(3, dead_letters=1), time_us=2 + PAUSE_US) == []
    assert told(lines, output, "stopped", time_us=3 + PAUSE_US)[1].startswith("total: 1 dead letter:")


def test_machines_are_told_of_each_batch_with_what_got_lost_and_of_idling_once() -> None:
    lines = LinesForMachines(output := io.StringIO())
    assert [json.loads(line)["state"] for line in told(lines, output, "running")] == ["running"]
    batch, idle = map(json.loads, told(lines, output, "idle", progress(0, late=2, dead_letters=3)))
    assert (batch["late"], batch["dead_letters"], idle["state"]) == (2, 3, "idle")
    for state in ("running", "idle", "running", "running", "idle"):
        assert told(lines, output, state) == []
    (line,) = told(lines, output, "running", progress(1))
    assert json.loads(line)["batch"] == 1
    assert [json.loads(line)["state"] for line in told(lines, output, "idle")] == ["idle"]
    assert [json.loads(line)["state"] for line in told(lines, output, "holding")] == ["holding"]
    assert [json.loads(line)["state"] for line in told(lines, output, "running")] == ["running"]


def test_rows_that_nobody_counts_are_null_to_machines_and_not_0() -> None:
    """RocksDB's store reports 0 where `trackTotalNumberOfRows` is off, as it is in our sessions."""
    rocksdb = {"numRowsTotal": 0, "customMetrics": {"rocksdbPutCount": 3}}
    assert summary(progress(0) | {"stateOperators": [rocksdb, {"numRowsTotal": 5}]})["state_rows"] is None
    assert summary(progress(0) | {"stateOperators": [rocksdb | {"numRowsTotal": 4}]})["state_rows"] == 4
    assert summary(progress(0) | {"stateOperators": [{"numRowsTotal": 0}]})["state_rows"] == 0


def test_the_table_has_what_got_lost_since_the_start() -> None:
    console = Console(file=io.StringIO(), width=200)
    table = LiveTable(console, "shop")
    table.tell("total", Heartbeat(0, None, "idle"), [progress(0, late=2, dead_letters=3)])
    table.tell("total", Heartbeat(0, None, "idle"), [progress(1, late=20, dead_letters=30)])
    console.print(table._table())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert " 22 " in shown and " 33 " in shown
