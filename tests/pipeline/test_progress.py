"""Progress kept beside the checkpoint: bounded, readable after any crash."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stateside.pipeline.progress import ProgressFile, older, read_progress


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
