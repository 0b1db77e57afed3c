"""The Spark session: one JVM, started with what Stateside relies on.

The Python that Spark's workers run on: this one, with PySpark from where it is installed.

Spark puts its own copy of PySpark first on its workers' path: a zip file of sources, which Python compiles anew in each
process. Workers are short, and one starts with every query: a second each, of which two thirds are that. So they are
started by a *launcher*, a script that takes the zip files off the path; what is imported then is what the driver has.

    <prefix>/share/stateside/python-<checksum of the script>/python
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from stateside.core.errors import ClusterAway, PipelineFailed, SettingInvalid
from stateside.core.processes import current_umask
from stateside.pipeline.driver_lock import note_holder
from stateside.pipeline.failures import reason
from stateside.pipeline.java import java_environment, launcher_folder, write_whole
from stateside.pipeline.journal_source import JournalSource
from stateside.pipeline.master import check_reachable, cluster_conf, masters_of
from stateside.pipeline.settings import RunSettings

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


log = logging.getLogger(__name__)
DRIVER_LOG = "driver.log"
JVM_STOP_S_MAX = 10.0
_LOOK_S = 0.1
_STATE = "spark.sql.streaming.stateStore"
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The state as DESIGN section 5 measured it: RocksDB, changelogs, files with unique ids.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    f"{_STATE}.checkpointFormatVersion": "2",
    # Executors of a cluster say as little as the driver; by default some lines for each task, for ever.
    "spark.executor.syncLogLevel.enabled": "true",
    # A stop in the middle of a batch waits no longer for a sink that does not return; by default it would for ever.
    "spark.sql.streaming.stopTimeout": "2s",
    # The journal's batch reads take conditions of queries (`pushed`).
    "spark.sql.python.filterPushdown.enabled": "true",
    # Small batches: a rename instead of a copy. (Not with RawLocalFileSystem: RocksDB's snapshots then fail to upload.)
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_HADOOP_UMASK = "spark.hadoop.fs.permissions.umask-mode"
_FIXED = {
    "spark.sql.debug.maxToStringFields": "10000",  # plans are compared as text: all of it
    "spark.sql.session.timeZone": "UTC",  # periods are computed with functions that are right in UTC only
}


def start_session(
    name: str,
    scratch: Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    lease: int | None = None,
    cluster_s_max: float = 60.0,
) -> SparkSession:
    """Start the JVM and a session on it, with the journal registered as a source.

    Spark's own output goes to `driver.log` in the scratch folder. `lease` is a file descriptor that the JVM holds on to
    for as long as it lives. On a cluster it returns once there is an executor; ClusterAway if no master answers, or
    none has an executor in time.
    """
    check_reachable(master)
    fixed = [name for name in conf or {} if name in _FIXED and (conf or {})[name] != _FIXED[name]]
    if fixed:
        raise SettingInvalid(
            f"Spark's setting {fixed[0]} is {_FIXED[fixed[0]]} in Stateside, and nothing else", next_step="Leave it out"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    settings = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
    folders = {"spark.local.dir": str(scratch / "local"), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    folders |= {_HADOOP_UMASK: f"{current_umask():03o}"}  # Hadoop sets the modes of its files itself, by default 022
    given = RunSettings().spark_conf() if conf is None else conf
    settings.setAll(list((_DEFAULTS | cluster_conf(master) | folders | given | _FIXED).items()))
    with _environment(java_environment() | worker_environment(master)):
        context = _start_context(settings, scratch / DRIVER_LOG, lease)
    session = SparkSession(context)
    try:
        if masters_of(master):
            _await_executor(context, scratch / DRIVER_LOG, cluster_s_max)
    except BaseException:
        stop_session(session)
        raise
    session.dataSource.register(JournalSource)
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM, and wait until that has ended: nothing is left running."""
    with suppress(Py4JError, OSError):  # the JVM may be gone already
        session.stop()
    _end_jvm()
    SparkContext._active_spark_context = None  # without a JVM PySpark keeps it, and would start no other
    SparkSession._instantiatedSession = None


def jvm_pid(session: SparkSession) -> int | None:
    """The process of the JVM of a session that `start_session` made; None if it has ended."""
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    return process.pid if process.poll() is None else None


def has_ended(session: SparkSession | None) -> bool:
    """Whether a session has lost its JVM; no session has lost none."""
    return session is not None and jvm_pid(session) is None


def _end_jvm() -> None:
    gateway = SparkContext._gateway
    assert gateway is not None, "a session that start_session made"
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when this pipe does
    try:
        gateway.proc.wait(JVM_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def _start_context(settings: SparkConf, log: Path, lease: int | None) -> SparkContext:
    with log.open("ab") as output:
        popen = {"stdout": output, "stderr": output, "pass_fds": () if lease is None else (lease,)}
        try:
            gateway = launch_gateway(settings, popen)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise PipelineFailed(
                "Spark did not start", where=str(log), next_step="Read that log, then try `stateside doctor`"
            ) from error
    if lease is not None:
        note_holder(lease, os.getpid(), gateway.proc.pid)
    try:
        context = SparkContext(conf=settings, gateway=gateway)
    except Py4JError as error:
        SparkContext._gateway = gateway
        _end_jvm()
        raise _no_context(settings, log, error) from error
    context.setLogLevel("WARN")
    server = context._accumulatorServer  # would print a stack trace when the JVM dies
    server.handle_error = _log_broken_connection  # type: ignore[method-assign, assignment]
    return context


def _no_context(settings: SparkConf, log: Path, error: Py4JError) -> PipelineFailed | ClusterAway:
    """Why Spark has started, and is no driver all the same. Of a cluster that did not take it Spark tells little."""
    master = settings.get("spark.master") or ""
    if masters_of(master):
        return ClusterAway(
            f"No master at {master} took this driver: {reason(error)}",
            where=str(log),
            next_step="See whether that is the address of Spark's masters (not of their pages), and whether one leads",
        )
    return PipelineFailed(
        f"Spark did not start: {reason(error)}", where=str(log), next_step="Read that log, then try `stateside doctor`"
    )


def _await_executor(context: SparkContext, log: Path, wait_s: float) -> None:
    """Until the cluster has given an executor. Without one Spark would wait for ever, and say so in its log only."""
    told, deadline = context._jsc.sc(), time.monotonic() + wait_s
    while told.getExecutorMemoryStatus().size() < 2:  # the driver is one of them
        if time.monotonic() > deadline:
            conf = context.getConf()
            memory, cores = conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", "1")
            raise ClusterAway(
                f"The cluster at {context.master} has given no executor within {wait_s:g} s: each needs {memory} of a "
                f"worker's memory and {cores} of its cores, free",
                where=str(log),
                next_step="Start a worker, or end what takes its room, or let executors be smaller:"
                " --spark spark.executor.memory=512m",
            )
        time.sleep(_LOOK_S)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in this process's environment for a while: Spark's launcher takes them from nowhere else."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _log_broken_connection(request: object, address: object) -> None:
    log.info("a connection of Spark's broke: %s", address, exc_info=True)
