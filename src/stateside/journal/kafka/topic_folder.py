"""A folder whose journal is a topic: a file says which one, and readers and writers of the folder go there.

    JOURNAL/topic.json      {"address": "kafka://localhost:9092/billing"}
    JOURNAL/index/, lock    of those who append (`placed_writer`)

It is for applications whose events stand in one order: such a journal has one partition. `TopicLog` reads it as if it
lay in the folder.
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
from stateside.journal import segment
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.kafka.topic import Topic, topic_at
from stateside.journal.kafka.topic_reader import KafkaJournal
from stateside.journal.reader import Journal
from stateside.journal.segment import PARTITION, DurableEnd
from stateside.journal.topic_note import NAME as NAME

INDEX = "index"  # beside it: what writers of the topic know of it; it may be deleted


def place(folder: Path, address: str) -> Topic:
    """Have the folder's journal at this address from now on, where the same topic may be elsewhere than before.

    SettingInvalid if that is no address, or has a secret in it, or the folder has a journal of its own.
    """
    topic = placeable(folder, address)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / NAME, json.dumps({"address": address}).encode())
    return topic


def placeable(folder: Path, address: str) -> Topic:
    """The topic at this address, which the folder's journal can be; SettingInvalid as `place` says."""
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
    """The topic that is the folder's journal; None if it has one of its own. SettingInvalid if the file is damaged."""
    address = address_in(folder)
    return None if address is None else topic_at(address)


def address_in(folder: Path) -> str | None:
    """The address of the topic that is the folder's journal; None if it has one of its own."""
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


class TopicLog(Journal):
    """A topic of one partition, read as a journal on files is. Not every offset has an event: Kafka's marks take some.

    Positions have the topic's name in them, as stamps of a view do that reads it with Spark: `billing-0:12`.
    JournalAway if there is no such topic, SettingInvalid if it has several partitions.
    """

    def __init__(self, folder: Path, topic: Topic) -> None:
        super().__init__(folder)
        self.topic = topic
        self._events = KafkaJournal(topic)

    def id(self) -> str | None:
        """The topic's id; None if there is no topic."""
        return self._events.id()

    def end(self) -> Position:
        """The position behind the last committed event."""
        self._check_partitions()
        return self.in_stamps(self._events.end())

    def begin(self) -> Position:
        """The position of the first event that retention has left."""
        self._check_partitions()
        return self.in_stamps(self._events.begin())

    def durable_end(self) -> DurableEnd:
        """The end; it has no place in files."""
        return DurableEnd(self.end().one(), 0, 0)

    def in_stamps(self, position: Position) -> Position:
        """A position in the topic, such as a receipt, as stamps have it."""
        return self.topic.in_stamps(position)

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), in order."""
        last = (self.end() if stop is None else stop).one()
        for _, batch in self.batches(0 if start is None else start.one(), last):
            yield from decode(batch)

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """Those of the events whose ids do not stand in the journal from a position on."""
        wanted = {event.id for event in events}
        for _, batch in self.batches(since.one(), self.end().one()):
            wanted.difference_update(batch.column("id").to_pylist())
        return [event for event in events if event.id in wanted]

    def batches(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop; those of a batch follow one another, batches may not."""
        self.check(start, stop)
        yield from self._events.batches(PARTITION, start, stop)

    def check(self, start: int, stop: int) -> DurableEnd:
        """The end; SettingInvalid if this is a topic of several partitions. Offsets are checked where they are read."""
        return self.durable_end()

    def _check_partitions(self) -> None:
        """Asked for each time: partitions may be added to a topic while it is read."""
        if len(self._events.partitions()) != 1:
            raise SettingInvalid(
                "This topic has several partitions, and no order of its events that is the same for all",
                where=self.topic.where,
                next_step="The journal of a folder has one, for good. A new journal: create it with --partitions 1. If "
                "partitions were added to this one: copy its events into a new topic of one partition, and name that "
                f"in {self.directory / NAME}",
            )


def topic_of(folder: Path) -> Topic:
    """The topic that is the folder's journal; JournalAway if none is."""
    topic = placed(folder)
    if topic is None:
        raise JournalAway(
            "The journal of this folder is no topic on Kafka",
            where=str(folder / NAME),
            next_step='Write {"address": "kafka://HOST:PORT/TOPIC"} there, or run the application on files',
        )
    return topic
