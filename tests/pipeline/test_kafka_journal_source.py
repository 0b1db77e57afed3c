"""A journal on Kafka as a view's source: Spark says what the journal's own reader says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from pyspark.sql import SparkSession

from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.journal.backends.kafka import KafkaWriter, create_topic
from stateside.journal.backends.kafka.messages import NoEvent, batch_of, values_of
from stateside.journal.columns import encode
from stateside.journal.index import numbered
from stateside.pipeline import sources
from stateside.pipeline.dead_letters import stored_letters
from stateside.pipeline.kafka_source import parse_events
from stateside.testbed.broker import Broker
from stateside.testing import answer
from tests.journal.kafka.test_messages import Sent
from tests.journal.kafka.topics import delete, new_topic, send, stored_value
from tests.sizes import in_full

DRIVER = Path(__file__).with_name("kafka_journal_driver.py")
DRIVER_S_MAX = 250  # 15 s on two idle cores
YEAR_2099_US = 4_070_908_800_000_000
KAFKA_ROW = (
    "partition int, offset long, headers array<struct<key:string,value:binary>>, key binary, value binary, "
    "timestamp timestamp, timestampType int"
)

EVENTS = [
    Event("a", "emma", "call", 1_700_000_000_123_456, {"amount": 7, "deep": {"x": [1, None]}}, ("x", "ü"), version=3),
    Event("b", "emma", "call", 0, {"amount": "seven"}, metadata={"trace": "t"}, extra={"shard": 2}),
    Event("c", "emma", "data", 5, b"\x00\xff"),
    Event("d", "emma", "call", 5, {}),
]
NO_EVENTS = [
    Sent(None),
    Sent(b"\xff\xfe"),
    Sent(b"hello"),
    Sent(b"[1]"),
    Sent(stored_value("a", 1) + b" {}"),
    Sent(stored_value("a", 1) + stored_value("a", 2)),
    Sent(b'{"id": "a", "entity": "emma", "type": "t", "time_us": 0}'),
    Sent(stored_value("a", 0)),
    Sent(stored_value("a", 1, appended_us="now")),
    Sent(stored_value("a", 1), b"ben"),
    Sent(stored_value("a", 1), None),
    Sent(stored_value("", 1)),
    Sent(stored_value("a", 1, payload=[1])),
    Sent(stored_value("a", 1, time_us=-1)),
    Sent(stored_value("a", 1, data="AA==")),
    Sent(stored_value("a", 1), its_headers=[("stateside-event", b"2")]),
]


def parsed(spark: SparkSession, sent: list[Sent], fields: str = "amount long") -> list[dict[str, Any]]:
    rows = [
        (0, at, each.headers(), each.key(), each.value(), *_as_spark_has_it(each.clock)) for at, each in enumerate(sent)
    ]
    return [row.asDict() for row in parse_events(spark.createDataFrame(rows, KAFKA_ROW), fields).collect()]


def _as_spark_has_it(clock: tuple[int, int]) -> tuple[datetime, int]:
    kind, time_ms = clock
    return datetime.fromtimestamp(min(time_ms, YEAR_2099_US // 1_000) / 1_000, UTC), kind - 1


@pytest.mark.spark
class TestEvents:
    def test_the_append_time_is_never_later_than_the_brokers(self, spark: SparkSession) -> None:
        claims = stored_value("a", 1, appended_us=YEAR_2099_US)
        clock = (TIMESTAMP_LOG_APPEND_TIME, 1_700_000_000_000)
        (row,) = parsed(spark, [Sent(claims, clock=clock)])
        assert row["appended"].timestamp() == 1_700_000_000.000999

    def test_events_have_the_columns_of_the_journal(self, spark: SparkSession) -> None:
        batch, _ = numbered(encode(EVENTS, 1_700_000_000_000_001), lambda entities: [4])
        rows = parsed(spark, [Sent(value, its_headers=[("stateside-event", b"1")]) for value in values_of(batch)])
        stored = batch.to_pylist()
        for row, expected in zip(rows, stored, strict=True):
            for name in ("id", "entity", "type", "tags", "sequence", "version", "data"):
                assert row[name] == expected[name], name
            for name in ("payload", "metadata", "extra"):
                assert json.loads(row[name] or "null") == json.loads(expected[name] or "null"), name
            for name in ("time", "appended"):
                assert row[name].timestamp() == expected[name].timestamp(), name
            assert row["_malformed"] is False
        assert [row["amount"] for row in rows] == [7, None, None, None]
        assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (0, 1), (0, 2), (0, 3)]

    def test_what_is_no_event_for_the_journal_is_none_for_spark(self, spark: SparkSession) -> None:
        for sent in NO_EVENTS:
            with pytest.raises(NoEvent):
                batch_of([sent])
        newer = Sent(stored_value("a", 1, region="eu"))
        *rows, good = parsed(spark, [*NO_EVENTS, newer])
        assert [row["_malformed"] for row in rows] == [True] * len(rows)
        kept = ("partition", "offset", "value", "_malformed")
        assert {value for row in rows for name, value in row.items() if name not in kept} == {None}
        assert (good["_malformed"], json.loads(good["value"])["region"]) == (False, "eu")

    def test_a_field_may_not_hide_a_column_of_every_event(self, spark: SparkSession) -> None:
        with pytest.raises(ViewInvalid, match="'sequence'"):
            parsed(spark, [], "Sequence long")


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_view_reads_a_journal_on_kafka_with_sparks_connector(broker: Broker, tmp_path: Path) -> None:
    topic, layout = new_topic(broker, 2), Layout(tmp_path / "application")
    with KafkaWriter(topic, tmp_path / "index") as writer:
        orders = [Event(f"o{n}", f"customer-{n % 3}", "order", n, {"amount": n}, ("web",)) for n in range(30)]
        others = [Event("x", "customer-0", "return", 0, {}, ("web",)), Event("y", "customer-0", "order", 0, {})]
        far = Event("z", "customer-9", "order", YEAR_2099_US, {"amount": 7}, ("web",))
        writer.append([*orders, *others, far])
        send(topic, b"hello", b"customer-0", 1)
        command = [sys.executable, str(DRIVER), topic.servers, topic.name, str(layout.root)]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=DRIVER_S_MAX)
        assert done.returncode == 0, done.stderr
        found = answer(layout, "spending")
        rows = {(row["entity"], row["_malformed"]): (row["total"], row["n"], row["last"]) for row in found.rows}
        expected = {(f"customer-{n}", False): (sum(range(n, 30, 3)), 10, 10) for n in range(3)}
        assert rows == expected | {(None, True): (None, 1, None), ("customer-9", False): (7, 1, 1)}
        guarded = {(row["entity"], False): (row["total"], row["n"], row["n"]) for row in answer(layout, "guarded").rows}
        assert guarded == expected
        letters = {(letter["view"], letter["reason"], letter["id"]) for letter in stored_letters(layout)}
        assert letters == {("guarded", "malformed", None), ("guarded", "future-dated", "z")}
        assert found.stamp.position.covers(topic.in_stamps(writer.end))


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(900)
@in_full("tests/journal/kafka/test_journal.py ends a live query in this case")
def test_a_topic_that_was_made_anew_with_fewer_partitions_ends_the_view_and_says_what_to_do(
    broker: Broker, tmp_path: Path
) -> None:
    topic, layout = new_topic(broker, 2), Layout(tmp_path / "application")
    command = [sys.executable, str(DRIVER), topic.servers, topic.name, str(layout.root)]
    with KafkaWriter(topic, tmp_path / "index") as writer:
        writer.append([Event(f"o{n}", f"customer-{n}", "order", n, {"amount": n}, ("web",)) for n in range(20)])
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=DRIVER_S_MAX)
    assert done.returncode == 0, done.stderr
    delete(topic)
    create_topic(topic, partitions=1)
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=DRIVER_S_MAX)
    assert done.returncode != 0
    assert "Kafka does not have any more what the view reads next" in done.stderr
    assert f"{topic.name}-1" in done.stderr
    assert "run in a new folder" in done.stderr
    assert "failOnDataLoss" not in done.stderr.split("PipelineFailed")[-1]


def test_a_source_is_known_again_wherever_the_topic_is_today() -> None:
    options = {"kafka.sasl.jaas.config": "env:SECRET"}
    one = sources.kafka_journal("localhost:9092", "orders", fields="amount long", options=options)
    assert "localhost" not in repr(one)
    assert "SECRET" not in repr(one)
    assert one.needs_jars == ("kafka",)
