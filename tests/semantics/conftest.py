"""One real Spark session for the folder, and fresh folders for each test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .harness import Feed, Lab, start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share. It needs the settings of `harness.SPARK_CONF`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = start_session("semantics")
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """Runs streaming queries against one checkpoint folder of this test."""
    return Lab(spark, tmp_path)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """A stream whose batches the test writes, one after the other."""
    return Feed(spark, tmp_path / "feed")
