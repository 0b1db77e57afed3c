"""Owners of partitions: one at a time, whatever crashed or was paused. Real processes, a real broker."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stateside.core.errors import EntityElsewhere, EventRefused, JournalAway, JournalFenced, SettingInvalid
from stateside.journal.backends.kafka import KafkaJournal, KafkaWriter, Topic
from stateside.testbed.broker import Broker
from tests.journal.kafka.topics import event, names_in, new_topic, real, sequences
from tests.sizes import in_full, sized

pytestmark = real

APPENDER = Path(__file__).with_name("appender.py")


@contextmanager
def appending(topic: Topic, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(APPENDER), topic.servers, topic.name, str(folder), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def told(process: subprocess.Popen[str]) -> list[list[str]]:
    """All that it prints until it ends."""
    assert process.stdout is not None
    return [line.split() for line in process.stdout]


def ids(topic: Topic) -> list[str]:
    return [each.id for each in KafkaJournal(topic).events()]


def gapless(topic: Topic) -> bool:
    return all(found == [*range(1, len(found) + 1)] for found in sequences(KafkaJournal(topic)).values())


class TestCrashes:
    @pytest.mark.parametrize(
        ("step", "stored"),
        [
            pytest.param(3, False, marks=in_full("step 5 leaves as little")),
            pytest.param(4, False, marks=in_full("step 5 leaves as little")),
            (5, False),
            (6, True),
            pytest.param(7, True, marks=in_full("step 6 leaves as much")),
        ],
    )
    def test_an_owner_killed_at_a_step_leaves_all_of_an_append_or_nothing(
        self, broker: Broker, tmp_path: Path, step: int, stored: bool
    ) -> None:
        topic = new_topic(broker)
        with appending(topic, tmp_path, "x", str(step), "kill") as process:
            ((*first, _),) = told(process)
        with KafkaWriter(topic, tmp_path) as writer:
            assert ids(topic) == [*first, *(["x-1a", "x-1b"] if stored else [])]
            again = writer.append_to("emma", [event("x-1a"), event("x-1b")])
            assert (again.repeated, again.first_sequence, again.last_sequence) == (stored, 3, 4)
        assert ids(topic) == [*first, "x-1a", "x-1b"]
        assert gapless(topic)

    def test_whenever_owners_are_killed_every_acknowledged_event_is_there_once_and_in_order(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        topic, acknowledged = new_topic(broker), []
        for life in range(sized(4, 20)):
            with appending(topic, tmp_path / str(life % 2), f"life{life}") as process:
                assert process.stdout is not None
                acknowledged += process.stdout.readline().split()[:2]
                time.sleep(random.uniform(0, 0.3))
                process.kill()
                acknowledged += [id_ for line in told(process) for id_ in line[:2]]
        found = ids(topic)
        assert len(set(found)) == len(found)
        assert [id_ for id_ in found if id_ in set(acknowledged)] == acknowledged
        assert len(found) - len(acknowledged) <= 2 * sized(4, 20)  # of each life the last append at most
        assert gapless(topic)


class TestPaused:
    @pytest.mark.parametrize("step", [3, 5])
    def test_an_owner_that_was_paused_and_wakes_up_stores_nothing_more(
        self, broker: Broker, tmp_path: Path, step: int
    ) -> None:
        topic = new_topic(broker)
        with appending(topic, tmp_path, "old", str(step), "stop") as process:
            os.waitpid(process.pid, os.WUNTRACED)
            with KafkaWriter(topic, tmp_path) as successor:
                assert successor.append_to("emma", [event("new")], expected_sequence=2).last_sequence == 3
                os.kill(process.pid, signal.SIGCONT)
                *_, last = told(process)
                assert last == ["JournalFenced"]
                successor.append([event("newer")])
        assert ids(topic) == ["old-0a", "old-0b", "new", "newer"]
        assert gapless(topic)


class TestTwoOwners:
    def test_the_newer_one_stores_and_the_older_one_is_told_for_good(self, broker: Broker, tmp_path: Path) -> None:
        topic = new_topic(broker, 2)
        with KafkaWriter(topic, tmp_path) as old:
            old.append([event("a")])
            with KafkaWriter(topic, tmp_path) as new:
                new.append([event("b")])
                for _ in range(2):
                    with pytest.raises(JournalFenced, match="Another owner has taken these partitions over"):
                        old.append([event("c")])
                new.append([event("d")])
        assert ids(topic) == ["a", "b", "d"]
        assert gapless(topic)

    def test_owners_of_different_partitions_store_side_by_side(self, broker: Broker, tmp_path: Path) -> None:
        topic, ((zero,), (one,), (two,)) = new_topic(broker, 3), names_in(3)
        with (
            KafkaWriter(topic, tmp_path / "a", partitions=[0]) as first,
            KafkaWriter(topic, tmp_path / "b", partitions=[1, 2]) as second,
        ):
            for number in range(3):
                first.append([event(f"a{number}", zero)])
                second.append_to(one, [event(f"b{number}", one)], expected_sequence=number)
            with pytest.raises(EntityElsewhere, match="belongs to partition 1, and this writer owns 0"):
                first.append([event("x", one)])
            with pytest.raises(EventRefused, match="belong to partitions 1, 2: only the owner of all"):
                second.append([event("x", one), event("y", two)])
        assert sequences(KafkaJournal(topic)) == {zero: [1, 2, 3], one: [1, 2, 3]}

    def test_the_owner_of_one_partition_fences_the_owner_of_all_and_is_fenced_by_the_next_one(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        topic, ((zero,), (one,)) = new_topic(broker, 2), names_in(2)
        with (
            KafkaWriter(topic, tmp_path / "a") as of_all,
            KafkaWriter(topic, tmp_path / "b", partitions=[0]) as of_zero,
            KafkaWriter(topic, tmp_path / "c", partitions=[1]) as of_one,
        ):
            with pytest.raises(JournalFenced):
                of_all.append([event("x", zero)])
            of_zero.append([event("a", zero)])
            of_one.append([event("b", one)])
            with KafkaWriter(topic, tmp_path / "a") as again:
                for fenced, name in ((of_zero, zero), (of_one, one)):
                    with pytest.raises(JournalFenced):
                        fenced.append([event("x", name)])
                again.append([event("c", zero), event("d", one)])
        assert sequences(KafkaJournal(topic)) == {zero: [1, 2], one: [1, 2]}

    def test_partitions_that_are_not_there_cannot_be_owned(self, broker: Broker, tmp_path: Path) -> None:
        with pytest.raises(SettingInvalid, match="The partitions 0, 2 are to be owned, and there are 0 to 1"):
            KafkaWriter(new_topic(broker, 2), tmp_path, partitions=[0, 2])


@in_full("a wrong address shows that nobody waits for ever")
def test_while_the_broker_is_away_nothing_is_acknowledged_and_afterwards_who_opens_again_goes_on(
    broker: Broker, tmp_path: Path
) -> None:
    topic = replace(new_topic(broker), answer_s_max=5.0)
    with KafkaWriter(topic, tmp_path) as writer:
        writer.append_to("emma", [event("a")])
        broker.kill()
        try:
            for _ in range(2):
                with pytest.raises(JournalAway, match=r"Kafka (does not answer|did not say)"):
                    writer.append_to("emma", [event("b")])
        finally:
            broker.start()
    with KafkaWriter(replace(topic, answer_s_max=30.0), tmp_path) as writer:
        assert writer.append_to("emma", [event("b")]).last_sequence == 2
    assert ids(topic) == ["a", "b"]
