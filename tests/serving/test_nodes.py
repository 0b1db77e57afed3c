"""Reading one's own event where several nodes write: a receipt of a node is a floor like any other."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stateside
from stateside.core.errors import NotFreshEnough, PositionAhead
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter
from stateside.journal.backends.nodes.ownership import slot_of
from stateside.serving.clients import Client
from stateside.serving.rows.floor import sought
from tests.waiting import wait_until

from .conftest import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def merging(folder: Path) -> Iterator[None]:
    """A merger that runs meanwhile."""
    stop = threading.Event()
    with Merger(folder, partitions=2) as merger:
        thread = threading.Thread(target=merger.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.mark.spark
def test_each_writer_reads_its_own_event_whichever_node_took_it(spark: SparkSession, tmp_path: Path) -> None:
    from stateside.pipeline.runner import Runner

    app = stateside.App("shop", fields="cents long")

    @app.view(key=["entity"])
    def spent(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg({"cents": "sum"}).withColumnRenamed("sum(cents)", "cents")

    layout = Layout(tmp_path / "shop")
    with ExitStack() as stack:
        nodes = [stack.enter_context(NodeWriter(layout.journal, name)) for name in ("hamburg", "bremen")]
        for node in nodes:
            node.append([Event(f"{node.name}-0", f"of-{node.name}", "order", 0, {"cents": 1})])
        merger = stack.enter_context(ExitStack())
        merger.enter_context(merging(layout.journal))
        stack.enter_context(Runner(app, layout, session=spark))
        path = "/v1/views/spent/rows/of-bremen"
        url = stack.enter_context(contextmanager(serving)(layout, tmp_path / "server.log", path))
        client = stack.enter_context(Client(url))
        for number in range(1, 4):
            for node in nodes:
                event = Event(f"{node.name}-{number}", f"of-{node.name}", "order", 0, {"cents": 1})
                receipt = node.append([event])
                answer = client.rows("spent", f"of-{node.name}", min_position=receipt, wait_ms=30_000)
                assert answer.rows[0]["cents"] == number + 1
                position = Position.parse(answer["stamp"]["position"])
                assert position.covers(receipt) and position.events() > 0
                assert {"0", "1"} & set(position.as_dict()), "the stamp has both: the stream's position and the logs'"
        for number in (1, 2):
            receipt = client.append([Event(f"http-{number}", "of-server", "order", 0, {"cents": 1})])
            answer = client.rows("spent", "of-server", min_position=receipt, wait_ms=30_000)
            assert answer.rows[0]["cents"] == number
        fresh = client.rows("spent", "of-bremen", max_age_ms=5_000, wait_ms=30_000)
        assert fresh["stamp"]["age_basis"] == "heartbeat"
        with pytest.raises(PositionAhead, match=r"bremen\.1 ends at 4"):
            client.rows("spent", "of-bremen", min_position=Position.of({"bremen.1": 5}))
        merger.close()
        receipt = nodes[0].append([Event("late", "of-hamburg", "order", 0, {"cents": 1})])
        with pytest.raises(NotFreshEnough, match=r"hamburg\.1:5 was asked for"):
            client.rows("spent", "of-hamburg", min_position=receipt, wait_ms=300)
        time.sleep(1)
        with pytest.raises(
            NotFreshEnough, match=" old, and max_age_ms="
        ):  # what was acknowledged waits to be merged: it is not fresh
            client.rows("spent", "of-hamburg", max_age_ms=500, wait_ms=100)


def test_a_receipt_behind_an_event_that_waits_to_be_merged_is_looked_up(tmp_path: Path) -> None:
    """Emma moved from one node to the other, whose log has her second event before otto's. Her first one is away."""
    with NodeWriter(tmp_path, "a") as a, NodeWriter(tmp_path, "b") as b:
        a.append([Event("e1", "emma", "call", 0, {})])
        a.release([slot_of("emma")])
        waiting = b.append([Event("e2", "emma", "call", 0, {})])
        otto = b.append([Event("o1", "otto", "call", 0, {})])
    (tmp_path / "nodes" / "a").rename(tmp_path / "away")
    with Merger(tmp_path, partitions=2) as merger:
        assert merger.merge() == 1
    (tmp_path / "away").rename(tmp_path / "nodes" / "a")
    stored = MergedJournal(tmp_path)
    here = stored.end().joined(stored.sources(stored.end().as_dict()))
    assert not here.covers(otto), "what the batch says of the logs ends before emma's event"
    assert MergedJournal(tmp_path).covers(otto)
    found, not_found = (pickle.loads(pickle.dumps(sought(tmp_path, receipt))) for receipt in (otto, waiting))
    assert not found.covered_by(here), "it is looked up aside"
    wait_until(lambda: found.covered_by(here))
    assert not found.covered_by(Position.start())
    not_found.covered_by(here)
    time.sleep(0.3)
    assert not not_found.covered_by(here)
    with Merger(tmp_path, partitions=2) as merger:
        merger.merge()
    end = MergedJournal(tmp_path).end()
    wait_until(lambda: not_found.covered_by(end))


def test_positions_of_other_sources_are_not_judged(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as a:
        receipt = a.append([Event("1", "emma", "call", 0, {})])
    assert sought(tmp_path, Position.of({"calls-0": 10**9})) is None
    assert sought(tmp_path / "nothing", receipt) is None
    both = sought(tmp_path, receipt.joined(Position.of({"calls-0": 7})))
    assert both is not None
    assert not both.covered_by(receipt)
    assert both.covered_by(receipt.joined(Position.of({"calls-0": 7})))
