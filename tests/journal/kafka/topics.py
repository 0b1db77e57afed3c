"""Topics for tests, each with a name of its own, at a real broker."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from stateside.journal import Event
from stateside.journal.backends.kafka import KafkaJournal, Topic, create_topic
from stateside.journal.backends.kafka.admin import Admin
from stateside.journal.backends.kafka.topic import partition_of
from stateside.testbed.broker import Broker

real = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(900)]  # the first one fetches the broker's jars


def new_topic(broker: Broker, partitions: int = 1, **settings: str) -> Topic:
    """A topic that is there. Settings with `_` for `.`."""
    topic = Topic(broker.address, f"events-{uuid4()}")
    create_topic(topic, partitions=partitions, settings={name.replace("_", "."): v for name, v in settings.items()})
    return topic


def event(id_: str, entity: str = "emma", **more: Any) -> Event:
    return Event(id_, entity, "call", 0, {"id": id_}, **more)


def names_in(partitions: int, each: int = 1) -> list[list[str]]:
    """For each partition so many entities that stand in it."""
    found: list[list[str]] = [[] for _ in range(partitions)]
    number = 0
    while min(map(len, found)) < each:
        mine = found[partition_of(f"name-{number}", partitions)]
        if len(mine) < each:
            mine.append(f"name-{number}")
        number += 1
    return found


def sequences(journal: KafkaJournal) -> dict[str, list[int | None]]:
    """Each entity's sequences, in the order of the topic."""
    found: dict[str, list[int | None]] = {}
    for each in journal.events():
        found.setdefault(each.entity, []).append(each.sequence)
    return found


def send(topic: Topic, value: bytes | None, key: bytes | None = b"emma", partition: int = 0) -> None:
    """As somebody does who is no owner."""
    producer = Producer({"bootstrap.servers": topic.servers})
    producer.produce(topic.name, value, key, partition)
    assert producer.flush(30) == 0


def stored_value(id_: str, sequence: int, **more: Any) -> bytes:
    """The value of an event's message."""
    fields = {"id": id_, "entity": "emma", "type": "call", "time_us": 0, "payload": {}, "tags": []}
    return json.dumps(fields | {"sequence": sequence, "appended_us": 1} | more).encode()


def delete_before(topic: Topic, offset: int, partition: int = 0) -> None:
    """As retention does."""
    admin = AdminClient({"bootstrap.servers": topic.servers})
    place = TopicPartition(topic.name, partition, offset)
    admin.delete_records([place])[place].result(30)


def delete(topic: Topic) -> None:
    admin = AdminClient({"bootstrap.servers": topic.servers})
    admin.delete_topics([topic.name])[topic.name].result(30)
    while Admin(topic).found() is not None:
        time.sleep(0.05)


def add_partitions(topic: Topic, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": topic.servers})
    admin.create_partitions([NewPartitions(topic.name, partitions)])[topic.name].result(30)
    while Admin(topic).described().partitions != partitions:
        time.sleep(0.05)


def set_up(topic: Topic, name: str, value: str) -> None:
    """Change one of the topic's settings."""
    admin = AdminClient({"bootstrap.servers": topic.servers})
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)
