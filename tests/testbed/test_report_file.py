"""The file of the report: cleared at the start, refused at the start, written at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stateside.billing.audit import Audit, LiveBatch
from stateside.billing.audit.law import LawVerdict
from stateside.billing.generator import ExpectedTotals
from stateside.core.errors import RequestInvalid
from stateside.testbed.demo_report import DemoReport
from stateside.testbed.proof import Outcome, ReplicaProof
from stateside.testbed.run_folder import ReportFile
from stateside.testbed.witness import Seen


def a_report(differences: Sequence[str] = (), broken: int = 0) -> DemoReport:
    outcome = Outcome(
        amounts={("c0", 5): 100_000_000},
        charged={},
        invoices=1,
        late_invoices=0,
        notes=0,
        corrected=frozenset(),
        dead_letters={},
        sealed_periods=("2026-01",),
    )
    sentences = ("c0, 2026-01: a micro too little",) if broken else ()
    verdict = LawVerdict("conservation", "Nothing is lost", broken, sentences)
    counts = {"events": 3, "invoiced": 3}
    audit = Audit(LiveBatch(1, 3, 0), counts, 1, (verdict,), 3, 0.1, 0.2)
    seen = Seen(0.0)
    seen.note_answer(1.0, age_ms=1, latency_ms=1.0)
    return DemoReport(
        seconds=1.0,
        customers=1,
        expected=ExpectedTotals({"bill": 3}, [], frozenset(), frozenset()),
        proof=ReplicaProof(audit, outcome, differences),
        seen=seen,
        pipeline_restarts=0,
        cluster_restarts=0,
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


def test_a_difference_or_a_broken_law_makes_the_report_bad_and_is_told() -> None:
    for report in (a_report(differences=["c0 is off"]), a_report(broken=1)):
        assert not report.ok
        assert report.as_dict()["problems"] == [*report.proof.audit.differences(), *report.proof.differences]
        assert report.lines()[-1] == "It does NOT add up."
    assert a_report().lines()[-1] == "Everything adds up."


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
