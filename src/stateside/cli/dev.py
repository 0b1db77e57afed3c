"""`stateside dev`: a local Spark cluster, or a local Kafka broker, to try things."""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.group import FOLDER
from stateside.core.errors import SetupError

if TYPE_CHECKING:
    from stateside.testbed.broker import Broker
    from stateside.testbed.cluster import Cluster

_LOOK_S = 0.5


@click.group()
def dev() -> None:
    """Start local parts that an application needs, to try things."""


@dev.command(name="cluster")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="How many.")
@click.option(
    "--masters", default=2, show_default=True, type=click.IntRange(1, 5), help="One leads, the others stand by."
)
@click.option("--cores", default=1, show_default=True, type=click.IntRange(1), help="Of each worker.")
@click.option("--memory", default="1g", show_default=True, help="Of each worker, for executors: 512m, 2g.")
@click.option("--folder", type=FOLDER, help="Keep logs and state here; else they are thrown away.")
def dev_cluster(workers: int, masters: int, cores: int, memory: str, folder: Path | None) -> None:
    """Run a Spark cluster until Ctrl-C or SIGTERM: masters, with ZooKeeper if several, and workers, for this machine.

    Each part is a process of its own, which you may kill to see what happens; ended parts are reported.
    """
    from stateside.testbed.cluster import Cluster

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stateside-cluster-")))
        cluster = Cluster(place, masters=masters, workers=workers, worker_cores=cores, worker_memory=memory)
        click.echo("Starting a Spark cluster …", err=True)
        stack.enter_context(cluster)
        click.echo(f"stateside run APPLICATION --dir FOLDER --master {cluster.address}")
        for name in cluster.parts:
            click.echo(f"{name}: process {cluster.pid(name)}, log {cluster.log(name)}", err=True)
        click.echo(f"{cluster.leader()} leads. Ctrl-C ends it.", err=True)
        _watch_cluster(cluster)


def _watch_cluster(cluster: Cluster) -> None:
    """Report each part that ends, until Ctrl-C."""
    told: set[str] = set()
    while True:
        for name in cluster.parts:
            if name not in told and not cluster.runs(name):
                told.add(name)
                click.echo(f"{name} has ended: {cluster.last_words(name)}", err=True)
        time.sleep(_LOOK_S)


@dev.command(name="kafka")
@click.option("--folder", type=FOLDER, help="Keep its data here, or go on with what is here; else it is thrown away.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Listen on this port of the loopback interface.")
@click.option("--topic", help="Create a journal of this name, unless it is there.")
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1), help="Of that journal.")
def dev_kafka(folder: Path | None, port: int | None, topic: str | None, partitions: int) -> None:
    """Run a Kafka broker until Ctrl-C or SIGTERM: one node, for this machine only. The first time fetches its jars.

    If the broker ends by itself, so does the command, with the reason.
    """
    from stateside.testbed.broker import Broker

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.echo("Starting a Kafka broker …", err=True)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stateside-kafka-")))
        broker = stack.enter_context(Broker(place.absolute(), port=port))
        name = topic or "orders"
        if topic is not None:
            _create_unless_there(broker.address, topic, partitions)
        else:
            click.echo(f"stateside journal create kafka://{broker.address}/{name} --partitions 1")
        click.echo(f"stateside journal append --kafka kafka://{broker.address}/{name} --dir FOLDER FILE")
        click.echo(f"stateside journal read --kafka kafka://{broker.address}/{name} --follow")
        click.echo(f"Kafka listens at {broker.address}. Ctrl-C ends it.", err=True)
        _watch_broker(broker)


def _watch_broker(broker: Broker) -> None:
    """Wait for Ctrl-C; SetupError if the broker ends by itself."""
    while broker.runs():
        time.sleep(_LOOK_S)
    raise SetupError(
        f"The Kafka broker has ended; its last words: {broker.last_words()}",
        next_step="Start it again, with the same --folder if it has one: it goes on with what is there",
    )


def _create_unless_there(servers: str, name: str, partitions: int) -> None:
    from stateside.journal.backends.kafka import KafkaJournal, Topic, create_topic

    with KafkaJournal(Topic(servers, name)) as journal:
        if journal.id() is None:
            create_topic(journal.topic, partitions=partitions)
        elif len(journal.partitions()) != partitions:
            click.echo(f"{name} is there already, with {len(journal.partitions())} partitions.", err=True)
