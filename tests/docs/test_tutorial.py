"""The tutorial is a transcript: every command on its page is run, in order, and says what the page says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stateside.core.processes import free_port
from tests.sizes import in_full

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = 8471  # as the page has it; another user of the machine may have it in use, so another one is taken


@dataclass
class Reader:
    """Somebody who follows the page, with several terminals."""

    folder: Path
    ports: dict[int, int]
    terminals: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def follow(self, kind: str, note: str, text: str) -> None:
        if kind == "console" and note:
            self.in_terminal(note, text)
        elif kind == "console":
            for command, expected in _commands(text):
                self.type(command, expected)
        elif note.startswith("edit: "):
            self.edit(self.folder / note.removeprefix("edit: "), text)

    def type(self, command: str, expected: str) -> None:
        if command.startswith("cd "):
            self.folder = self.folder / command.removeprefix("cd ")
            return
        done = self.run(command)
        shown = done.stdout if done.returncode == 0 and "append" not in command else done.stderr + done.stdout
        assert _matches(expected, shown), f"$ {command}\n{shown}"

    def in_terminal(self, name: str, text: str) -> None:
        """A command that goes on, or ends with an error; the one that was there before is stopped."""
        if name in self.terminals:
            self.stop(name)
        ((command, expected),) = _commands(text)
        if "Error" in expected:
            done = self.run(command)
            assert done.returncode != 0
            assert _matches(expected, done.stderr), done.stderr
            return
        log = self.folder / f"{name}.log"
        with log.open("w") as output:
            self.terminals[name] = subprocess.Popen(
                self.arguments(command), cwd=self.folder, stdout=output, stderr=output, text=True, env=_environment()
            )
        deadline = time.monotonic() + 180
        while not _matches(self.with_taken_ports(expected), log.read_text()):
            assert time.monotonic() < deadline and self.terminals[name].poll() is None, log.read_text()
            time.sleep(0.2)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        shell = ["bash", "-c", " ".join(["set -o pipefail;", self.with_ports(command)])]
        return subprocess.run(
            shell, cwd=self.folder, capture_output=True, text=True, check=False, env=_environment(), timeout=300
        )

    def arguments(self, command: str) -> list[str]:
        return [sys.executable, "-m", *shlex.split(self.with_ports(command))]

    def with_ports(self, command: str) -> str:
        if re.search(r"\b(serve|get)\b", command):
            flag = "--port {}" if " serve " in command else "--url http://127.0.0.1:{}"
            command = re.sub(r"stateside (serve|get)\b", rf"\g<0> {flag.format(PORT)}", command)
        return self.with_taken_ports(command)

    def with_taken_ports(self, text: str) -> str:
        for shown, taken in self.ports.items():
            text = text.replace(str(shown), str(taken))
        return text

    def edit(self, path: Path, text: str) -> None:
        """Put the lines in, behind the first of them, which is there already."""
        first = text.splitlines(keepends=True)[0]
        content = path.read_text()
        assert content.count(first) == 1
        path.write_text(content.replace(first, text))

    def stop(self, name: str) -> None:
        process = self.terminals.pop(name)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) in (0, 130)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, {PORT: free_port()})
    yield reader
    for process in reader.terminals.values():
        process.send_signal(signal.SIGINT)
    for process in reader.terminals.values():
        process.wait(timeout=120)


@in_full("test_readme runs an application, and tests/examples the others")
def test_every_command_of_the_tutorial_says_what_the_page_says(reader: Reader) -> None:
    for kind, note, text in BLOCK.findall(TUTORIAL.read_text()):
        reader.follow(kind, note, text)
    assert set(reader.terminals) == {"terminal-2", "terminal-3", "terminal-4"}


def _commands(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output that is shown."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def _matches(expected: str, shown: str) -> bool:
    pattern = re.escape(expected.strip()).replace("…", ".*?")
    return re.fullmatch(pattern, shown.strip(), re.DOTALL) is not None


def _environment() -> dict[str, str]:
    """The shell's, with this Python's commands first, and without what pytest tells its children."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
