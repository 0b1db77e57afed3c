"""The Python that Spark's workers run on: this one, with PySpark from where it is installed.

Spark puts its own copy of PySpark first on its workers' path: a zip file of sources, which Python compiles anew in each
process. Workers are short, and one starts with every query: a second each, of which two thirds are that. So they are
started by a *launcher*, a script that takes the zip files off the path; what is imported then is what the driver has.

    <prefix>/share/stateside/python-<checksum of the script>/python
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from stateside.pipeline.java import launcher_folder, write_whole

LAUNCHER = """\
#!/bin/sh
# Runs the Python of Spark's workers without Spark's own copy of PySpark on its path: it is installed there already.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
    *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
unset IFS
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def worker_environment(
    master: str, environ: Mapping[str, str] | None = None, *, launchers: Path | None = None
) -> dict[str, str]:
    """The variables to set before a JVM is launched, so that its workers start quickly.

    None where workers may run on other machines, which do not have the launcher, or belong to another Spark than the
    installed one.
    """
    environ = os.environ if environ is None else environ
    if not master.startswith("local") or "SPARK_HOME" in environ:
        return {}
    return {"PYSPARK_PYTHON": str(write_launcher(launchers or launcher_folder()))}


def write_launcher(folder: Path) -> Path:
    """The launcher below `folder`, written where it is not there yet. Several processes may do so at once."""
    text = LAUNCHER.format(python=shlex.quote(sys.executable))
    launcher = folder / f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / "python"
    if not launcher.is_file():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        write_whole(launcher, text)
    return launcher
