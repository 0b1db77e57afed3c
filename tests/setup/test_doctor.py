from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stateside.cli import PORT
from stateside.core.errors import SetupError
from stateside.core.processes import free_port
from stateside.ops import doctor
from stateside.ops.doctor import Check, as_json, diagnose, render
from stateside.pipeline.java import Java

NAMES = ["python", "java", "spark", "folder", "privacy", "port", "disk", "memory"]


@pytest.mark.spark
def test_a_machine_that_runs_these_tests_is_found_fit(tmp_path: Path) -> None:
    findings = diagnose(tmp_path / "not" / "there" / "yet", free_port())
    assert [each.name for each in findings] == NAMES
    assert all(each.ok for each in findings), render(findings)
    assert list(tmp_path.iterdir()) == []


def test_the_json_says_the_whole_verdict_and_every_finding() -> None:
    findings = [Check("java", False, "none", "Install one"), Check("disk", True, "plenty")]
    assert json.loads(json.dumps(as_json(findings))) == {
        "ok": False,
        "findings": [
            {"name": "java", "ok": False, "found": "none", "mend": "Install one"},
            {"name": "disk", "ok": True, "found": "plenty", "mend": None},
        ],
    }
    assert as_json(findings[1:])["ok"] is True


def test_the_text_tells_people_how_to_mend_what_will_not_do() -> None:
    text = render([Check("java", False, "none", "Install one"), Check("disk", True, "plenty")])
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
    assert doctor.judge_disk(Path("here"), 2**30 - 1) == Check(
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


def test_a_folder_that_others_reach_will_not_do_unless_that_is_wanted(tmp_path: Path) -> None:
    assert doctor.look_at_privacy(tmp_path / "nowhere", 0o077).ok
    (tmp_path / "journal").mkdir(mode=0o700)
    (tmp_path / "journal" / "end").touch(mode=0o644)
    (tmp_path / "clock.json").touch(mode=0o640)
    tmp_path.chmod(0o755)
    found = doctor.look_at_privacy(tmp_path, 0o077)
    assert (found.ok, found.found) == (False, f"others reach clock.json in {tmp_path}")
    assert found.mend is not None and f"chmod -R go-rwx {tmp_path}" in found.mend
    assert doctor.look_at_privacy(tmp_path, 0o027).ok, "a group reads it on purpose"
    tmp_path.chmod(0o700)
    assert doctor.look_at_privacy(tmp_path, 0o077).ok, "nobody gets in"


def test_a_folder_whose_name_is_too_long_will_not_do_though_its_parent_would(tmp_path: Path) -> None:
    finding = doctor.look_at_folder(tmp_path / ("x" * 300) / "below")
    assert not finding.ok
    assert "ENAMETOOLONG" in finding.found
    assert doctor.look_at_disk(tmp_path / ("x" * 300)).found.endswith(str(tmp_path))


@pytest.mark.e2e
def test_a_folder_below_an_unreadable_one_will_not_do(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    script = (
        "import os, sys; from pathlib import Path; from stateside.ops import doctor\n"
        "os.geteuid() or os.setuid(65534)  # root may read everything\n"
        "folder = Path(sys.argv[1]); print(doctor.look_at_folder(folder)); print(doctor.look_at_disk(folder))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "closed" / "below")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    folder, disk = done.stdout.splitlines()
    assert "ok=False" in folder and "EACCES" in folder
    assert "ok=True" in disk


@pytest.mark.parametrize("folder", ["/proc/nope/below", "x" * 300])
@pytest.mark.e2e
def test_a_folder_that_nobody_can_make_is_a_finding_and_no_stack_trace(folder: str) -> None:
    command = [sys.executable, "-m", "stateside", "doctor", "--json", "--dir", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert not found["folder"]["ok"]


def test_the_port_of_a_server_is_looked_at_and_a_free_one_will_do() -> None:
    port = free_port()
    assert doctor.look_at_port(port) == Check("port", True, f"{port} of the loopback interface is free")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_port_that_is_taken_will_not_do_and_is_told_with_whose_it_is_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        finding = doctor.look_at_port(server.getsockname()[1])
    assert not finding.ok
    assert f"process {os.getpid()} (" in finding.found
    assert "stateside serve --port 0" in str(finding.mend)


@pytest.mark.e2e
def test_the_port_that_a_server_takes_by_default_is_the_one_looked_at() -> None:
    try:
        taken = socket.create_server(("127.0.0.1", PORT))
    except OSError:
        pytest.skip(f"somebody listens on {PORT} here")
    with taken:
        command = [sys.executable, "-m", "stateside", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"FAIL  port    {PORT} cannot be listened on (EADDRINUSE" in done.stdout


def test_a_missing_java_is_told_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Java:
        raise SetupError("No Java", where="nowhere", next_step="Install one")

    monkeypatch.setattr(doctor, "find_java", none)
    assert doctor.look_at_java() == Check("java", False, "No Java (nowhere)", "Install one")


def test_a_java_home_that_was_passed_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    java = Java(Path("home"), "17.0.15", "PATH", ("JAVA_HOME (old) is Java 11",))
    monkeypatch.setattr(doctor, "find_java", lambda: java)
    assert doctor.look_at_java().found == "17.0.15 from PATH, home; passed over: JAVA_HOME (old) is Java 11"
