"""The file of the report: cleared at the start, refused at the start, written at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateside.errors import RequestInvalid
from stateside.ops.demo.recount import Audit, Sums
from stateside.ops.demo.report import DemoReport, ReportFile


def a_report() -> DemoReport:
    sums = Sums()
    sums.add(("c0", "2026-01"), 100_000_000, 3)
    audit = Audit(journal=sums, invoiced=sums, open=Sums(), doubled_invoices=[], untrue_invoices=[])
    return DemoReport(
        seconds=1.0,
        customers=1,
        generated=3,
        late_within_grace=0,
        audit=audit,
        latencies_ms=[1.0],
        ages_ms=[1],
        requests_failed=0,
        failures=[],
        pipeline_restarts=0,
    )


def test_the_report_of_an_earlier_run_is_removed_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    ReportFile(path).clear()
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_written_for_machines(tmp_path: Path) -> None:
    report, path = a_report(), tmp_path / "report.json"
    ReportFile(path).write(report)
    assert report.ok
    assert json.loads(path.read_text()) == report.as_dict()


def test_what_a_link_leads_to_is_emptied_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    ReportFile(tmp_path / "link").clear()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == ""
    ReportFile(tmp_path / "link").write(a_report())
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text())["ok"]


def test_a_device_is_left_alone(tmp_path: Path) -> None:
    ReportFile(Path("/dev/null")).clear()
    ReportFile(Path("/dev/null")).write(a_report())
    assert Path("/dev/null").is_char_device()


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match=r"There is no folder .* for the report"):
        ReportFile(tmp_path / "missing" / "report.json").clear()


def test_a_folder_that_takes_no_file_is_refused_at_the_start() -> None:
    with pytest.raises(OSError):
        ReportFile(Path("/proc/report.json")).clear()
