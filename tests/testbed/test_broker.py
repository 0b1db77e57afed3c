"""The local Kafka broker: a real one, killed and started again."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stateside.core.errors import SetupError
from stateside.testbed.broker import Broker

pytestmark = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(900)]  # the first one fetches 46 jars


def send(broker: Broker, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def stored(broker: Broker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "test"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    return end


def test_killed_and_started_again_it_has_all_that_it_had_acknowledged_at_the_same_address(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        address, killed = broker.address, broker.pid
        broker.create_topic("orders")
        send(broker, "orders", "one")
        broker.kill()
        assert not Path(f"/proc/{killed}").exists()
        broker.start()
        assert broker.address == address
        assert stored(broker, "orders") == 1
        broker.stop()
    with Broker(tmp_path / "broker") as another:  # another object on the same folder goes on with it too
        send(another, "orders", "two")
        assert stored(another, "orders") == 2
        last = another.pid
    assert not Path(f"/proc/{last}").exists()


def test_no_topic_is_created_by_mistake(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.list_topics("mistyped", timeout=30)
    assert "mistyped" not in admin.list_topics(timeout=30).topics


def test_a_port_that_somebody_else_has_taken_meanwhile_is_refused(tmp_path: Path, broker: Broker) -> None:
    """The broker that has it would answer in the other one's place."""
    second = Broker(tmp_path)
    second._port = broker._port
    with pytest.raises(SetupError, match="is taken") as refusal:
        second.start()
    assert f"process {broker.pid}" in str(refusal.value)


def test_a_broker_that_does_not_come_up_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=99\n")
    broker = Broker(tmp_path)
    with pytest.raises(SetupError, match=r"does not answer.*meta\.properties") as refusal:
        broker.start()
    assert refusal.value.where == str(tmp_path / "broker.log")
    broker.stop()  # nothing is left to stop
