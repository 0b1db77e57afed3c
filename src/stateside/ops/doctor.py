"""The doctor: checks the machine against Stateside's requirements, and says how to repair failures.

Read only. PySpark is imported for its version and not started; Java is really run.

    diagnose   inspects the machine and judges
    judge_...  decide from plain values: no I/O, and so easy to test
    render     the findings for people
    as_json    the findings for programs
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateside.core.errors import SetupError
from stateside.core.layout import Layout
from stateside.core.ports import listener, refusal
from stateside.core.processes import wanted_umask
from stateside.pipeline.java import find_java

PYTHON_MIN = (3, 11)
SPARK_VERSION = "4.2.0"
SPARK_IMPORT_TIMEOUT_S = 60
DISK_FREE_BYTES_MIN = 2**30  # for a demo with space to grow
MEMORY_BYTES_MIN = 2 * 2**30  # Spark's JVM of 1 GiB, its Python workers, a replica
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Check:
    """The result of one check: whether it passed, what was found, and the repair if it failed."""

    name: str
    ok: bool
    found: str
    mend: str | None = None


def diagnose(directory: Path, port: int) -> list[Check]:
    """All requirements of a pipeline in `directory` and a server on `port`, always in the same order.

    The directory need not exist yet: then its nearest existing parent must be writable.
    """
    return [
        judge_python(sys.version_info[:3]),
        look_at_java(),
        judge_spark(spark_version()),
        look_at_folder(directory),
        look_at_privacy(directory, wanted_umask(os.environ)),
        look_at_port(port),
        look_at_disk(directory),
        judge_memory(memory_bytes()),
    ]


def render(findings: Sequence[Check]) -> str:
    """The findings for people: a line each, with the repair below each failure."""
    lines = [f"{'ok  ' if each.ok else 'FAIL'}  {each.name:<7} {each.found}" for each in findings]
    mends = [f"\n              to mend: {each.mend}" if each.mend else "" for each in findings]
    wrong = sum(not each.ok for each in findings)
    verdict = "This machine has all that Stateside needs." if not wrong else f"{wrong} of {len(findings)} will not do."
    return "\n".join([*map("".join, zip(lines, mends, strict=True)), verdict])


def as_json(findings: Sequence[Check]) -> dict[str, Any]:
    """The findings for programs: `ok` for the whole, then each one with all its fields."""
    return {"ok": all(each.ok for each in findings), "findings": [asdict(each) for each in findings]}


def judge_python(version: tuple[int, int, int]) -> Check:
    """Whether the running Python is new enough."""
    wanted = ".".join(map(str, PYTHON_MIN))
    found = f"{'.'.join(map(str, version))}, {sys.executable}"
    return _finding("python", version >= PYTHON_MIN, found, f"Install Python {wanted} or newer")


def judge_spark(version: str | None) -> Check:
    """Whether the installed PySpark is the version whose checkpoints are understood."""
    mend = f"Run `make -B setup` in a checkout, or pip install 'stateside[spark]' (pyspark=={SPARK_VERSION})"
    return _finding("spark", version == SPARK_VERSION, version or "cannot be imported", mend)


def judge_disk(folder: Path, free_bytes: int) -> Check:
    """Whether there is space for a journal, a checkpoint and tables."""
    mend = f"Free {_gib(DISK_FREE_BYTES_MIN)}, or take a folder on another disk"
    return _finding("disk", free_bytes >= DISK_FREE_BYTES_MIN, f"{_gib(free_bytes)} free in {folder}", mend)


def judge_memory(total_bytes: int) -> Check:
    """Whether there is memory for a JVM beside this process."""
    mend = f"Give the machine or the container {_gib(MEMORY_BYTES_MIN)}"
    return _finding("memory", total_bytes >= MEMORY_BYTES_MIN, _gib(total_bytes), mend)


def look_at_java() -> Check:
    """The Java that Spark would get, with the rejected installations and the reasons."""
    try:
        java = find_java()
    except SetupError as error:
        return Check("java", False, f"{error.what} ({error.where})", error.next_step)
    passed_over = "".join(f"; passed over: {reason}" for reason in java.passed_over)
    return Check("java", True, f"{java.version} from {java.origin}, {java.home}{passed_over}")


def look_at_folder(directory: Path) -> Check:
    """Whether files can be created in the directory or its nearest parent, tried with a temporary file."""
    folder, error = nearest(directory)
    mend = f"Make {folder} a folder that this user may write to, or take another one"
    try:
        if error:
            raise error
        with tempfile.TemporaryFile(dir=folder):
            return Check("folder", True, f"{folder} can be written to")
    except OSError as error:
        return Check("folder", False, f"{directory}: {_reason(error)}", mend)


def look_at_privacy(directory: Path, umask: int) -> Check:
    """Whether users other than the owner can reach Stateside's files in the directory beyond the umask."""
    layout = Layout(directory)
    try:
        if not any(path.exists() for path in (layout.journal, layout.keys, directory / "views")):
            return Check("privacy", True, f"{directory} has nothing of Stateside's yet")
        loose = _loose(directory, umask)
    except OSError as error:  # `look_at_folder` reports the error
        return Check("privacy", True, f"{directory} cannot be looked at ({_reason(error)})")
    mend = f"chmod -R go-rwx {directory}; to share it with a group on purpose, set STATESIDE_UMASK (docs/access.md)"
    found = f"others reach {', '.join(loose[:5])}{', …' if loose[5:] else ''} in {directory}" if loose else ""
    return _finding("privacy", not loose, found or f"{directory} is kept from others (umask {umask:03o})", mend)


