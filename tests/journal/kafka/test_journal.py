"""Reading a journal on Kafka: queries over several partitions, and each thing that can be wrong."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from stateside.core.errors import EventsGone, JournalAway, PositionInvalid, SettingInvalid, SetupError
from stateside.core.positions import Position
from stateside.core.processes import free_port
from stateside.journal import Event
from stateside.journal.backends.kafka import KafkaJournal, KafkaWriter, Topic, create_topic, topic_reader
from stateside.journal.queries import Queries, QueryViews
from stateside.testbed.broker import Broker
from tests.journal.entities.accounts import Account, Pay
from tests.journal.kafka.topics import delete, delete_before, event, new_topic, real
from tests.journal.queries.streams import Model

pytestmark = real


def test_queries_by_views_that_follow_the_topic_say_what_a_plain_model_says(broker: Broker, tmp_path: Path) -> None:
    topic, model = new_topic(broker, 3), Model()
    with (
        KafkaWriter(topic, tmp_path / "index") as writer,
        KafkaJournal(topic) as journal,
        QueryViews(journal, tmp_path / "views") as views,
    ):
        queries = Queries(journal, views)
        for round_ in range(4):
            events = [
                Event(f"{round_}-{n}", f"entity-{n % 7}", f"type-{n % 2}", n, {}, (f"tag-{n % 3}",)) for n in range(40)
            ]
            writer.append(events[:39])
            writer.append(events[39:])
            model.append(events)
            if round_ != 3:  # the last ones are read from the topic itself
                assert views.follow() == journal.end()
        for n in range(7):
            found = [(each.event.sequence, each.event) for each in queries.entity(f"entity-{n}").current()]
            assert found == model.entity(f"entity-{n}")
            assert queries.last_sequence(f"entity-{n}") == len(found)
        for tag in ("tag-0", "none"):
            tagged = list(queries.tagged(tag).current())
            assert {each.event.id for each in tagged} == {each.id for each in model.tagged(tag)}
            assert [each.event for each in queries.tagged(tag).current()] == [each.event for each in tagged]
        assert len(list(queries.between(5, 10).current())) == len(model.between(5, 10))
        assert list(queries.entities().current()) == model.entities()
        assert sorted(born.entity for born in queries.born().current()) == model.entities()
        found_all = list(queries.all().current())
        assert len(found_all) == 160
        middle = found_all[77].position
        assert [each.event.id for each in queries.all().current(middle)] == [each.event.id for each in found_all[78:]]


def test_a_live_query_gets_what_comes_and_ends_when_the_topic_is_made_anew(broker: Broker, tmp_path: Path) -> None:
    topic, stop = new_topic(broker), threading.Event()
    with KafkaWriter(topic, tmp_path / "index") as writer, QueryViews(KafkaJournal(topic), tmp_path / "views") as views:
        writer.append([event("a")])
        live = Queries(views.stream, views).all().live(stop=stop)
        assert next(live).event.id == "a"
        threading.Timer(0.2, writer.append, [[event("b")]]).start()
        assert next(live).event.id == "b"
        views.follow()
        delete(topic)
        create_topic(topic, partitions=1)
        with KafkaWriter(topic, tmp_path / "index") as again:
            again.append([event("x")])  # a shorter topic: it never gets beyond where the query stands
            with pytest.raises(JournalAway, match=r"another one than it was when the (query|reader) began"):
                next(live)
            assert views.follow() == views.stream.end()  # made again, of the new topic
            assert {each.event.id for each in Queries(views.stream, views).entity("emma").current()} == {"x"}


def test_what_a_consumer_met_ahead_of_its_last_reader_is_not_told_to_the_next_one(
    broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(broker)
    with KafkaWriter(topic, tmp_path) as writer, topic.consumer() as consumer:
        writer.append([event("a")])
        consumer.assign([TopicPartition(topic.name, 0, 77)])  # where it went on when the topic was a longer one
        journal = KafkaJournal(topic)
        journal._fetcher._kept.append(consumer)
        time.sleep(1)  # its error waits in it, and cannot be looked at
        assert [each.id for each in journal.events()] == ["a"]


def test_a_reader_that_takes_its_time_is_not_led_into_another_topic(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "MESSAGES_AT_ONCE", 2)
    topic = new_topic(broker)
    with KafkaWriter(topic, tmp_path) as writer:
        writer.append([event(f"old-{n}") for n in range(9)])
    reading = KafkaJournal(topic).located("0", 0, 9)
    next(reading)
    delete(topic)
    create_topic(topic, partitions=1)
    with KafkaWriter(topic, tmp_path) as writer:
        writer.append([event(f"new-{n}") for n in range(20)])
    with pytest.raises(JournalAway, match="another one than it was when the reader began"):
        list(reading)


def test_entities_live_on_kafka_too(broker: Broker, tmp_path: Path) -> None:
    from stateside.journal.entities import Entities

    topic = new_topic(broker, 2)
    for life in range(2):
        with (
            KafkaWriter(topic, tmp_path / "index") as writer,
            QueryViews(KafkaJournal(topic), tmp_path / "views") as views,
        ):
            accounts = Entities(writer, Queries(views.stream, views), Account())
            for amount in (1, 2):
                outcome = accounts.ask("emma", Pay(amount))
            assert outcome.sequence == 2 * (life + 1)
            assert outcome.state.cents == 3 * (life + 1)


class TestWhatCanBeWrong:
    @pytest.mark.timeout(60)
    def test_a_wrong_address_is_told_in_bounded_time(self, tmp_path: Path) -> None:
        topic = Topic(f"127.0.0.1:{free_port()}", "events", answer_s_max=1.0)
        for attempt in (KafkaJournal(topic).id, lambda: KafkaWriter(topic, tmp_path)):
            with pytest.raises(JournalAway, match="Kafka does not answer") as away:
                attempt()
            assert "See that the address is right" in str(away.value)

    def test_a_missing_topic_is_told_and_not_created(self, broker: Broker, tmp_path: Path) -> None:
        topic = Topic(broker.address, "mistyped")
        journal = KafkaJournal(topic)
        assert journal.id() is None
        for attempt in (journal.end, journal.partitions, lambda: KafkaWriter(topic, tmp_path)):
            with pytest.raises(JournalAway, match="There is no topic 'mistyped'") as away:
                attempt()
            assert f"stateside journal create kafka://{broker.address}/mistyped" in str(away.value)
        assert journal.id() is None

    def test_events_that_retention_deleted_are_never_skipped(
        self, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path) as writer:
            for id_ in "abc":
                writer.append([event(id_)])
        journal = KafkaJournal(topic)
        with QueryViews(journal, tmp_path / "behind") as behind, monkeypatch.context() as patched:
            patched.setattr(journal, "end", lambda: Position.of({"0": 1}))
            assert behind.follow() == Position.of({"0": 1})
        delete_before(topic, 3)
        for start in (None, Position.of({"0": 2})):
            with pytest.raises(EventsGone, match=rf"at 0:{2 if start else 0} to 0:2 are gone") as gone:
                list(journal.events(start))
            assert "Bring them back from a copy" in str(gone.value)
            assert "begin at 0:3 without them" in str(gone.value)
        assert [each.id for each in journal.events(journal.begin())] == ["c"]
        for folder in ("new", "behind"):  # views that lack deleted events are made again of what is there
            with QueryViews(journal, tmp_path / folder) as views:
                with pytest.raises(EventsGone, match="0:0 to 0:2"):
                    Queries(journal, views).all().current()
                assert views.follow() == journal.end()
                found = Queries(journal, views).typed("call").current(journal.begin())
                assert [each.event.id for each in found] == ["c"]

    def test_events_that_are_deleted_while_somebody_reads_them_are_not_skipped_either(
        self, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path) as writer:
            writer.append([event(f"{n}") for n in range(9)])
        journal = KafkaJournal(topic)
        checked = journal._checked

        def delete_after(*range_: Any) -> tuple[str, int]:
            found = checked(*range_)
            delete_before(topic, 5)
            return found

        monkeypatch.setattr(journal, "_checked", delete_after)
        with pytest.raises(EventsGone, match="at 0:0 to 0:4 are gone"):
            list(journal.located("0", 0, 9))

    def test_positions_that_are_none_of_this_topic(self, broker: Broker) -> None:
        journal = KafkaJournal(new_topic(broker, 2))
        for position in ("7:1", "1:1"):
            with pytest.raises(PositionInvalid):
                list(journal.events(stop=Position.parse(position)))
        with pytest.raises(PositionInvalid, match="names no message"):
            KafkaJournal(journal.topic, pass_over=["here"])

    def test_options_that_are_none_are_told_without_their_secrets(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        monkeypatch.setenv("SECRET", "hunter2")
        topic = Topic(broker.address, "events", {"security.protocol": "env:SECRET"})
        assert "SECRET" not in repr(topic)
        with pytest.raises(SettingInvalid, match="Kafka's options are not in order") as refusal:
            KafkaJournal(topic).id()
        assert "hunter2" not in str(refusal.value) + caplog.text
        with pytest.raises(SetupError, match="'NOT_SET', which is not set"):
            KafkaJournal(Topic(broker.address, "events", {"sasl.password": "env:NOT_SET"})).id()
        with pytest.raises(SettingInvalid, match=r"sets 'isolation\.level' itself"):
            Topic(broker.address, "events", {"isolation.level": "read_uncommitted"})

    def test_tls_and_sasl_settings_reach_the_client(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        """The broker speaks neither: what is shown is that the client tries to."""
        monkeypatch.setenv("SECRET", "hunter2")
        options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
        options |= {"sasl.username": "shop", "sasl.password": "env:SECRET"}
        with pytest.raises(JournalAway) as away:
            KafkaJournal(Topic(broker.address, "events", options, answer_s_max=1.0)).id()
        assert "hunter2" not in str(away.value)
