"""A folder whose journal is a Kafka topic: a file names the topic, and the folder's readers and writers use the topic.

    JOURNAL/topic.json      {"address": "kafka://localhost:9092/billing"}
    JOURNAL/index/, lock    of the writers (`shared_writer`)

For applications whose events have one order: such a journal has one partition. `TopicLog` reads the topic like a
journal on files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from stateside.core.errors import JournalAway, SettingInvalid
from stateside.core.positions import Position
from stateside.core.secrets import plain_secret
from stateside.core.storage import write_atomically
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import PARTITION, DurableEnd
from stateside.journal.backends.kafka.topic import Topic, topic_at
from stateside.journal.backends.kafka.topic_reader import KafkaJournal
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.topic_note import NAME as NAME

INDEX = "index"  # the writers' indexes of the topic, beside the note; may be deleted


def place(folder: Path, address: str) -> Topic:
    """Set the address of the folder's journal; the same topic may have moved to another address.

    SettingInvalid if the address is invalid or contains a secret, or the folder has a journal of its own.
    """
    topic = placeable(folder, address)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / NAME, json.dumps({"address": address}).encode())
    return topic


def placeable(folder: Path, address: str) -> Topic:
    """The topic at this address, as the folder's future journal; SettingInvalid as for `place`."""
    topic = topic_at(address)
    if segment.segment_offsets(folder):
        raise SettingInvalid(
            "This folder has a journal of its own already", where=str(folder), next_step="Use a new folder"
        )
    if plain := plain_secret(topic.options):
        raise SettingInvalid(
            f"The option {plain} would be written down, for everybody who may read that file",
            where=str(folder / NAME),
            next_step="Put it into an environment variable of all who use the folder, and write env:NAME",
        )
    return topic


def placed(folder: Path) -> Topic | None:
    """The topic that is the folder's journal; None for a journal on files. SettingInvalid if the file is damaged."""
    address = address_in(folder)
    return None if address is None else topic_at(address)


def address_in(folder: Path) -> str | None:
    """The address of the topic that is the folder's journal; None for a journal on files."""
    try:
        return str(json.loads((folder / NAME).read_bytes())["address"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise SettingInvalid(
            f"It cannot be read which topic is the journal: {error!r}",
            where=str(folder / NAME),
            next_step='Write {"address": "kafka://HOST:PORT/TOPIC"} there',
        ) from error


class TopicLog(FileLog):
    """A topic of one partition, read like a journal on files. Some offsets have no event: Kafka's transaction markers.

    Positions include the topic's name, as in stamps of a view that reads the topic with Spark: `billing-0:12`.
    JournalAway if there is no such topic, SettingInvalid if the topic has several partitions.
    """

    def __init__(self, folder: Path, topic: Topic) -> None:
        super().__init__(folder)
        self.topic = topic
        self._events = KafkaJournal(topic)

    def id(self) -> str | None:
        """The topic's id; None if there is no topic."""
        return self._events.id()

    def end(self) -> Position:
        """The position after the last committed event."""
        self._check_partitions()
        return self.in_stamps(self._events.end())

    def begin(self) -> Position:
        """The position of the first event not deleted by retention."""
        self._check_partitions()
        return self.in_stamps(self._events.begin())

    def durable_end(self) -> DurableEnd:
        """The end, without a place in files."""
        return DurableEnd(self.end().one(), 0, 0)

    def in_stamps(self, position: Position) -> Position:
        """A position in the topic, such as a receipt, in the form of stamps."""
        return self.topic.in_stamps(position)

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), in order."""
        last = (self.end() if stop is None else stop).one()
        for _, batch in self.batches(0 if start is None else start.one(), last):
            yield from decode(batch)

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """The events whose ids are not in the journal from a position on."""
        wanted = {event.id for event in events}
        for _, batch in self.batches(since.one(), self.end().one()):
            wanted.difference_update(batch.column("id").to_pylist())
        return [event for event in events if event.id in wanted]

    def batches(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop; gaps occur between batches only."""
        self.check(start, stop)
        yield from self._events.batches(PARTITION, start, stop)

    def check(self, start: int, stop: int) -> DurableEnd:
        """The end; SettingInvalid for a topic of several partitions. The read itself checks the offsets."""
        return self.durable_end()

    def _check_partitions(self) -> None:
        """Checked each time: partitions may be added to a topic during a read."""
        if len(self._events.partitions()) != 1:
            raise SettingInvalid(
                "This topic has several partitions, and no order of its events that is the same for all",
                where=self.topic.where,
                next_step="The journal of a folder has one, for good. A new journal: create it with --partitions 1. If "
                "partitions were added to this one: copy its events into a new topic of one partition, and name that "
                f"in {self.directory / NAME}",
            )


def topic_of(folder: Path) -> Topic:
    """The topic that is the folder's journal; JournalAway for a journal on files."""
    topic = placed(folder)
    if topic is None:
        raise JournalAway(
            "The journal of this folder is no topic on Kafka",
            where=str(folder / NAME),
            next_step='Write {"address": "kafka://HOST:PORT/TOPIC"} there, or run the application on files',
        )
    return topic
