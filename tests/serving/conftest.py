"""A folder that Spark has worked on and left, and a real server on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from stateside.billing.generator import Generator
from stateside.layout import Layout
from stateside.processes import Child, free_port
from stateside.testing import append, run_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def billing_folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Three customers, one month sealed and one open; the job is down."""
    from stateside.billing.pipeline import app

    layout = Layout(tmp_path_factory.mktemp("billing"))
    arrivals = Generator(seed=2, customers=3, events_per_month=10).arrivals()
    append(layout, [next(arrivals).event for _ in range(60)])
    run_to(app, layout, spark)
    return layout


@pytest.fixture(scope="session")
def server(billing_folder: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `stateside serve` on that folder."""
    yield from serving(billing_folder, tmp_path_factory.mktemp("logs") / "server.log")


def serving(layout: Layout, log: Path) -> Iterator[str]:
    """Start a server as a process, wait until it answers, and stop it in the end."""
    import sys

    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)]
    child = Child(command, log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url, child)
        yield url
    finally:
        child.stop()


def wait_until_it_answers(url: str, child: Child) -> None:
    deadline = time.monotonic() + 30
    while child.returncode() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/v1/customers/c0/bill").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the server does not answer: {child.tail()}")
