"""The end of a journal in the status: of files, of a topic, and of brokers that do not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stateside.core.errors import JournalAway
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.kafka.topic_folder import place
from stateside.journal.location import open_journal
from stateside.serving.health import status as module
from stateside.serving.health.status import JournalEnd
from stateside.testbed.broker import Broker
from tests.journal.kafka.topics import delete, event, new_topic
from tests.waiting import wait_until

ADDRESS = "kafka://127.0.0.1:1/billing"


class Topic(FileLog):
    """A topic that ends at 7, as soon as it may answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.answers = 0, threading.Event()
        self.failure: Exception | None = None

    def end(self) -> Position:
        self.asked += 1
        assert self.answers.wait(90)
        if self.failure is not None:
            raise self.failure
        return Position.of({"billing-0": 7})


@pytest.fixture
def topic(layout: Layout) -> Topic:
    place(layout.journal, ADDRESS)
    return Topic(layout.journal)


@pytest.fixture
def end(layout: Layout, topic: Topic) -> JournalEnd:
    return JournalEnd(layout.journal, lambda folder: topic)


def test_a_folder_without_a_journal_has_none_and_one_on_files_its_size(layout: Layout) -> None:
    assert JournalEnd(layout.journal).now() is None
    with JournalWriter(layout.journal) as writer:
        writer.append([Event("1", "emma", "order", 0, {})])
    found = JournalEnd(layout.journal).now()
    assert found is not None
    assert (found["end"], found["segments"], found["bytes"] > 0) == (1, 1, True)


def test_a_topic_is_asked_once_a_second_at_most(end: JournalEnd, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.answers.set()
    monkeypatch.setattr(module, "ASK_S", 3_600.0)
    monkeypatch.setattr(module, "OLD_S", 3_600.0)
    monkeypatch.setattr(module, "WAIT_S", 90.0)
    assert [end.now() for _ in range(5)] == [{"end": 7, "bytes": None, "trouble": None}] * 5
    assert topic.asked == 1


def test_brokers_that_do_not_answer_are_told_and_nobody_waits_for_them_or_asks_again(
    end: JournalEnd, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    for _ in range(3):
        assert end.now() == {"end": None, "bytes": None, "trouble": "The brokers do not answer"}
    wait_until(lambda: topic.asked > 0)
    assert topic.asked == 1
    topic.answers.set()
    wait_until(lambda: (end.now() or {})["end"] == 7)
    monkeypatch.setattr(module, "OLD_S", 0.0)
    topic.answers.clear()
    assert (end.now() or {})["end"] is None, "what was told before is no end of now"
    topic.answers.set()


def test_an_error_is_told_instead_of_an_end_until_it_is_over(
    end: JournalEnd, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(module, "WAIT_S", 90.0)
    topic.answers.set()
    topic.failure = JournalAway("There is no topic")
    assert (end.now() or {}) == {"end": None, "bytes": None, "trouble": str(topic.failure)}
    topic.failure = None
    wait_until(lambda: end.now() == {"end": 7, "bytes": None, "trouble": None})


@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_real_topic_s_end_is_told_and_that_of_one_that_is_gone_is_not(layout: Layout, broker: Broker) -> None:
    topic = new_topic(broker)
    place(layout.journal, f"kafka://{broker.address}/{topic.name}")
    with open_journal(layout.journal).writer() as writer:
        receipt = writer.append([event("a"), event("b")])
    end = JournalEnd(layout.journal)
    wait_until(lambda: (end.now() or {})["end"] is not None)
    found = end.now()
    assert found is not None
    assert found["end"] >= receipt.one()
    delete(topic)
    wait_until(lambda: (end.now() or {})["trouble"] is not None)
    assert (end.now() or {})["end"] is None


def test_a_note_that_cannot_be_read_is_told(layout: Layout, topic: Topic) -> None:
    (layout.journal / "topic.json").write_bytes(b"{")
    found = JournalEnd(layout.journal).now()
    assert found is not None
    assert "which topic is the journal" in found["trouble"]
