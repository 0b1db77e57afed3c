"""Inspections of checkpoints and folders: what files show, what is estimated, and what is missing or damaged."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stateside.core.layout import DEAD_LETTERS, Layout
from stateside.inspection.batch_reports import BatchReport, newest_reports
from stateside.inspection.examination import Inspection, ViewInspection, inspect
from stateside.inspection.rules import findings
from stateside.views.heartbeat import Heartbeat
from tests.written import WORDS, Written, words

SECOND_US = 1_000_000
START_US = 1_790_000_000 * SECOND_US
WRITTEN = Path(__file__).parents[1] / "compatibility" / "v0.1.0.tar.xz"


def written(folder: Path, batches: int = 12, *, started_us: int = START_US) -> Written:
    """A foreign checkpoint, a batch each ten seconds: planned after 1 s, its state after 3 s, committed after 4 s."""
    made = Written(folder, WORDS)
    for number in range(batches):
        made.batch(words(a=number, b=number), source=json.dumps({"calls": {"0": 100 * (number + 1), "1": 0}}))
        at_us = started_us + 10 * number * SECOND_US
        plan = (folder / f"offsets/{number}").read_text().replace('"batchTimestampMs": 1000', _time(at_us))
        made.put(f"offsets/{number}", plan)
        for name, after_s in ((f"offsets/{number}", 1), (f"commits/{number}", 4)):
            _touch(folder / name, at_us + after_s * SECOND_US)
        for changes in folder.glob(f"state/0/*/{number + 1}.delta"):
            _touch(changes, at_us + 3 * SECOND_US)
    return made


def _time(at_us: int) -> str:
    return f'"batchTimestampMs": {at_us // 1_000}'


def _touch(path: Path, at_us: int) -> None:
    os.utime(path, ns=(at_us * 1_000, at_us * 1_000))


def one(inspection: Inspection) -> ViewInspection:
    (view,) = inspection.views
    return view


def reported(batch: int, **further: Any) -> dict[str, Any]:
    """A report of Spark's, with the figures that the runner adds."""
    operator = {"operatorName": "save", "numRowsTotal": 5 * batch, "numRowsUpdated": 1, "memoryUsedBytes": 9}
    operator |= {"allUpdatesTimeMs": 60, "commitTimeMs": 20, "numShufflePartitions": 2, "numRowsDroppedByWatermark": 1}
    durations = {"triggerExecution": 200, "addBatch": 120, "latestOffset": 3, "getBatch": 4, "walCommit": 30}
    return {
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:{batch:02}Z",
        "durationMs": durations | {"commitOffsets": 10, "queryPlanning": 5},
        "numInputRows": 7,
        "eventTime": {"max": "2026-01-01T00:00:00Z", "watermark": "2025-12-31T23:00:00Z"},
        "stateOperators": [operator],
        "sources": [{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}}, "numInputRows": 7}],
    } | further


def test_a_foreign_query_is_estimated_from_the_times_and_sizes_of_its_files(tmp_path: Path) -> None:
    written(tmp_path / "words")
    view = one(inspect(tmp_path / "words", START_US + 200 * SECOND_US))
    last = view.batches[-1]
    assert (view.view, view.ours, view.job) == ("words", False, None)
    assert (last.batch, last.start_us, last.duration_ms, last.rows) == (11, START_US + 110 * SECOND_US, 4_000, 100)
    assert last.parts_ms == {"source": 1_000, "compute": 2_000, "log": 1_000}
    assert view.last_batch_ms == 86_000
    assert {each.partition: each.changes for each in view.partitions} == {0: 12, 1: 12}
    assert {use.kind: use.files for use in view.disk} == {"batch logs": 24, "changelogs": 24, "schemas": 3}
    assert view.estimates and view.problems == ()
    assert findings(inspect(tmp_path / "words")) == []


def test_offsets_that_count_no_rows_are_not_taken_for_rows(tmp_path: Path) -> None:
    made = Written(tmp_path / "words", WORDS)
    for _ in range(3):
        made.batch(words(a=1))  # of files
    assert [batch.rows for batch in one(inspect(tmp_path / "words")).batches] == [None] * 3


def test_a_copy_has_no_durations_and_says_so(tmp_path: Path) -> None:
    written(tmp_path / "words")
    shutil.copytree(tmp_path / "words", tmp_path / "copy", copy_function=shutil.copyfile)
    view = one(inspect(tmp_path / "copy"))
    assert {batch.duration_ms for batch in view.batches} == {None}
    assert "those of a copy" in view.estimates[-1]
    assert view.problems == ()


