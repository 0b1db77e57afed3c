"""The parts of a semantics test. The Spark session comes from `tests/conftest.py`, as the runner starts it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .harness import Feed, Lab


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """Runs streaming queries against one checkpoint folder of this test."""
    return Lab(spark, tmp_path)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """A stream whose batches the test writes, one after the other."""
    return Feed(spark, tmp_path / "feed")
