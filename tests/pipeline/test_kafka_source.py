"""Kafka as a view's source: how messages become rows, and a real broker read by a real query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline import jars, sources
from stateside.pipeline.dead_letters import stored_letters
from stateside.pipeline.sources import parse_messages
from stateside.testbed.broker import Broker
from stateside.testing import answer

DRIVER = Path(__file__).with_name("kafka_driver.py")
DRIVER_S_MAX = 250  # 15 s on two idle cores
KAFKA_ROW = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"

MALFORMED = [
    b"",
    b" ",
    b"emma",
    b"{",
    b'{"who":"emma","cents":5',
    b'{"who":"emma","cents":"five"}',
    b'{"who":"emma","cents":5.5}',
    b'{"who":"emma","cents":99999999999999999999}',
    b'{"who":"emma","at":"soon"}',
    b'{"who":"emma","cents":5} and more',
    b'{"who":"emma","cents":5}{"who":"emma","cents":6}',
    b'{"who":"emma","cents":5},{"who":"emma","cents":6}',
    b'{"who":"emma","cents":5}}',
    b'[{"who":"emma","cents":5}]',
    b'"emma"',
    b"5",
    b"null",
    b'{"who":"emma\xff","cents":5}',
    b"\xff\xfe",
]


@pytest.mark.spark
class TestMessages:
    @pytest.fixture
    def parsed(self, spark: SparkSession) -> Callable[..., list[dict[str, Any]]]:
        def parse(*values: bytes | None, key: bytes | None = b"k") -> list[dict[str, Any]]:
            rows = [("calls", 0, offset, None, key, value) for offset, value in enumerate(values)]
            frame = parse_messages(spark.createDataFrame(rows, KAFKA_ROW), "who string, cents long, at timestamp")
            return [row.asDict() for row in frame.orderBy("offset").collect()]

        return parse

    def test_a_message_is_a_row_with_its_place_its_text_and_its_fields(self, parsed: Any) -> None:
        (row,) = parsed(b'{"who":"emma","cents":5,"more":[1]}')
        assert {name: row[name] for name in ("topic", "partition", "offset", "key", "_malformed")} == {
            "topic": "calls",
            "partition": 0,
            "offset": 0,
            "key": "k",
            "_malformed": False,
        }
        assert (row["who"], row["cents"], row["at"]) == ("emma", 5, None)
        assert row["value"] == '{"who":"emma","cents":5,"more":[1]}'

    def test_a_malformed_value_is_told_and_kept_and_has_no_fields(self, parsed: Any) -> None:
        for value, row in zip(MALFORMED, parsed(*MALFORMED), strict=True):
            assert row["_malformed"] is True, value
            assert (row["who"], row["cents"], row["at"]) == (None, None, None)
            assert row["value"] == value.decode(errors="replace")

    def test_an_object_without_the_fields_is_not_malformed(self, parsed: Any) -> None:
        for row in parsed(b"{}", b'{"cents":null}', b' {"other": 1}\n'):
            assert (row["_malformed"], row["who"], row["cents"]) == (False, None, None)

    def test_a_message_without_a_value_is_a_row_without_fields(self, parsed: Any) -> None:
        (row,) = parsed(None, key=None)
        assert (row["_malformed"], row["key"], row["value"], row["who"]) == (False, None, None, None)

    def test_a_key_that_is_no_text_is_malformed(self, parsed: Any) -> None:
        """Two such keys may look alike as text: nothing is to be grouped by them unawares."""
        (row,) = parsed(b'{"who":"emma"}', key=b"\x00\xff")
        assert (row["_malformed"], row["who"]) == (True, None)

    @pytest.mark.parametrize("field", ["topic", "value", "Offset", "_malformed"])
    def test_a_field_may_not_hide_a_column_of_every_message(self, spark: SparkSession, field: str) -> None:
        with pytest.raises(ViewInvalid, match=f"'{field.lower()}'"):
            parse_messages(spark.createDataFrame([], KAFKA_ROW), f"who string, {field} string")


def test_only_views_that_read_kafka_need_its_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "fetch", lambda group: pytest.fail(f"{group} was fetched"))
    plain = [sources.journal(), sources.files("in", fields="n long"), sources.stream(lambda spark: spark.range(1))]
    assert sources.with_jars({"spark.jars": "mine.jar"}, plain) == {"spark.jars": "mine.jar"}
    assert sources.kafka("localhost:9092", "calls", fields="who string").needs_jars == ("kafka",)
    assert sources.stream(lambda spark: spark.range(1), jars=["kafka"]).needs_jars == ("kafka",)


def test_jars_come_on_top_of_the_users_own_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "fetch", lambda group: [Path(f"{group}-1.jar"), Path(f"{group}-2.jar")])
    twice = [sources.kafka("localhost:9092", topic, fields="who string") for topic in ("calls", "sms")]
    assert sources.with_jars({"a": "b"}, twice) == {"a": "b", "spark.jars": "kafka-1.jar,kafka-2.jar"}
    assert sources.with_jars({"spark.jars": "mine.jar"}, twice)["spark.jars"] == "mine.jar,kafka-1.jar,kafka-2.jar"


def send(broker: Broker, topic: str, messages: dict[int, list[bytes]]) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for partition, values in messages.items():
        for value in values:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def order(customer: str, amount: int) -> bytes:
    return json.dumps({"customer": customer, "amount": amount}).encode()


def run(broker: Broker, topic: str, layout: Layout) -> None:
    command = [sys.executable, str(DRIVER), broker.address, topic, str(layout.root)]
    environment = {**os.environ, "CLIENT_ID": "tests"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DRIVER_S_MAX)
    assert done.returncode == 0, done.stderr


def totals(layout: Layout) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    rows = answer(layout, "spending").rows
    return {(row["customer"], row["_malformed"]): (row["total"], row["messages"]) for row in rows}


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(2 * DRIVER_S_MAX + 60)
def test_a_view_folds_a_topic_and_stands_at_its_offsets(broker: Broker, layout: Layout) -> None:
    broker.create_topic("purchases", partitions=2)
    send(broker, "purchases", {0: [order("emma", 5), b"no JSON"], 1: [order("emma", 7), order("oliver", 1), b"{"]})
    run(broker, "purchases", layout)
    assert totals(layout) == {("emma", False): (12, 2), ("oliver", False): (1, 1), (None, True): (None, 2)}
    assert str(answer(layout, "spending").stamp.position) == "purchases-0:2,purchases-1:3"
    assert {row["customer"]: row["messages"] for row in answer(layout, "guarded").rows} == {"emma": 2, "oliver": 1}
    letters = {(letter["partition"], letter["offset"], letter["reason"]) for letter in stored_letters(layout)}
    assert letters == {("purchases-0", 1, "malformed"), ("purchases-1", 2, "malformed")}

    send(broker, "purchases", {1: [order("oliver", 2)]})
    undone = Producer({"bootstrap.servers": broker.address, "transactional.id": "undone"})
    undone.init_transactions(30)
    undone.begin_transaction()
    undone.produce("purchases", order("oliver", 1_000), partition=0)
    undone.flush(30)
    undone.abort_transaction(30)
    run(broker, "purchases", layout)
    assert totals(layout) == {("emma", False): (12, 2), ("oliver", False): (3, 2), (None, True): (None, 2)}
    assert answer(layout, "spending").stamp.position["purchases-1"] == 4
