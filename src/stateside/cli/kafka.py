"""The journal that a command names, an application's or one on Kafka; the creation of a journal on Kafka."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.group import FOLDER
from stateside.cli.tables import show_json
from stateside.core.errors import SettingInvalid

if TYPE_CHECKING:
    from stateside.journal import Journal
    from stateside.journal.backends.kafka import KafkaJournal, Topic
    from stateside.journal.queries import QueryViews

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
