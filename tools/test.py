"""`make test`: all tests, on three processes; each has a Spark session of its own where it needs one.

Two would keep two cores busy for two thirds of the time: tests with whole processes wait for them.

Before them, once, an archive of Spark's classes is made, from which JVMs start sooner (tests/quick_java.py).
A file's tests run in one process, in order, and whichever process is free takes the next file, files with long tests
first (tests/conftest.py). Options are pytest's.
`make test-fast` shares single tests out, and writes to memory: an fsync costs nothing there. The other two write to the
disk, as applications do.
`make test-full` without ARGS also writes the outcome, file by file, with date and commit, to docs/test-full.md, to be
committed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

FULL = "STATESIDE_TEST_FULL" in os.environ
FAST = "STATESIDE_TEST_FAST" in os.environ and not FULL
PROCESSES = (
    "-n",
    "2" if FAST else "3",
    *(("--dist", "worksteal") if FAST else ("--dist", "loadfile", "--no-loadscope-reorder")),
)
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30  # a run leaves some hundred megabytes until its end
TABLE = Path("docs/test-full.md")


def main(arguments: list[str]) -> int:
    """Run them; pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report, commit, began_s = Path(folder) / "report.xml", _commit(), time.monotonic()
        if not FAST:
            subprocess.run([sys.executable, "-m", "tests.quick_java"], check=False)
        command = [sys.executable, "-m", "pytest", *PROCESSES, *([f"--junitxml={report}"] if FULL else []), *arguments]
        with _written_to_memory() if FAST else nullcontext():
            code = subprocess.run(command, check=False).returncode
        if FULL and not arguments and report.exists():
            minutes = (time.monotonic() - began_s) / 60
            TABLE.write_text(page(list(outcomes(report)), f"{datetime.now(UTC):%Y-%m-%d}", commit, minutes))
    return code


@contextmanager
def _written_to_memory() -> Iterator[None]:
    """Lets the tests' folders be in memory, until the run ends; on the disk where there is too little of it."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="stateside-", dir=MEMORY) as folder:
        os.environ["TMPDIR"] = folder
        yield


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: passed, failed or skipped."""

    file: str
    outcome: str
    seconds: float


def outcomes(report: Path) -> Iterable[Outcome]:
    """All tests of a report in JUnit's format."""
    for case in ElementTree.parse(report).iter("testcase"):
        file = next(part for part in _files(case.get("classname", "")) if part.exists())
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield Outcome(str(file), outcome, float(case.get("time", 0)))


def _files(dotted: str) -> Iterable[Path]:
    """The possible files of a test's class: `tests.test_cli.TestCtrlC` is one of tests/test_cli.py."""
    parts = dotted.split(".")
    return (Path(*parts[:size]).with_suffix(".py") for size in range(len(parts), 0, -1))


PAGE = """# The last run of `make test-full`
Written by `tools/test.py`: {date}, commit {commit}, {minutes:.0f} minutes on three processes.

| tests | passed | failed | skipped | seconds |
|---|---:|---:|---:|---:|
"""


def page(found: Sequence[Outcome], date: str, commit: str, minutes: float) -> str:
    """The page of one whole run: a line for each file, and their sum."""
    files: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in found:
        files[outcome.file].append(outcome)
    lines = [_line(file, files[file]) for file in sorted(files)]
    return "".join([PAGE.format(date=date, commit=commit, minutes=minutes), *lines, _line("all", found)])


def _line(name: str, found: Sequence[Outcome]) -> str:
    counts = [sum(outcome.outcome == kind for outcome in found) for kind in ("passed", "failed", "skipped")]
    return f"| {name} | {' | '.join(map(str, counts))} | {sum(outcome.seconds for outcome in found):,.0f} |\n"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
