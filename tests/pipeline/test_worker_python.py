"""The launcher of Spark's workers: this Python, with the installed PySpark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from stateside.pipeline.session import worker_environment, write_launcher

ASKED = "import json, os, sys; print(json.dumps([sys.executable, sys.argv[1:], os.environ['PYTHONPATH']]))"
OF_SPARK = [
    "/a b/python/lib/pyspark.zip",
    "/a b/python/lib/py4j-0.10.9.9-src.zip",
    "/a b/jars/spark-core_2.13-4.2.0.jar",
]


def asked(launcher: Path, *arguments: str, path: str | None) -> list[object]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {} if path is None else {"PYTHONPATH": path}
    done = subprocess.run([launcher, "-c", ASKED, *arguments], env=environ, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (":".join(OF_SPARK), ""),
        (":".join([*OF_SPARK, *OF_SPARK, "/my code", "/more/*"]), "/my code:/more/*"),
        ("/my/pyspark.zip:/python/lib/pyspark.zip.d", "/my/pyspark.zip:/python/lib/pyspark.zip.d"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_worker_runs_this_python_with_everything_on_its_path_but_what_spark_put_there(
    tmp_path: Path, path: str | None, kept: str
) -> None:
    launcher = write_launcher(tmp_path)
    assert asked(launcher, "a b", "*", "", path=path) == [sys.executable, ["a b", "*", ""], kept]


def test_many_may_write_the_launcher_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: write_launcher(tmp_path), range(32)))) == 1
    assert len(list(tmp_path.rglob("*"))) == 2, "a folder with one file, and nothing left over"


@pytest.mark.parametrize(("master", "environ"), [("spark://far:7077", {}), ("local[2]", {"SPARK_HOME": "/opt/spark"})])
def test_workers_of_other_machines_and_of_another_spark_are_started_as_spark_starts_them(
    tmp_path: Path, master: str, environ: dict[str, str]
) -> None:
    assert worker_environment(master, environ, launchers=tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_spark_s_workers_have_the_pyspark_that_the_driver_has(spark: SparkSession) -> None:
    def where(_: int) -> tuple[str, str]:
        import pyspark

        return pyspark.__file__, sys.executable

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [(pyspark.__file__, sys.executable)]
