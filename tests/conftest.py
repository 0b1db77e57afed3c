"""Fixtures for all rooms. There is one Spark session a test run; whoever needs it marks the test with `spark`."""

from __future__ import annotations

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

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
LONG_S_MAX = 300.0  # a long test without a `timeout` of its own: pytest's setting
APART = ("tests/e2e/test_chaos.py", "tests/e2e/test_demo.py", "tests/oracle/")  # long, and share the session alone


def pytest_collection_finish() -> None:
    """Modules and collected tests stay for the whole run: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()


class SchedulingByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests run in one process, in order; tests of `APART` run wherever a process is free."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def _scope(nodeid: str) -> str:
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)  # pytest runs without xdist too
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SchedulingByFile | None:
    return SchedulingByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first: the processes share the files, and the many short ones let them end together.

    A test with a high `timeout` may be longer than any other, and begins first.
    """
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        if LONG & {mark.name for mark in item.iter_markers()}:
            timeout = item.get_closest_marker("timeout")
            long_s = float(timeout.args[0]) if timeout else LONG_S_MAX
            seconds[_scope(item.nodeid)] = max(seconds[_scope(item.nodeid)], long_s)
    items.sort(key=lambda item: -seconds[_scope(item.nodeid)])


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
