"""A folder that Spark has worked on and left, and a real server on it."""

from __future__ import annotations

import collections.abc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import stateside
from stateside.billing.generator import Generator, Shares, generate
from stateside.billing.generator.output import to_journal
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import Child, free_port
from stateside.journal import Event
from stateside.testing import append, run_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


GENERATOR = Generator(seed=2, customers=12, events_per_period=8, periods=2, shares=Shares(late=0.1, duplicate=0.05))


@pytest.fixture(scope="session")
def billing_folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Some customers, two months sealed and corrected, one open, duplicates and dead letters; the job is down."""
    from stateside.billing.pipeline import app

    layout = Layout(tmp_path_factory.mktemp("billing"))
    generate(GENERATOR, to_journal(layout.journal))
    first_late = next(offset for offset, arrival in enumerate(GENERATOR.arrivals()) if arrival.fate == "note")
    run_to(app, layout, spark, Position.of({"0": first_late}))  # a batch of its own: that event's period is closed then
    run_to(app, layout, spark)
    return layout


@pytest.fixture(scope="session")
def server(billing_folder: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `stateside serve` on that folder."""
    yield from serving(billing_folder, tmp_path_factory.mktemp("logs") / "server.log")


STRANGE_NAMES = ["A", "%41", "a/b", "..", ".", "a b", "a+b", "ä?&=#", "a%2Fb", "'\"<>", "/"]


@pytest.fixture(scope="session")
def names_server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a view `orders` by names that mean something in addresses."""
    app = stateside.App("names")

    @app.view(key=["entity"])
    def orders(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").count()

    layout = Layout(tmp_path_factory.mktemp("names"))
    append(layout, [Event(f"{number}", name, "order", 0, {}) for number, name in enumerate(STRANGE_NAMES)])
    run_to(app, layout, spark)
    yield from serving(layout, tmp_path_factory.mktemp("logs") / "names.log", "/v1/views/orders/rows/A")


@pytest.fixture(scope="session")
def hours_server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a view `hourly`: of a lamp 1 impression in the first hour of 2026, 2 in the next, up to 5."""
    from pyspark.sql import functions as F

    app = stateside.App("impressions", fields="price string")

    @app.view(key=["item", "window"])
    def hourly(events: DataFrame) -> DataFrame:
        named = events.selectExpr("entity as item", "time", "cast(price as decimal(18,2)) as price")
        return named.groupBy("item", F.window("time", "1 hour")).agg(
            F.count("*").alias("seen"), F.sum("price").alias("paid"), F.avg("price").alias("mean")
        )

    layout = Layout(tmp_path_factory.mktemp("hours"))
    start_us, hour_us = 1_767_225_600_000_000, 3_600_000_000
    times = [start_us + hour * hour_us for hour in range(5) for _ in range(hour + 1)]
    append(layout, [Event(f"{n}", "lamp", "seen", time_us, {"price": "0.10"}) for n, time_us in enumerate(times)])
    run_to(app, layout, spark)
    yield from serving(layout, tmp_path_factory.mktemp("logs") / "hours.log", "/v1/views/hourly/rows/lamp")


def serving(
    layout: Layout, log: Path, path: str = "/v1/customers/c0/bill", *options: str
) -> collections.abc.Generator[str]:
    """Start a server as a process, wait until it answers, and stop it in the end."""
    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port), *options]
    child = Child(command, log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url + path, child)
        yield url
    finally:
        child.stop()


def wait_until_it_answers(url: str, child: Child) -> None:
    deadline = time.monotonic() + 90
    while child.returncode() is None and time.monotonic() < deadline:
        try:
            if httpx.get(url).status_code == 200:
                return
            time.sleep(0.1)
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the server does not answer: {child.tail()}")