def _loose(folder: Path, umask: int) -> list[str]:
    """The entries of a folder that others can reach: none if they cannot enter the folder, so no deeper search."""
    if not folder.stat().st_mode & umask:
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.lstat().st_mode & umask and not entry.is_symlink())


def look_at_disk(directory: Path) -> Check:
    folder, _ = nearest(directory)
    try:
        return judge_disk(folder, shutil.disk_usage(folder).free)
    except OSError as error:
        return Check("disk", False, f"{folder}: {_reason(error)}", "Take a folder on another disk")


def look_at_port(port: int) -> Check:
    """Whether a server can listen on the loopback interface, on any port and on `port`."""
    if error := refusal(0):
        return Check("port", False, f"no loopback port: {_reason(error)}", "Bring the loopback interface up")
    if error := refusal(port):
        blame = listener(port) or "the system does not tell whose process it is"
        mend = "Stop that process, or serve on another port: `stateside serve --port 0` takes any free one"
        return Check("port", False, f"{port} cannot be listened on ({_reason(error)}): {blame}", mend)
    return Check("port", True, f"{port} of the loopback interface is free")


def nearest(directory: Path) -> tuple[Path, OSError | None]:
    """The directory, or its nearest visible parent, and the error found on the way (other than absence)."""
    wrong: OSError | None = None
    for folder in (directory, *directory.absolute().parents):
        try:
            folder.stat()
            return folder, wrong
        except FileNotFoundError:
            pass
        except OSError as error:
            wrong = wrong or error
    return Path("/"), wrong


def spark_version() -> str | None:
    """The version of the installed PySpark; None if the import fails. Runs a process of its own: 0.4 s."""
    command = [sys.executable, "-P", "-c", "import pyspark; print(pyspark.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPARK_IMPORT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def memory_bytes(limits: Sequence[Path] = CGROUP_LIMITS) -> int:
    """The usable memory: the machine's, or less inside a container with a limit."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    told = [limit.read_text().strip() for limit in limits if limit.is_file()]
    return min([pages, *(int(each) for each in told if each.isdigit())])


def _finding(name: str, ok: bool, found: str, mend: str) -> Check:
    return Check(name, ok, found, None if ok else mend)


def _reason(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, 'error')}, {error.strerror or error}"


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.1f} GiB"
