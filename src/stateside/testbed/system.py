"""The infrastructure of a demo or a chaos scenario: its journal, on files or on Kafka, and its Spark master."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from stateside.core.layout import Layout
from stateside.journal.backends.kafka import KafkaJournal, create_topic
from stateside.journal.backends.kafka.topic_folder import place
from stateside.testbed.broker import Broker
from stateside.testbed.cluster import Cluster

JournalKind = Literal["files", "kafka"]
TOPIC = "billing"
_ON_FILES = "stateside.billing.pipeline:app"
_ON_KAFKA = "stateside.billing.pipeline.on_kafka:app"


class Ground:
    """The application to run and its flags; the broker and the cluster, where there are any."""

    def __init__(self, application: str, cluster: Cluster | None, broker: Broker | None = None) -> None:
        self.application = application
        self.flags = ("--master", cluster.address) if cluster else ()
        self.restarts = 0
        self.cluster, self.broker = cluster, broker

    def supervise(self, held: Collection[str] = ()) -> None:
        """Restart ended parts of the cluster, except parts that a fault holds down."""
        if self.cluster is None:
            return
        for name in (each for each in self.cluster.ended() if each not in held):
            self.cluster.restart(name)
            self.restarts += 1

    def unexplained(self, held: Collection[str] = ()) -> list[str]:
        """Parts that ended without a fault."""
        told = [f"Parts of the cluster ended {self.restarts} times by themselves"] if self.restarts else []
        ended = [] if self.cluster is None else [name for name in self.cluster.ended() if name not in held]
        ended += ["the broker"] if self.broker is not None and not self.broker.runs() else []
        return told + [f"{name} is not running at the end" for name in ended]


@contextmanager
def prepared(
    layout: Layout, journal: JournalKind, *, cluster: bool, tell: Callable[[str], None], folder: Path | None = None
) -> Iterator[Ground]:
    """Start the broker and cluster, in a folder (by default the application's), and stop them at the end.

    An earlier demo's folder is continued.
    """
    with ExitStack() as stack:
        beside, broker = folder or layout.root, None
        if journal == "kafka":
            tell("Starting a Kafka broker …")
            broker = stack.enter_context(Broker(beside / "kafka"))
            _have_topic(layout, broker)
            tell(f"The journal is the topic {TOPIC} at {broker.address}.")
        running = stack.enter_context(_cluster(beside / "cluster", tell)) if cluster else None
        yield Ground(_ON_KAFKA if journal == "kafka" else _ON_FILES, running, broker)


@contextmanager
def _cluster(folder: Path, tell: Callable[[str], None]) -> Iterator[Cluster]:
    tell("Starting a Spark cluster …")
    with Cluster(folder) as running:
        masters, workers = (sum(name.startswith(kind) for name in running.parts) for kind in ("master", "worker"))
        tell(f"Spark runs on {workers} workers with {masters} masters, of which one leads: {running.address}.")
        yield running


def _have_topic(layout: Layout, broker: Broker) -> None:
    """Make the topic the folder's journal, at the broker's present address."""
    topic = place(layout.journal, f"kafka://{broker.address}/{TOPIC}")
    with KafkaJournal(topic) as found:
        if found.id() is None:
            create_topic(topic, partitions=1)
