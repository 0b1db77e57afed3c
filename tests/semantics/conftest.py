"""The parts of a semantics test. The Spark session comes from `tests/conftest.py`, as the runner starts it.

The facts are Spark's and change with it alone: `make test-full` runs all of them, and so does `make test` with another
Spark than the one that they were last seen with.
"""

from pathlib import Path

import pytest
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from tests.sizes import FULL

from .harness import Feed, Lab

SEEN_WITH = "4.2.0"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the facts to `make test-full`, unless Spark is another one, or they were asked for by name."""
    asked_for = any("semantics" in argument for argument in config.args)
    if FULL or asked_for or spark_version != SEEN_WITH:
        return
    left = [item for item in items if item.path.parent == HERE and item.get_closest_marker("spark")]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """Runs streaming queries against one checkpoint folder of this test."""
    return Lab(spark, tmp_path)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """A stream whose batches the test writes, one after the other."""
    return Feed(spark, tmp_path / "feed")
