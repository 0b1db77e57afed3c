"""Fixtures for all rooms. There is one Spark session a test run; whoever needs it marks the test with `spark`."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from stateside.core.layout import Layout
from tests import quick_java
from tests.sizes import FULL, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateside.testbed.broker import Broker

settings.register_profile(
    "stateside",
    deadline=None,  # no timed tests: this machine is noisy
    max_examples=examples(40, 200),
    derandomize=not FULL,  # `make test` tries the same every time, `make test-full` others at every run
    print_blob=True,  # with it one that failed can be run again, see `reproduce_failure`
)
settings.load_profile("stateside")

# A shell starts what runs in its background with Ctrl-C ignored, and so would be every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

quick_java.set_options(os.environ)


LONG = frozenset({"spark", "e2e", "network"})


def pytest_collection_finish() -> None:
    """Modules and collected tests stay for the whole run: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first: two processes share the files, and the many short ones let them end together."""
    long = {item.path for item in items if LONG & {mark.name for mark in item.iter_markers()}}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """Commands that a test calls in this process make files private from then on: not those of other tests."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one real Spark session, as the runner starts it."""
    from stateside.testing import session

    with session(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one real Kafka broker, for tests with topics of their own. Its jars are fetched: mark them with `network`."""
    from stateside.testbed.broker import Broker

    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The folder of an application that has not run yet."""
    return Layout(tmp_path / "application")
