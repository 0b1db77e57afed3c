"""How the JVMs that tests start are made quick: they live for seconds, and most of that would be warming up.

- Java's second compiler would take a third of all processor time and never earn it back: the first one is enough.
- Spark would write, compile and load Java code for each query: another fifth, for a handful of rows. It interprets its
  plans instead, except in `make test-full`.
- Spark's classes come from an archive (Java's class data sharing), parsed and checked already, not from 300 jars.

`python -m tests.quick_java` makes the archive where there is none; `tools/test.py` does so before it starts the tests.
Spark's launcher hands the options on to every JVM that it starts, whichever test starts it. A JVM that cannot use the
archive, another Java's say, goes without it.

    <prefix>/share/stateside/tests-spark-<its version>-java-<its version>.jsa
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping
from importlib.metadata import version
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
FULL = "STATESIDE_TEST_FULL" in os.environ
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
FOLDER = Path(sys.prefix) / "share" / "stateside"  # goes when Spark goes
NAME = f"tests-spark-{version('pyspark')}-java-"
STOP_S_MAX = 120.0  # writing 170 MB takes some seconds


def set_options(environ: MutableMapping[str, str]) -> None:
    """Have Spark's launcher start quick JVMs, unless somebody has said how."""
    archives = [f"-XX:SharedArchiveFile={archive} {SILENT}" for archive in FOLDER.glob(f"{NAME}*.jsa")]
    environ.setdefault("SPARK_SUBMIT_OPTS", " ".join([QUICK, *([] if FULL else [INTERPRETED]), *archives[:1]]))
    environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK)


def main() -> None:
    """Make the archive, unless the one of this Spark and this Java is there."""
    from stateside.pipeline.java import find_java

    archive = FOLDER / f"{NAME}{find_java().version}.jsa"
    if archive.exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for older in FOLDER.glob("tests-spark-*.jsa"):
        older.unlink()
    print("Keeping Spark's classes for the tests' JVMs: once, some 20 s", flush=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        made = Path(folder) / archive.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={made} {SILENT}"
        run_spark(Path(folder))
        if made.exists():
            made.replace(archive)
        else:
            print("This Java does not keep them: the tests take a little longer")


def run_spark(folder: Path) -> None:
    """A view with a state, read back by Spark: what nearly every test with Spark does. Then wait for the JVM's end."""
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    import stateside
    from stateside.core.layout import Layout
    from stateside.journal import Event
    from stateside.pipeline.session import start_session
    from stateside.testing import append, run_to

    app, layout = stateside.App("warm", fields="amount long"), Layout(folder / "warm")

    @app.view(key=["entity"])
    def spending(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").sum("amount")

    append(layout, [Event("one", "emma", "order", 0, {"amount": 1})])
    spark = start_session("warm", folder / "spark")
    gateway = SparkContext._gateway
    assert gateway is not None, "a session that start_session made"
    run_to(app, layout, spark)
    spark.read.format("statestore").load(str(layout.view("spending").checkpoint)).collect()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when this pipe does
    gateway.proc.wait(STOP_S_MAX)


if __name__ == "__main__":
    main()
