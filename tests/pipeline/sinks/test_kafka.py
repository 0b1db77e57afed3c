"""Kafka: a real broker, a real process killed at each step, and readers of committed messages."""

from __future__ import annotations

import json
import re
import shutil
import time
import traceback
from datetime import datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import ArchiveInvalid, PipelineRunning, SetupError, SinkAway, SinkRefused, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.processes import free_port
from stateside.core.secrets import with_secrets
from stateside.leadership import ungated
from stateside.pipeline.sinks.kafka import BatchNotes, KafkaMark, kafka, messages_of
from stateside.pipeline.sinks.sink import BatchId, OnStep, Sink, SinkFactory
from stateside.testbed.broker import Broker
from tests.sizes import sized

from .harness import VIEW, SinkCase, SinkSuite, Values, Verdict, World

kafka_sink = import_module("stateside.pipeline.sinks.kafka")  # the package has the function under this name
real = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(900)]  # the first one fetches 46 jars
PARTITIONS = 2


def topic_of(world: World) -> str:
    """Every world has a topic of its own on the one broker, through whichever gate it is reached."""
    return "rows-" + sha256(str(ungated(world.layout.root)).encode()).hexdigest()[:16]


def messages_sink(world: World, on_step: OnStep) -> SinkFactory:
    return kafka(world.address, topic_of(world), key=["id"], on_step=on_step)


def committed(world: World, isolation: str = "read_committed") -> list[Message]:
    """All messages that readers of committed ones see, or readers of any."""
    reading = {"isolation.level": isolation, "enable.partition.eof": True, "group.id": "test"}
    consumer = Consumer({"bootstrap.servers": world.address, **reading})
    consumer.assign([TopicPartition(topic_of(world), partition, 0) for partition in range(PARTITIONS)])
    found, ended = list[Any](), set[int | None]()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "the broker is silent"
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return found


def read_back(world: World) -> list[Values]:
    rows = [json.loads(message.value() or b"") for message in committed(world)]
    return [(row["id"], row["n"], datetime.fromisoformat(row["at"])) for row in rows]


@pytest.fixture
def world(layout: Layout, broker: Broker) -> World:
    world = World(layout, broker.address)
    broker.create_topic(topic_of(world), partitions=PARTITIONS)
    return world


class TestKafka(SinkSuite):
    pytestmark = real
    case = SinkCase("kafka", messages_sink, read_back, steps=range(1, 9), moment_ms_max=1_300)

    @pytest.fixture
    def world(self, world: World) -> World:
        return world


case = TestKafka.case


def batch(world: World, number: int) -> BatchId:
    return BatchId(world.query_id(), number)


def judged(world: World, batches: int) -> Verdict:
    return Verdict.of(case.expected(batches), read_back(world))


