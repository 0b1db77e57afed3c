"""What README shows is run: its application, its producer, its three commands, and what they answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateside.core.processes import Child, free_port

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text()


def block(name: str) -> str:
    """The fenced block that a comment names."""
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert match, f"README has no block {name}"
    return match[1]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.stop()


@pytest.mark.spark
@pytest.mark.e2e
def test_the_application_of_the_readme_runs_and_answers_as_it_says(tmp_path: Path, children: list[Child]) -> None:
    for name in ("shop.py", "produce.py"):
        (tmp_path / name).write_text(block(name))
    produced = subprocess.run([sys.executable, "produce.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert produced.stdout.strip() == "0:1"
    run, serve, get = (shlex.split(line)[1:] for line in block("commands").splitlines())
    port = str(free_port())
    os.chdir(tmp_path)
    try:
        for name, arguments in (("run", run), ("serve", [*serve, "--port", port])):
            children.append(Child([sys.executable, "-m", "stateside", *arguments], tmp_path / f"{name}.log"))
        answer = wait_for_answer([*get, "--url", f"http://127.0.0.1:{port}"], children)
    finally:
        os.chdir(TOP)
    (shown,) = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", README, re.DOTALL))
    assert answer["rows"] == shown["rows"]
    assert answer["cursor"] == shown["cursor"]
    assert {name: answer["stamp"][name] for name in ("view", "position", "age_basis")} == {
        name: shown["stamp"][name] for name in ("view", "position", "age_basis")
    }


def wait_for_answer(arguments: list[str], children: list[Child]) -> dict[str, Any]:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        found = subprocess.run(
            [sys.executable, "-m", "stateside", *arguments], capture_output=True, text=True, check=False
        )
        answer: dict[str, Any] = json.loads(found.stdout) if found.returncode == 0 else {}
        if (
            answer and answer["stamp"]["age_basis"] == "heartbeat"
        ):  # for a moment the first batch is known by its commit
            return answer
        assert all(child.returncode() is None for child in children), [child.tail() for child in children]
        time.sleep(0.5)
    raise AssertionError(f"no answer: {found.stderr}")


def test_every_path_that_the_documents_name_exists() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (TOP / document).read_text()
        for name in re.findall(r"`((?:[\w.]+/)+[\w.]*|[\w]+\.(?:py|md|lock))`", text):
            places = [TOP / name, TOP / "src" / "stateside" / name]
            known = {"build/site", "shop.py", "commits/N", "offsets/N", "tests/PACKAGE/"}
            found = any(place.exists() for place in places) or list((TOP / "src").rglob(name.rstrip("/")))
            assert found or name in known, f"{document} names {name}"


def test_every_make_target_that_the_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", (TOP / document).read_text(), re.MULTILINE))
        names = {first or second for first, second in named}
        assert names <= targets, f"{document} names {names - targets}"


@pytest.mark.e2e
def test_every_command_teaches_in_its_help() -> None:
    for command in ([], ["demo"], ["run"], ["serve"], ["get"], ["sum"], ["rollup"], ["doctor"]):
        shown = subprocess.run(
            [sys.executable, "-m", "stateside", *command, "--help"], capture_output=True, text=True, check=True
        )
        assert "Usage:" in shown.stdout
        assert len(shown.stdout.splitlines()) > 6
