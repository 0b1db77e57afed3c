from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateside.errors import SetupError
from stateside.ops import doctor
from stateside.ops.doctor import Finding, as_json, diagnose, render
from stateside.pipeline.java import Java

NAMES = ["python", "java", "spark", "folder", "port", "disk", "memory"]


@pytest.mark.spark
def test_a_machine_that_runs_these_tests_is_found_fit(tmp_path: Path) -> None:
    findings = diagnose(tmp_path / "not" / "there" / "yet")
    assert [each.name for each in findings] == NAMES
    assert all(each.ok for each in findings), render(findings)
    assert list(tmp_path.iterdir()) == []


def test_the_json_says_the_whole_verdict_and_every_finding() -> None:
    findings = [Finding("java", False, "none", "Install one"), Finding("disk", True, "plenty")]
    assert json.loads(json.dumps(as_json(findings))) == {
        "ok": False,
        "findings": [
            {"name": "java", "ok": False, "found": "none", "mend": "Install one"},
            {"name": "disk", "ok": True, "found": "plenty", "mend": None},
        ],
    }
    assert as_json(findings[1:])["ok"] is True


def test_the_text_tells_people_how_to_mend_what_will_not_do() -> None:
    text = render([Finding("java", False, "none", "Install one"), Finding("disk", True, "plenty")])
    assert text.splitlines() == [
        "FAIL  java    none",
        "              to mend: Install one",
        "ok    disk    plenty",
        "1 of 2 will not do.",
    ]


def test_an_old_python_will_not_do() -> None:
    assert doctor.judge_python((3, 11, 0)).ok
    assert doctor.judge_python((3, 10, 13)).mend == "Install Python 3.11 or newer"


@pytest.mark.parametrize("version", [None, "4.1.0", "3.5.0"])
def test_no_spark_or_another_spark_will_not_do(version: str | None) -> None:
    finding = doctor.judge_spark(version)
    assert not finding.ok
    assert "pyspark==4.2.0" in str(finding.mend)


def test_a_full_disk_will_not_do() -> None:
    assert doctor.judge_disk(Path("here"), 2**30).ok
    assert doctor.judge_disk(Path("here"), 2**30 - 1) == Finding(
        "disk", False, "1.0 GiB free in here", "Free 1.0 GiB, or take a folder on another disk"
    )


def test_a_small_memory_will_not_do() -> None:
    assert doctor.judge_memory(2 * 2**30).ok
    assert not doctor.judge_memory(2**30).ok


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert doctor.memory_bytes([limit]) == 2**20
    limit.write_text("max\n")
    assert doctor.memory_bytes([limit]) == doctor.memory_bytes([])


def test_a_folder_that_cannot_be_written_to_will_not_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert doctor.look_at_folder(tmp_path).ok
    assert doctor.look_at_folder(tmp_path / "file").mend is not None
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_loopback_port_is_free() -> None:
    assert doctor.look_at_port().ok


def test_a_missing_java_is_told_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Java:
        raise SetupError("No Java", where="nowhere", next_step="Install one")

    monkeypatch.setattr(doctor, "find_java", none)
    assert doctor.look_at_java() == Finding("java", False, "No Java (nowhere)", "Install one")


def test_a_java_home_that_was_passed_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    java = Java(Path("home"), "17.0.15", "PATH", ("JAVA_HOME (old) is Java 11",))
    monkeypatch.setattr(doctor, "find_java", lambda: java)
    assert doctor.look_at_java().found == "17.0.15 from PATH, home; passed over: JAVA_HOME (old) is Java 11"
