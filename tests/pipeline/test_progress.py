"""Progress kept beside the checkpoint: bounded, readable after any crash; and its totals, which never fall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.layout import Layout, ViewLayout
from stateside.inspection.batch_reports import older, read_progress
from stateside.pipeline.progress import ProgressFile, TotalsFile
from stateside.views.job_totals import BOUNDS_S, JOB_TOTALS, PARTS, JobTotals


def test_the_newest_batches_are_kept_and_never_more_than_two_files_of_them(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    file = ProgressFile(path, lines_max=10)
    for batch in range(95):
        file.append({"batchId": batch})
        assert len(list(read_progress(path))) <= 20
    assert [report["batchId"] for report in read_progress(path)] == list(range(80, 95))


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    for batch in range(25):
        ProgressFile(path, lines_max=10).append({"batchId": batch})
    assert [report["batchId"] for report in read_progress(path)] == list(range(10, 25))
    assert {file.name for file in tmp_path.iterdir()} == {path.name, older(path).name}


@given(cut=st.integers(min_value=0, max_value=60))
def test_a_line_that_a_crash_cut_short_costs_that_line_alone(tmp_path_factory: object, cut: int) -> None:
    path = Path(tmp_path_factory.mktemp("progress")) / "progress.jsonl"  # type: ignore[attr-defined]
    file = ProgressFile(path)
    for batch in range(3):
        file.append({"batchId": batch})
    path.write_bytes(path.read_bytes()[:cut])
    whole = [report["batchId"] for report in read_progress(path)]
    ProgressFile(path).append({"batchId": 99})
    assert [report["batchId"] for report in read_progress(path)] == [*whole, 99]


def report(batch: int, rows: int = 3, took_ms: int = 250) -> dict[str, Any]:
    """As Spark reports a batch."""
    source = {"startOffset": None, "endOffset": {"journal": "x", "0": rows}, "latestOffset": {"journal": "x", "0": 9}}
    durations = {"triggerExecution": took_ms, "addBatch": took_ms - 20, "latestOffset": 5, "walCommit": 15}
    operator = {"operatorName": "stateStoreSave", "numRowsTotal": 7, "memoryUsedBytes": 4_096, "customMetrics": {}}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": durations,
        "sources": [source],
        "stateOperators": [operator],
    }


@pytest.fixture
def view(tmp_path: Path) -> ViewLayout:
    found = Layout(tmp_path).view("total")
    found.root.mkdir(parents=True)
    return found


def now(view: ViewLayout) -> JobTotals:
    return JOB_TOTALS.load(view.totals)


def test_totals_go_on_over_runs_and_do_not_fall_when_reports_are_dropped(view: ViewLayout) -> None:
    for run in range(3):
        totals, reports = TotalsFile(view), ProgressFile(view.progress, lines_max=5)
        for batch in range(20):
            reports.append(report(20 * run + batch))
            totals.add([report(20 * run + batch)])
            totals.save(1, sink_held=False)
            assert now(view).batches == 20 * run + batch + 1
        assert (now(view).starts, now(view).rows) == (run + 1, 60 * (run + 1))
    found = now(view)
    assert (found.events_left, found.operators[0].rows, found.operators[0].bytes) == (6, 7, 4_096)
    assert found.took["execution"].sum_s == pytest.approx(60 * 0.230)
    assert JobTotals.parse(found.as_dict()) == found


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"batches": 7}', b'{"bounds_s": [1, 2]}'])
def test_without_totals_that_can_be_read_the_kept_reports_are_counted(view: ViewLayout, content: bytes | None) -> None:
    """Of an older Stateside, or after a loss of power."""
    for batch in range(4):
        ProgressFile(view.progress).append(report(batch))
    if content is not None:
        view.totals.write_bytes(content)
    TotalsFile(view).save(1, sink_held=False)
    assert (now(view).batches, now(view).rows) == (4, 12)


@given(st.lists(st.integers(min_value=20, max_value=400_000), max_size=20))
def test_a_duration_is_in_the_bucket_that_it_just_fits(durations_ms: list[int]) -> None:
    totals = JobTotals()
    for batch, took_ms in enumerate(durations_ms):
        totals = totals.plus(report(batch, took_ms=took_ms), None)
    for part in PARTS:
        assert sum(totals.took[part].buckets) == len(durations_ms)
    for number, bound_s in enumerate(BOUNDS_S):
        at_most = sum(took_ms <= bound_s * 1_000 for took_ms in durations_ms)
        assert sum(totals.took["whole"].buckets[: number + 1]) == at_most


def test_what_could_not_be_written_is_in_the_next_totals(view: ViewLayout) -> None:
    totals = TotalsFile(view)
    totals.add([report(0)])
    view.root.rmdir()
    with pytest.raises(OSError):
        totals.save(1, sink_held=True)
    view.root.mkdir()
    totals.add([report(1)])
    totals.save(1, sink_held=False)
    assert (now(view).batches, now(view).sink_held) == (2, False)
