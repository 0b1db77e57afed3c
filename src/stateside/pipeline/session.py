"""The Spark session: one JVM, started with what Stateside relies on."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from stateside.errors import PipelineFailed, SettingInvalid
from stateside.pipeline.java import java_environment
from stateside.pipeline.lease import note_holder
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.source import JournalSource

log = logging.getLogger(__name__)

DRIVER_LOG = "driver.log"
JVM_STOP_S_MAX = 10.0

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
    # A stop in the middle of a batch waits no longer for a sink that does not return; by default it would for ever.
    "spark.sql.streaming.stopTimeout": "2s",
    # The journal's batch reads take conditions of queries (`pushed`).
    "spark.sql.python.filterPushdown.enabled": "true",
    # Small batches: a rename instead of a copy. (Not with RawLocalFileSystem: RocksDB's snapshots then fail to upload.)
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_FIXED = {
    "spark.sql.debug.maxToStringFields": "10000",  # plans are compared as text: all of it
    "spark.sql.session.timeZone": "UTC",  # periods are computed with functions that are right in UTC only
}


def start_session(
    name: str, scratch: Path, *, master: str = "local[2]", conf: dict[str, str] | None = None, lease: int | None = None
) -> SparkSession:
    """Start the JVM and a session on it, with the journal registered as a source.

    Spark's own output goes to `driver.log` in the scratch folder. `lease` is a file descriptor that the JVM holds on to
    for as long as it lives.
    """
    fixed = [name for name in conf or {} if name in _FIXED and (conf or {})[name] != _FIXED[name]]
    if fixed:
        raise SettingInvalid(
            f"Spark's setting {fixed[0]} is {_FIXED[fixed[0]]} in Stateside, and nothing else", next_step="Leave it out"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    settings = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
    folders = {"spark.local.dir": str(scratch / "local"), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    settings.setAll(
        list((_DEFAULTS | folders | (RunSettings().spark_conf() if conf is None else conf) | _FIXED).items())
    )
    with _environment(java_environment()):
        context = _start_context(settings, scratch / DRIVER_LOG, lease)
    session = SparkSession(context)
    session.dataSource.register(JournalSource)
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM, and wait until that has ended: nothing is left running."""
    gateway = SparkContext._gateway
    assert gateway is not None, "a session that start_session made"
    with suppress(Py4JError, OSError):  # the JVM may be gone already
        session.stop()
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
    context = SparkContext(conf=settings, gateway=gateway)
    context.setLogLevel("WARN")
    server = context._accumulatorServer  # would print a stack trace when the JVM dies
    server.handle_error = _log_broken_connection  # type: ignore[method-assign, assignment]
    return context


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