def test_snapshots_give_size_age_and_growth(tmp_path: Path) -> None:
    written(tmp_path / "words")
    for version, size in ((2, 1_000), (6, 2_000), (10, 3_000)):
        for partition in (0, 1):
            path = tmp_path / f"words/state/0/{partition}/{version}.snapshot"
            path.write_bytes(b"x" * size)
            _touch(path, START_US + 10 * version * SECOND_US)
    view = one(inspect(tmp_path / "words", START_US + 200 * SECOND_US))
    assert (view.state_bytes, view.snapshot_age_ms) == (6_000, 100_000)
    assert view.growth_bytes_per_h == 4_000 * 3_600 / 80
    assert {(each.snapshot_version, each.changes) for each in view.partitions} == {(10, 2)}
    assert view.recovery_ms is not None and 10 < view.recovery_ms < 40


def folder_of(tmp_path: Path, *lines: str) -> Layout:
    """An application's folder with one view, whose progress has these lines."""
    layout = Layout(tmp_path / "data")
    view = layout.view("total")
    written(view.checkpoint)
    view.catalogue.write_text("{}")
    view.progress.write_text("".join(f"{line}\n" for line in lines))
    return layout


def test_our_own_run_is_shown_by_its_reports(tmp_path: Path) -> None:
    figures = {"cores": 2, "partitions": 2, "triggerMs": 100, "sinkMs": 15, "lateKept": 1, "deadLetters": 2}
    layout = folder_of(tmp_path, *(json.dumps(reported(batch, **figures)) for batch in range(10, 12)))
    Heartbeat(START_US, None, "idle").save(layout.view("total").heartbeat)
    DEAD_LETTERS.write(layout.view("total").dead_letters, 4)
    inspection = inspect(layout.root, START_US + SECOND_US)
    view, last = one(inspection), one(inspection).batches[-1]
    parts = {"source": 7, "planning": 5, "log": 40, "sink": 15, "state_update": 30, "state_commit": 10, "compute": 65}
    assert last.parts_ms == parts
    assert (last.left, last.late, last.late_kept, last.delay_ms, last.state_rows) == (4, 1, True, 100, 55)
    assert last.changelog_bytes == sum(path.stat().st_size for path in view_files(layout, "12.delta"))
    assert (view.job and view.job.state, view.dead_letters, view.estimates, view.problems) == ("idle", 4, (), ())
    assert view.growth_rows_per_h == 5 * 3_600
    assert one(inspect(layout.view("total").checkpoint)).batches == view.batches
    json.dumps(inspection.as_dict())


def view_files(layout: Layout, name: str) -> list[Path]:
    return list(layout.view("total").checkpoint.glob(f"state/0/*/{name}"))


def test_a_damaged_line_is_left_out_and_told_in_a_sentence_and_an_unfinished_one_is_normal(tmp_path: Path) -> None:
    layout = folder_of(tmp_path, json.dumps(reported(10)), '{"batchId": 1, "cut', "7", json.dumps(reported(11)))
    (problem,) = one(inspect(layout.root)).problems
    assert problem == f"2 lines of {layout.view('total').progress} cannot be read, and are left out."
    path = layout.view("total").progress
    path.write_text(f'{json.dumps(reported(10))}\n{{"batchId": 11, "dur')
    assert one(inspect(layout.root)).problems == ()
    assert newest_reports(path, 60, BatchReport.of)[1] == 0


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("offsets/11", "The plan offsets/11 of"),
        ("state/0/1", "no file of partition 1"),
        ("commits", "There is nothing to inspect"),
    ],
)
def test_a_half_deleted_checkpoint_is_told_in_a_sentence(tmp_path: Path, gone: str, said: str) -> None:
    written(tmp_path / "words")
    path = tmp_path / "words" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    try:
        problems = " ".join(inspect(tmp_path / "words").problems)
    except Exception as error:
        problems = str(error)
    assert said in problems


def test_a_view_without_a_checkpoint_is_new_or_has_lost_it(tmp_path: Path) -> None:
    layout = folder_of(tmp_path, json.dumps(reported(10)))
    shutil.rmtree(layout.view("total").checkpoint)
    (problem,) = one(inspect(layout.root)).problems
    assert problem == f"The checkpoint {layout.view('total').checkpoint} is missing."
    layout.view("total").progress.unlink()
    assert inspect(layout.root).problems == []
    assert findings(inspect(layout.root)) == []


def test_a_query_without_state_is_inspected_too(tmp_path: Path) -> None:
    written(tmp_path / "plain")
    shutil.rmtree(tmp_path / "plain" / "state")
    view = one(inspect(tmp_path / "plain"))
    assert len(view.batches) == 12
    assert (view.partitions, view.state_bytes, view.recovery_ms, view.problems) == ((), None, None, ())


def test_a_folder_of_version_0_1_0_is_inspected(tmp_path: Path) -> None:
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(tmp_path, filter="data")
    for folder in ("billing", "shop"):
        if (tmp_path / folder).is_dir():
            inspection = inspect(tmp_path / folder)
            assert all(view.batches and view.partitions for view in inspection.views)
            assert inspection.problems == []
            assert {each.code for each in findings(inspection)} <= {"job-stopped", "job-down"}
