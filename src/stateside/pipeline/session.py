"""The Spark session: one JVM with the settings that Stateside relies on, and a fast launcher for Python workers.

Spark puts its own copy of PySpark first on its workers' path: a zip file of sources, which Python compiles again in
each process. Workers are short-lived, and one starts with every query: one second each, two thirds of it compilation.
So a *launcher*, a script that takes the zip files off the path, starts the workers; they then import the driver's
packages.

    <prefix>/share/stateside/python-<checksum of the script>/python
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from stateside.core.errors import ClusterAway, PipelineFailed, SettingInvalid
from stateside.core.lease import note_holders
from stateside.core.processes import current_umask
from stateside.core.wait import wait_until
from stateside.pipeline.failures import reason
from stateside.pipeline.java import java_environment, launcher_folder, write_whole
from stateside.pipeline.journal_source import JournalSource
from stateside.pipeline.master import check_reachable, cluster_conf, masters_of
from stateside.pipeline.settings import RunSettings
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS

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
    """Environment variables for launching a JVM whose workers start quickly.

    Empty where workers may run on other machines, which lack the launcher, or belong to another Spark than the
    installed one.
    """
    environ = os.environ if environ is None else environ
    if not master.startswith("local") or "SPARK_HOME" in environ:
        return {}
    return {"PYSPARK_PYTHON": str(write_launcher(launchers or launcher_folder()))}


def write_launcher(folder: Path) -> Path:
    """The launcher below `folder`, written if missing. Safe for concurrent processes."""
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
    # State: RocksDB with changelogs, files with unique ids.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    f"{_STATE}.checkpointFormatVersion": "2",
    # Executors log as little as the driver; by default they log some lines for each task.
    "spark.executor.syncLogLevel.enabled": "true",
    # A stop inside a batch waits 2 s for a sink that does not return; by default without end.
    "spark.sql.streaming.stopTimeout": "2s",
    # The journal's batch reader accepts predicates (`JournalBatchReader.pushFilters`).
    "spark.sql.python.filterPushdown.enabled": "true",
    # For small batches: a rename instead of a copy. (With RawLocalFileSystem RocksDB's snapshots fail to upload.)
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_SECRET = "spark.authenticate.secret"
_HADOOP_UMASK = "spark.hadoop.fs.permissions.umask-mode"
_FIXED = {
    "spark.sql.debug.maxToStringFields": "10000",  # plans are compared as text, so no part may be cut
    "spark.sql.session.timeZone": "UTC",  # periods are computed with functions that are correct only in UTC
}


def start_session(
    name: str,
    scratch: Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    lease: int | None = None,
    further: tuple[int, ...] = (),
    cluster_s_max: float = 60.0,
) -> SparkSession:
    """Start the JVM and a session on it, with the journal registered as a source.

    Spark's own output goes to `driver.log` in the scratch folder. `lease` is a file descriptor that the JVM holds for
    its lifetime, as it does the `further` ones: a lock that this process takes on one of these later is the JVM's as
    well. On a cluster the call returns once there is an executor; ClusterAway if no master answers, or none
    provides an executor in time. New states get as many partitions as there are cores by then, unless `conf` has a
    number.
    """
    check_reachable(master)
    fixed = [name for name in conf or {} if name in _FIXED and (conf or {})[name] != _FIXED[name]]
    if fixed:
        raise SettingInvalid(
            f"Spark's setting {fixed[0]} is {_FIXED[fixed[0]]} in Stateside, and nothing else", next_step="Leave it out"
        )
    if _SECRET in (conf or {}):
        raise SettingInvalid(
            f"Spark's setting {_SECRET} would be in the process list, which every user of the machine can read",
            next_step="Write it into spark-defaults.conf, in a folder that SPARK_CONF_DIR names (docs/deployment.md)",
        )
    scratch.mkdir(parents=True, exist_ok=True)
    settings = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
    folders = {"spark.local.dir": str(scratch / "local"), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    folders |= {_HADOOP_UMASK: f"{current_umask():03o}"}  # Hadoop sets file modes itself, by default with umask 022
    given = RunSettings().spark_conf() if conf is None else conf
    settings.setAll(list((_DEFAULTS | cluster_conf(master) | folders | given | _FIXED).items()))
    with _environment(java_environment() | worker_environment(master)):
        context = _start_context(settings, scratch / DRIVER_LOG, lease, further)
    session = SparkSession(context)
    try:
        if masters_of(master):
            _await_executor(context, scratch / DRIVER_LOG, cluster_s_max)
        if not settings.contains(SHUFFLE_PARTITIONS):
            session.conf.set(SHUFFLE_PARTITIONS, cores(session))
    except BaseException:
        stop_session(session)
        raise
    session.dataSource.register(JournalSource)
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM, and wait for the end of the JVM: nothing is left running."""
    with suppress(Py4JError, OSError):  # the JVM may be gone already
        session.stop()
    _end_jvm()
    SparkContext._active_spark_context = None  # without a JVM PySpark keeps the context, and would start no other
    SparkSession._instantiatedSession = None


def cores(session: SparkSession) -> int:
    """How many tasks run at the same time, now: executors of a cluster come and go."""
    return session.sparkContext.defaultParallelism


def task_figures(session: SparkSession) -> dict[str, int]:
    """The milliseconds that tasks have taken so far on all executors, and those of them in garbage collection."""
    executors = session.sparkContext._jsc.sc().statusStore().executorList(True)
    each = [executors.apply(number) for number in range(executors.size())]
    return {"taskMs": sum(e.totalDuration() for e in each), "gcMs": sum(e.totalGCTime() for e in each)}


@contextmanager
def session_conf(session: SparkSession, conf: Mapping[str, str | int]) -> Iterator[None]:
    """These settings of the session for a while: a query keeps those of its start."""
    before = {name: session.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            session.conf.unset(name) if former is None else session.conf.set(name, former)


def jvm_pid(session: SparkSession) -> int | None:
    """The process id of the session's JVM; None if the JVM has ended."""
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    return process.pid if process.poll() is None else None


def has_ended(session: SparkSession | None) -> bool:
    """Whether the session has lost its JVM; False without a session."""
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


def _start_context(settings: SparkConf, log: Path, lease: int | None, further: tuple[int, ...]) -> SparkContext:
    with log.open("ab") as output:
        held = further if lease is None else (lease, *further)
        popen = {"stdout": output, "stderr": output, "pass_fds": held}
        try:
            gateway = launch_gateway(settings, popen)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise PipelineFailed(
                "Spark did not start", where=str(log), next_step="Read that log, then try `stateside doctor`"
            ) from error
    if lease is not None:
        note_holders(lease, os.getpid(), gateway.proc.pid)
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
    """The error for a JVM that started but has no context.

    Spark reports little about a cluster that rejected the driver.
    """
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
    """Wait for an executor from the cluster. Spark itself would wait without end, and report it only in its log."""
    told = context._jsc.sc()
    if wait_until(lambda: told.getExecutorMemoryStatus().size() > 1, wait_s, _LOOK_S):  # the driver is one of them
        return
    conf = context.getConf()
    memory, cores = conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", "1")
    raise ClusterAway(
        f"The cluster at {context.master} has given no executor within {wait_s:g} s: each needs {memory} of a "
        f"worker's memory and {cores} of its cores, free",
        where=str(log),
        next_step="Start a worker, or end what takes its room, or let executors be smaller:"
        " --spark spark.executor.memory=512m",
    )


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in this process's environment for a while: Spark's launcher reads them only there."""
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
