"""`make test`: all tests, on two processes, one for each core; each has a Spark session of its own where it needs one.

Before them, once, an archive of Spark's classes is made, from which JVMs start sooner (tests/quick_java.py).
A file's tests run in one process, in order, and whichever process is free takes the next file. Options are pytest's.
`make test-fast` shares single tests out, and writes to memory: an fsync costs nothing there. What it leaves of examples
and damaged places, tests/sizes.py says. The other two write to the disk, as applications do.
`make test-full` also writes what came out, file by file and with the date, into docs/test-full.md, to be committed.
Files that were not run this time keep their lines: it may be run in parts, `make test-full ARGS=tests/oracle`. A choice
by name, `-k`, has lines of its own, below the whole file's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

FULL = "STATESIDE_TEST_FULL" in os.environ
FAST = "STATESIDE_TEST_FAST" in os.environ and not FULL
PROCESSES = ("-n", "2", *(("--dist", "worksteal") if FAST else ("--dist", "loadfile", "--no-loadscope-reorder")))
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30  # a run leaves some hundred megabytes until its end
TABLE = Path("docs/test-full.md")


def main(arguments: list[str]) -> int:
    """Run them; pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        if not FAST:
            subprocess.run([sys.executable, "-m", "tests.quick_java"], check=False)
        command = [sys.executable, "-m", "pytest", *PROCESSES, *([f"--junitxml={report}"] if FULL else []), *arguments]
        with _written_to_memory() if FAST else nullcontext():
            code = subprocess.run(command, check=False).returncode
        if FULL and report.exists():
            found = lines(list(outcomes(report)), _choice(arguments))
            TABLE.write_text(table(found, TABLE.read_text() if TABLE.exists() else ""))
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
    """What came out of one test: passed, failed or skipped."""

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
    """The files that a test's class may stand in: `tests.test_cli.TestCtrlC` is one of tests/test_cli.py."""
    parts = dotted.split(".")
    return (Path(*parts[:size]).with_suffix(".py") for size in range(len(parts), 0, -1))


HEAD = """# What `make test-full` said last, file by file
Written by the run itself (`tools/test.py`). A file's line has the date and the commit of its own last run.

| tests | passed | failed | skipped | seconds | date | commit |
|---|---:|---:|---:|---:|---|---|
"""


def lines(found: list[Outcome], choice: str = "") -> dict[str, str]:
    """A line of the table for each file, or for what was chosen of it."""
    files: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in found:
        files[outcome.file].append(outcome)
    when = f"{datetime.now(UTC):%Y-%m-%d} | {_commit()}"
    return {file + choice: f"{_counted(file + choice, files[file])} | {when} |" for file in files}


def table(new: dict[str, str], before: str) -> str:
    """The page with these lines, and with the older ones of files that are still there."""
    older = {line.split(" | ")[0][2:]: line for line in before.splitlines() if line.startswith("| tests/")}
    kept = {name: line for name, line in older.items() if Path(name.split(" ")[0]).exists()}
    return HEAD + "".join(f"{line}\n" for _, line in sorted((kept | new).items()))


def _choice(arguments: list[str]) -> str:
    """What `-k` chose, as it stands behind a file's name."""
    words = dict(pairwise(arguments))
    return f" -k '{words['-k']}'" if "-k" in words else ""


def _counted(name: str, found: list[Outcome]) -> str:
    counts = [sum(outcome.outcome == kind for outcome in found) for kind in ("passed", "failed", "skipped")]
    return f"| {name} | {' | '.join(map(str, counts))} | {sum(outcome.seconds for outcome in found):,.0f}"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
