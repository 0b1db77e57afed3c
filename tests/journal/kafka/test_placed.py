"""A folder whose journal is a topic: read and written as one on files is."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.errors import EventsGone, JournalAway, JournalFenced, PositionInvalid, SettingInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.kafka import KafkaJournal, KafkaWriter, Topic, create_topic
from stateside.journal.backends.kafka.admin import Admin, Described
from stateside.journal.backends.kafka.topic import topic_at
from stateside.journal.backends.kafka.topic_folder import NAME, PlacedWriter, place, placed, topic_of
from stateside.journal.backends.kafka.topic_reader import TopicLog
from stateside.journal.backends.nodes import NodeWriter
from stateside.journal.columns import encode
from stateside.journal.location import open_journal
from stateside.journal.upcasters import Upcasters
from stateside.pipeline.sources import JournalEvents, Reading
from stateside.testbed.broker import Broker
from tests.journal.kafka.topics import add_partitions, delete, event, new_topic, real


def test_a_folder_without_a_note_has_its_journal_on_files(tmp_path: Path) -> None:
    assert placed(tmp_path) is None
    with open_journal(tmp_path).writer() as writer:
        receipt = writer.append([event("a")])
    journal = open_journal(tmp_path).log()
    assert type(journal) is FileLog
    assert journal.in_stamps(receipt) == journal.end() == receipt
    with pytest.raises(JournalAway, match="is no topic on Kafka"):
        topic_of(tmp_path)


def test_a_folder_that_has_a_journal_of_its_own_cannot_have_another_one(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([event("a")])
    with pytest.raises(SettingInvalid, match="has a journal of its own"):
        place(tmp_path, "kafka://localhost:9092/billing")
    assert placed(tmp_path) is None


def test_a_folder_of_nodes_has_no_topic_beside_them(tmp_path: Path) -> None:
    """Neither way, and if somebody writes the note by hand, nobody guesses which one is meant."""
    with NodeWriter(tmp_path / "nodes", "a"):
        pass
    with pytest.raises(SettingInvalid, match="has a journal of its own"):
        place(tmp_path / "nodes", "kafka://localhost:9092/billing")
    place(tmp_path / "topic", "kafka://localhost:9092/billing")
    with pytest.raises(SettingInvalid, match="a topic on Kafka, and this writes to files"):
        NodeWriter(tmp_path / "topic", "a")
    assert [path.name for path in (tmp_path / "topic").iterdir()] == [NAME]
    (tmp_path / "topic" / NAME).rename(tmp_path / "nodes" / NAME)
    with pytest.raises(SettingInvalid, match="has a topic on Kafka, and nodes beside it"):
        open_journal(tmp_path / "nodes")


@pytest.mark.parametrize("content", ["", "{}", "[]", "7", '{"address": "nowhere"}', '{"address": 7}'])
def test_a_note_that_cannot_be_read_is_no_empty_journal(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(SettingInvalid):
        open_journal(tmp_path).log()


def test_who_writes_to_files_is_refused_where_the_journal_is_a_topic(tmp_path: Path) -> None:
    place(tmp_path, "kafka://localhost:9092/billing")
    assert placed(tmp_path) == topic_of(tmp_path)
    with pytest.raises(SettingInvalid, match="a topic on Kafka, and this writes to files"):
        JournalWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_an_application_that_reads_files_does_not_wait_for_events_that_stand_in_a_topic(tmp_path: Path) -> None:
    place(tmp_path, "kafka://localhost:9092/billing")
    with pytest.raises(SettingInvalid, match="this application reads files") as told:
        JournalEvents().options(Reading(tmp_path))
    assert "stateside.billing.pipeline.on_kafka:app" in told.value.sentence()


def test_who_looks_after_files_says_that_the_journal_is_a_topic(layout: Layout) -> None:
    place(layout.journal, "kafka://localhost:9092/billing")
    done = CliRunner().invoke(main, ["journal", "drop", "--yes", "--dir", str(layout.root), "--before", "0:1"])
    assert done.exit_code == 1
    assert "a topic on Kafka, and this looks after journals on files" in done.output


def test_a_folder_is_not_placed_at_a_topic_of_several_partitions(layout: Layout) -> None:
    arguments = ["kafka://localhost:1/billing", "--partitions", "3", "--dir", str(layout.root)]
    done = CliRunner().invoke(main, ["journal", "create", *arguments])
    assert done.exit_code == 1
    assert "one partition, not 3" in done.output
    assert not layout.journal.exists()


@pytest.mark.parametrize("option", ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.config"])
def test_a_secret_does_not_get_into_a_folders_file(layout: Layout, option: str) -> None:
    address = f"kafka://localhost:1/billing?client.id=me&{option}="
    done = CliRunner().invoke(
        main, ["journal", "create", f"{address}horse", "--partitions", "1", "--dir", str(layout.root)]
    )
    assert done.exit_code == 1
    assert "write env:NAME" in done.output
    assert "horse" not in done.output
    assert not layout.journal.exists()
    assert place(layout.journal, f"{address}env:HORSE").options[option] == "env:HORSE"


def test_positions_in_a_folders_journal_are_as_in_stamps_and_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin, "described", lambda _: Described("id", 1))
    monkeypatch.setattr(Admin, "ends", lambda _, numbers: dict.fromkeys(numbers, 13))
    monkeypatch.setattr(Admin, "begins", lambda _, numbers: dict.fromkeys(numbers, 4))
    place(tmp_path, "kafka://localhost:1/billing")
    journal, receipt = open_journal(tmp_path), Position.parse("billing-0:12")
    assert list(journal.partitions()) == ["billing-0"]
    assert [str(journal.begin()), str(journal.end())] == ["billing-0:4", "billing-0:13"]
    assert journal.in_stamps(journal.end()) == journal.end() == journal.log().end() == journal.logs()["billing-0"].end()
    assert journal.end().covers(receipt)
    assert not journal.wait(journal.end(), 0)
    with pytest.raises(EventsGone, match=r"at billing-0:0 to billing-0:3 are gone"):
        list(journal.events())
    with pytest.raises(PositionInvalid, match="none is '0'"):
        list(journal.events(Position.parse("0:12")))
    plain = open_journal("kafka://localhost:1/billing")
    assert (str(plain.end()), str(plain.in_stamps(plain.end()))) == ("0:13", "billing-0:13")


def test_the_log_of_a_topic_converts_events_as_its_journal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = encode([Event("a", "emma", "call", 0, {"n": 1})], 0)
    monkeypatch.setattr(KafkaJournal, "batches", lambda *_: [(0, stored)])
    monkeypatch.setattr(Admin, "described", lambda _: Described("id", 1))
    monkeypatch.setattr(Admin, "ends", lambda _, numbers: dict.fromkeys(numbers, 1))
    upcasters = Upcasters()
    upcasters.register("call", 1, lambda payload: {"m": payload["n"]})
    log = open_journal("kafka://localhost:1/billing", upcasters=upcasters).log()
    assert [(each.payload, each.version) for each in log.events()] == [({"m": 1}, 2)]


class TestTopicLog:
    pytestmark = real

    def test_it_is_read_as_a_journal_on_files_is(self, broker: Broker, tmp_path: Path) -> None:
        topic = new_topic(broker)
        files, folder = tmp_path / "files", tmp_path / "kafka"
        place(folder, f"kafka://{broker.address}/{topic.name}")
        appends = [[event("a"), event("b", "ben")], [event("c")], [event("d", "ben"), event("e")]]
        with open_journal(files).writer() as one, open_journal(folder).writer() as other:
            for events in appends:
                one.append(events)
                receipt = other.append(events)
        stored, topic_log = open_journal(files).log(), open_journal(folder).log()
        assert isinstance(topic_log, TopicLog)
        assert list(topic_log.events()) == list(stored.events())
        assert topic_log.end().covers(receipt)
        assert topic_log.end() == Position.of({f"{topic.name}-0": topic_log.durable_end().offset})
        assert topic_log.begin() == Position.start()
        offsets = [first + n for first, batch in topic_log.batches(0, topic_log.end().one()) for n in range(len(batch))]
        assert offsets == [0, 1, 3, 5, 6]  # the mark behind each transaction takes one
        new = event("new")
        assert topic_log.unstored([event("d", "ben"), new], Position.start()) == [new]
        assert [one.id for one in topic_log.events(Position.of({f"{topic.name}-0": 4}))] == ["d", "e"]
        assert list(topic_log.batches(7, 8)) == []  # nothing but a mark
        with pytest.raises(PositionInvalid):
            list(topic_log.batches(0, 100))

    def test_one_of_several_partitions_has_no_order_and_is_refused(self, broker: Broker, tmp_path: Path) -> None:
        topic = new_topic(broker, 2)
        place(tmp_path, f"kafka://{broker.address}/{topic.name}")
        for refused in (lambda: open_journal(tmp_path).writer(), lambda: open_journal(tmp_path).log().end()):
            with pytest.raises(SettingInvalid, match="several partitions"):
                refused()

    def test_partitions_that_are_added_later_stop_readers_and_writers_and_lose_nothing(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        topic = new_topic(broker)
        place(tmp_path, f"kafka://{broker.address}/{topic.name}")
        journal = open_journal(tmp_path).log()
        with open_journal(tmp_path).writer() as writer:
            writer.append([event("a")])
            add_partitions(topic, 2)
            for refused in (journal.end, lambda: list(journal.events()), lambda: open_journal(tmp_path).writer()):
                with pytest.raises(SettingInvalid, match="several partitions") as told:
                    refused()
                assert "copy its events into a new topic of one partition" in told.value.sentence()
        assert [each.id for each in KafkaJournal(topic).events()] == ["a"]


class TestPlacedWriter:
    pytestmark = real

    @pytest.fixture
    def topic(self, broker: Broker, layout: Layout) -> Topic:
        """That is the journal of the folder."""
        topic = new_topic(broker)
        return place(layout.journal, f"kafka://{broker.address}/{topic.name}")

    def test_writers_take_turns_and_each_event_is_stored_once_in_order(self, topic: Topic, layout: Layout) -> None:
        def append(number: int) -> list[Position]:
            with open_journal(layout.journal).writer() as writer:
                return [writer.append([event(f"{number}-{n}", f"name-{number}")]) for n in range(4)]

        with ThreadPoolExecutor(3) as pool:
            receipts = [receipt for each in pool.map(append, range(3)) for receipt in each]
        stored = list(open_journal(layout.journal).log().events())
        assert sorted(each.id for each in stored) == [f"{number}-{n}" for number in range(3) for n in range(4)]
        assert len({str(receipt) for receipt in receipts}) == 12
        for number in range(3):
            assert [each.sequence for each in stored if each.entity == f"name-{number}"] == [1, 2, 3, 4]

    def test_one_that_is_fenced_in_its_turn_stores_once_what_has_ids_and_tells_of_the_rest(
        self, topic: Topic, layout: Layout, tmp_path: Path
    ) -> None:
        with open_journal(layout.journal).writer() as writer:
            assert isinstance(writer, PlacedWriter)
            start = writer.append([event("a")])
            with KafkaWriter(topic, tmp_path / "elsewhere") as other:  # on another machine, and so without a turn
                other.append([event("b")])
                writer.append([event("c")])  # fenced, and the owner again: ids are compared, so that it may be repeated
                writer.append_unstored([event("a"), event("b"), event("c")], since=Position.start())
                with pytest.raises(JournalFenced):
                    other.append([event("d")])
            with KafkaWriter(topic, tmp_path / "elsewhere") as other:
                other.append([event("e")])
                assert len(writer.append_once([event("e"), event("f")])) == 2
            assert writer.end.covers(start)
        assert [each.id for each in open_journal(layout.journal).log().events()] == ["a", "b", "c", "e", "f"]

    def test_a_topic_that_was_made_anew_is_not_written_to(self, topic: Topic, layout: Layout) -> None:
        with open_journal(layout.journal).writer() as writer:
            writer.append([event("a")])
            delete(topic)
            create_topic(topic, partitions=1)
            for _ in range(2):
                with pytest.raises(JournalAway):
                    writer.append_once([event("b")])
        assert list(KafkaJournal(topic).events()) == []

    def test_a_server_appends_to_the_topic_and_its_receipts_are_those_of_stamps(
        self, topic: Topic, layout: Layout
    ) -> None:
        from tests.serving.web.test_events import event as posted
        from tests.serving.web.test_events import post

        first = post(layout, json.dumps({"events": [posted("a"), posted("b")]}).encode())
        again = post(layout, json.dumps({"events": [posted("b"), posted("c")]}).encode())
        assert str(first["receipt"]) == f"{topic.name}-0:2"
        assert list(map(str, first["receipts"])) == [f"{topic.name}-0:1", f"{topic.name}-0:2"]
        assert list(map(str, again["receipts"])) == [f"{topic.name}-0:2", f"{topic.name}-0:4"]
        assert [each.id for each in open_journal(layout.journal).log().events()] == ["a", "b", "c"]

    def test_a_folder_is_placed_at_a_topic_that_is_there_or_made_now(self, broker: Broker, tmp_path: Path) -> None:
        address = f"kafka://{broker.address}/{uuid4()}"
        for folder in ("one", "other", "one"):
            arguments = [address, "--partitions", "1", "--dir", str(tmp_path / folder)]
            done = CliRunner().invoke(main, ["journal", "create", *arguments])
            assert done.exit_code == 0, done.output
            assert placed(Layout(tmp_path / folder).journal) == topic_at(address)
        assert CliRunner().invoke(main, ["journal", "create", address, "--partitions", "1"]).exit_code == 1

    def test_commands_find_the_topic_by_the_folder(self, topic: Topic, layout: Layout) -> None:
        line = b'{"id": "a", "entity": "emma", "type": "call"}'
        done = CliRunner().invoke(main, ["append", "--dir", str(layout.root)], input=line)
        assert done.stdout == f"{topic.name}-0:1\n", done.output
        assert not list(layout.journal.glob("*.segment"))
        read = CliRunner().invoke(main, ["journal", "read", "--dir", str(layout.root), "--json"])
        assert json.loads(read.stdout)["id"] == "a"
        stat = CliRunner().invoke(main, ["journal", "stat", "--dir", str(layout.root), "--json"])
        told = json.loads(stat.stdout)
        assert (told["topic"], told["end"]) == (topic.name, "0:2")  # as with --kafka, and as the indexes have it
