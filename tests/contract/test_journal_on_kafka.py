"""The contract of journals, on a topic of a real broker. (By itself, as it needs the broker's fixture.)"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

import pytest

from stateside.core.clock import Clock
from stateside.journal.backends.kafka import KafkaJournal, KafkaWriter, Topic, create_topic
from stateside.testbed.broker import Broker
from tests.contract.test_journal import JournalContract, Reader, Writer

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
        return KafkaWriter(topic, folder / "index", clock=clock)

    def reader(self, folder: Path) -> Reader:
        return KafkaJournal(self._topic(folder))

    def _topic(self, folder: Path) -> Topic:
        return Topic(self._address, self._names.setdefault(folder, f"journal-{uuid4()}"))
