"""Journals on Kafka at the command line, and a local broker to try them."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.dev import dev_cluster
from stateside.cli.group import FOLDER
from stateside.cli.tables import show_json
from stateside.core.errors import SettingInvalid, SetupError

if TYPE_CHECKING:
    from stateside.journal import Journal
    from stateside.journal.backends.kafka import KafkaJournal, Topic
    from stateside.journal.queries import QueryViews
    from stateside.testbed.broker import Broker

_LOOK_S = 0.5

kafka_option = click.option("--kafka", metavar="ADDRESS", help="A journal on Kafka: kafka://localhost:9092/orders.")


def journal_place(command: Callable[..., None]) -> Callable[..., None]:
    """The flags for a journal: an application's, or one on Kafka, with an optional folder for its indexes."""
    folder = click.option("--dir", "folder", type=FOLDER, help="The application's folder; needed unless --kafka is.")
    return folder(kafka_option(command))


def journal_at(folder: Path | None, kafka: str | None) -> Journal:
    """The named journal: on Kafka, at an address, or an application's. A topic's partitions are named by numbers."""
    from stateside.core.layout import Layout
    from stateside.journal import open_journal
    from stateside.journal.backends.kafka import KafkaJournal
    from stateside.journal.backends.kafka.topic import topic_at

    if kafka is not None:
        topic = topic_at(kafka)
        return KafkaJournal(topic, folder and beside(folder, topic, "index"))
    if folder is None:
        raise click.UsageError("Missing option '--dir', or '--kafka'.")
    journal = open_journal(Layout(folder).journal)
    return KafkaJournal(journal.topic) if isinstance(journal, KafkaJournal) else journal


def beside(folder: Path, topic: Topic, what: str) -> Path:
    """The place of a topic's files in an application's folder."""
    return folder / "kafka" / topic.name / what


@contextmanager
def query_views(folder: Path | None, kafka: str | None) -> Iterator[QueryViews]:
    """The indexes of the named journal. On Kafka without a folder they are empty, and queries read the topic itself."""
    from stateside.core.layout import Layout
    from stateside.journal.admin import JournalFiles
    from stateside.journal.backends.kafka import KafkaJournal
    from stateside.journal.queries import QueryViews

    with ExitStack() as stack:
        journal = stack.enter_context(journal_at(folder, kafka))
        if isinstance(journal, KafkaJournal):
            root = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else folder
            views = beside(root, journal.topic, "views")
        else:
            assert folder is not None, "it has the journal"
            views = JournalFiles.of(Layout(folder).journal).views
        yield stack.enter_context(QueryViews(journal, views))


def kafka_statistics(journal: KafkaJournal) -> dict[str, Any]:
    """The output of `stat` for a journal on Kafka. Offsets exceed events, because transactions take offsets too."""
    begin, end = journal.begin(), journal.end()
    return {
        "journal": journal.id(),
        "topic": journal.topic.name,
        "partitions": len(journal.partitions()),
        "begin": str(begin),
        "end": str(end),
        "offsets": end.events() - begin.events(),
    }


@click.command()
@click.argument("address")
@click.option("--partitions", required=True, type=click.IntRange(1), help="How many, for good.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the Kafka topic.")
@click.option("--dir", "folder", type=FOLDER, help="This application's folder has its journal there from now on.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def create(address: str, partitions: int, settings: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Create the topic of a new journal on Kafka, like kafka://localhost:9092/orders.

    Events are kept for ever, unless a setting says otherwise. An entity keeps its partition for good, so the number of
    partitions cannot be changed later: choose the number of processes that will write, or tasks that will read, at a
    time. Billing needs one order of all events, and so one partition.

    With --dir an existing topic is accepted, so the same command may be repeated, also on other machines.
    """
    from stateside.core.layout import Layout
    from stateside.journal.backends.kafka import create_topic
    from stateside.journal.backends.kafka.topic import topic_at
    from stateside.journal.backends.kafka.topic_folder import place, placeable

    if bad := [text for text in settings if "=" not in text]:
        raise SettingInvalid(f"{bad[0]!r} is no setting of a topic", next_step="Write --set retention.ms=86400000")
    if folder is not None:
        placeable(Layout(folder).journal, address)
        if partitions != 1:
            raise SettingInvalid(
                f"The journal of a folder has one order, and so one partition, not {partitions}",
                next_step="Give --partitions 1, or leave --dir out",
            )
    described = create_topic(
        topic_at(address),
        partitions=partitions,
        settings=dict(text.split("=", 1) for text in settings),
        exists_ok=folder is not None,
    )
    if folder is not None:
        place(Layout(folder).journal, address)
    if as_json:
        show_json({"journal": described.id, "partitions": described.partitions})
    else:
        click.echo(f"{described.id}, {described.partitions} partitions")


@click.group()
def dev() -> None:
    """Start local parts that an application needs, to try things."""


dev.add_command(dev_cluster)


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
        _watch(broker)


def _watch(broker: Broker) -> None:
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
