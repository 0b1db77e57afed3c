"""The contract of journals, on a topic of a real broker. (By itself, as it needs the broker's fixture.)"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

import pytest

from stateside.core.clock import Clock
from stateside.journal import Journal, Log, Writer, open_journal
from stateside.journal.backends.kafka import KafkaJournal, Topic, create_topic
from stateside.journal.backends.kafka.topic_folder import place
from stateside.testbed.broker import Broker
from tests.contract.test_journal import JournalContract

pytestmark = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(900)]  # the first one fetches the broker's jars


class TestJournalOnKafka(JournalContract):
    """A topic of one partition for each folder that a test asks for."""

    @pytest.fixture(autouse=True)
    def _topics(self, broker: Broker) -> None:
        self._address, self._creating = broker.address, threading.Lock()
        self._names: dict[Path, str] = {}

    def writer(self, folder: Path, clock: Clock) -> AbstractContextManager[Writer]:
        topic = self._topic(folder)
        with self._creating:
            if KafkaJournal(topic).id() is None:
                create_topic(topic, partitions=1)
        return self._open(folder, topic).writer(clock=clock)

    def reader(self, folder: Path) -> Journal | Log:
        return self._open(folder, self._topic(folder))

    def _open(self, folder: Path, topic: Topic) -> Journal:
        return open_journal(f"kafka://{topic.servers}/{topic.name}", index=folder / "index")

    def _topic(self, folder: Path) -> Topic:
        return Topic(self._address, self._names.setdefault(folder, f"journal-{uuid4()}"))


class TestJournalOfAFolderOnKafka(TestJournalOnKafka):
    """The folder names the topic, its writers take turns, and positions are as in stamps."""

    def reader(self, folder: Path) -> Journal | Log:
        return self._open(folder, self._topic(folder)).log()

    def _open(self, folder: Path, topic: Topic) -> Journal:
        place(folder, f"kafka://{topic.servers}/{topic.name}")
        return open_journal(folder)


class TestWholeJournalOfAFolderOnKafka(TestJournalOfAFolderOnKafka):
    """The same, read as a journal with partitions, which are named as in stamps."""

    def reader(self, folder: Path) -> Journal | Log:
        return self._open(folder, self._topic(folder))