def write_held(sink: Sink, rows: pa.Table, number: BatchId) -> None:
    """As the runner does: again and again while the other side is away. A broker is not at once all there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return sink.write(rows, number)
        except SinkAway:
            if time.monotonic() > deadline:
                raise


def notes_topic(world: World) -> str:
    mark = KafkaMark.load_or_draw(mark_of(world))
    return BatchNotes({}, VIEW, mark.writer).topic


def mark_of(world: World) -> Path:
    return world.layout.view(VIEW).mark(f"kafka-{topic_of(world)}")


def admin_of(world: World) -> AdminClient:
    return AdminClient({"bootstrap.servers": world.address})


@pytest.mark.e2e
@pytest.mark.network
class TestErrors:
    @pytest.fixture
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker that is silent counts as away sooner."""
        monkeypatch.setattr(kafka_sink, "ANSWER_S_MAX", 5.0)

    @pytest.mark.usefixtures("soon")
    def test_a_broker_killed_in_the_middle_of_a_batch_holds_it_and_brought_back_gets_it_once(
        self, layout: Layout, tmp_path: Path
    ) -> None:
        with Broker(tmp_path / "broker") as broker:
            world = World(layout, broker.address)
            broker.create_topic(topic_of(world), partitions=PARTITIONS)
            kills = sized({1: 7}, {0: 3, 1: 5, 2: 7})  # in which batch at which step
            now = 0

            def crash(step: int) -> None:
                if kills.get(now) == step:
                    del kills[now]
                    broker.kill()

            sink = case.open(world, on_step=crash)
            for now in range(4):
                if now in kills:
                    with pytest.raises(SinkAway, match="held until then"):
                        sink.write(case.table(now), batch(world, now))
                    broker.start()
                write_held(sink, case.table(now), batch(world, now))
            assert judged(world, 4) == Verdict()

    def test_a_new_run_fences_the_old_one_which_then_ends(self, world: World) -> None:
        old, new = case.open(world), case.open(world)
        old.write(case.table(0), batch(world, 0))
        new.write(case.table(0), batch(world, 0))  # stored already, but it has taken over
        for _ in range(2):  # and does not come back
            with pytest.raises(PipelineRunning, match="Another run"):
                old.write(case.table(1), batch(world, 1))
        new.write(case.table(1), batch(world, 1))
        assert judged(world, 2) == Verdict()

    def test_what_a_run_has_left_open_is_ended_by_the_next_one(self, world: World) -> None:
        """The old run has sent all its messages and its note, and stands still just before its commit."""

        class Stopped(Exception):
            pass

        def stop(step: int) -> None:
            if step == 7:
                raise Stopped

        old = case.open(world, on_step=stop)
        with pytest.raises(Stopped):
            old.write(case.table(0), batch(world, 0))
        new = case.open(world)
        for number in (0, 1):
            new.write(case.table(number), batch(world, number))
        assert judged(world, 2) == Verdict()
        left_open = len(case.rows(0))  # they lie in the topic, for those who do not read committed messages only
        assert len(committed(world, "read_uncommitted")) == len(committed(world)) + left_open

    def test_a_message_that_is_too_large_for_the_topic_is_refused_and_nothing_of_the_batch_is_stored(
        self, world: World
    ) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic_of(world))
        resource.add_incremental_config(
            ConfigEntry("max.message.bytes", "100", incremental_operation=AlterConfigOpType.SET)
        )
        admin = admin_of(world)
        admin.incremental_alter_configs([resource])[resource].result(30)
        with pytest.raises(SinkRefused, match="size too large"):
            case.open(world).write(case.table(0), batch(world, 0))
        assert read_back(world) == []

    def test_a_missing_topic_holds_the_batch_until_it_is_there(self, layout: Layout, broker: Broker) -> None:
        world = World(layout, broker.address)
        sink = case.open(world)
        with pytest.raises(SinkAway, match="Unknown topic"):
            sink.write(case.table(0), batch(world, 0))
        broker.create_topic(topic_of(world), partitions=PARTITIONS)
        sink.write(case.table(0), batch(world, 0))
        assert judged(world, 1) == Verdict()

    @pytest.mark.usefixtures("soon")
    def test_a_broker_that_is_not_there_holds_the_batch(self, layout: Layout) -> None:
        world = World(layout, f"127.0.0.1:{free_port()}")
        with pytest.raises(SinkAway, match=world.address):
            case.open(world).write(case.table(0), batch(world, 0))

    def test_notes_that_were_deleted_hold_the_batch_and_made_anew_are_refused(
        self, world: World, broker: Broker
    ) -> None:
        case.open(world).write(case.table(0), batch(world, 0))
        admin = admin_of(world)
        admin.delete_topics([notes_topic(world)])[notes_topic(world)].result(30)
        with pytest.raises(SinkAway, match="is missing"):
            case.open(world).write(case.table(1), batch(world, 1))
        broker.create_topic(notes_topic(world))
        with pytest.raises(ArchiveInvalid, match="another one than before"):
            case.open(world).write(case.table(1), batch(world, 1))
        assert judged(world, 1) == Verdict()

    def test_notes_that_the_broker_would_delete_one_day_are_refused(self, world: World, broker: Broker) -> None:
        world.query_id()
        broker.create_topic(notes_topic(world))  # made by hand, before the first run, with the broker's defaults
        with pytest.raises(ArchiveInvalid, match=r"cleanup\.policy 'delete'"):
            case.open(world).write(case.table(0), batch(world, 0))

    def test_a_checkpoint_that_is_gone_is_refused_before_its_rows_are_sent_again(self, world: World) -> None:
        case.open(world).write(case.table(0), batch(world, 0))
        shutil.rmtree(world.layout.view(VIEW).checkpoint)
        with pytest.raises(ArchiveInvalid, match="a second time"):
            case.open(world)

    def test_the_last_note_is_found_however_far_back_it_lies(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After it come the marker of its commit, and more, of batches that were aborted."""
        monkeypatch.setattr(kafka_sink, "NEWEST", 1)
        for _ in range(2):
            case.open(world).write(case.table(0), batch(world, 0))
        assert judged(world, 1) == Verdict()

    def test_a_message_tells_its_key_and_where_it_comes_from(self, world: World) -> None:
        case.open(world).write(case.table(0), batch(world, 0))
        for message in committed(world):
            row = json.loads(message.value() or b"")
            assert (message.key() or b"").decode() == row["id"]
            assert dict(message.headers() or []) == {
                "stateside-query": world.query_id().encode(),
                "stateside-batch": b"0",
            }


KEYED = pa.table(
    {"name": ["emma", None, "oliver"], "n": [1, 2, 3], "at": pa.array([0, 1, 2], pa.timestamp("us", "UTC"))}
)


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ([], [None, None, None]),
        (["name"], [None, "emma", "oliver"]),
        (["n"], ["1", "2", "3"]),
        (["at"], ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.000002Z"]),
        (["name", "n"], ['{"name":"emma","n":1}', '{"name":"oliver","n":3}', '{"name":null,"n":2}']),
    ],
)
def test_a_key_is_the_text_of_one_column_and_the_json_of_several(key: list[str], keys: list[str | None]) -> None:
    assert {found for found, _ in messages_of(KEYED, key)} == set(keys)


@given(st.permutations(range(6)))
def test_messages_of_a_key_come_in_one_order_whatever_the_order_of_the_rows(order: list[int]) -> None:
    rows = pa.table({"name": ["a", "b"] * 3, "n": range(6)})
    found = messages_of(rows.take(pa.array(order)), ["name"])
    assert found == messages_of(rows, ["name"])
    assert [value for key, value in found if key == "b"] == [f'{{"name":"b","n":{n}}}' for n in (1, 3, 5)]


def opened(layout: Layout, **arguments: Any) -> object:
    context = World(layout, "").context(case.schema)
    return kafka(**{"servers": "127.0.0.1:1", "topic": "rows"} | arguments)(context)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topic": "a topic"}, "no name of a Kafka topic"),
        ({"topic": ".."}, "no name of a Kafka topic"),
        ({"key": ["nobody"]}, "no column 'nobody'"),
        ({"options": {"transactional.id": "mine"}}, "sets 'transactional.id' itself"),
        ({"options": {"no.such.thing": "1"}}, "no.such.thing"),
        ({"options": {"compression.type": "tiny"}}, "tiny"),
    ],
)
def test_what_cannot_be_sent_as_declared_is_refused_at_start(
    layout: Layout, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ViewInvalid, match=re.escape(reason)):
        opened(layout, **arguments)


def test_a_secret_comes_from_the_environment_and_is_never_told(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"sasl.username": "emma", "compression.type": "env:KAFKA_SECRET"}
    with pytest.raises(SetupError, match="'KAFKA_SECRET', which is not set"):
        opened(layout, options=options)
    assert with_secrets(options, {"KAFKA_SECRET": "x"}) == {"sasl.username": "emma", "compression.type": "x"}
    monkeypatch.setenv("KAFKA_SECRET", "hush")
    with pytest.raises(ViewInvalid, match="compression") as refusal:  # librdkafka's own message has the value in it
        opened(layout, options=options)
    assert "hush" not in "".join(traceback.format_exception(refusal.value))
