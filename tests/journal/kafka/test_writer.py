"""Writers of a journal on Kafka: one transaction an append, several partitions, and what stands in the topic."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import (
    EntityElsewhere,
    EventRefused,
    EventsGone,
    JournalAway,
    JournalCorrupt,
    PositionInvalid,
    SettingInvalid,
)
from stateside.core.positions import Position
from stateside.journal.append_batch import Appended, AppendRequest
from stateside.journal.backends.kafka import KafkaJournal, KafkaWriter, Topic, create_topic
from stateside.journal.backends.kafka.admin import Admin
from stateside.journal.backends.kafka.topic import partition_of
from stateside.journal.columns import encode
from stateside.journal.receipt import Receipt
from stateside.testbed.broker import Broker
from tests.journal.kafka.topics import (
    add_partitions,
    delete,
    delete_before,
    event,
    names_in,
    new_topic,
    real,
    send,
    sequences,
    set_up,
    stored_value,
)

pytestmark = real


def test_an_append_of_many_entities_is_stored_in_their_partitions_and_its_receipt_names_these(
    broker: Broker, tmp_path: Path
) -> None:
    topic, names = new_topic(broker, 3), names_in(3, each=2)
    mixed = [name for each in names[:2] for name in each]
    with KafkaWriter(topic, tmp_path) as writer, KafkaJournal(topic) as journal:
        receipt = writer.append([event(f"{n}-{name}", name) for n in range(2) for name in mixed])
        assert receipt == Position.of({"0": 4, "1": 4})
        assert journal.end().covers(receipt)
        other = writer.append_to(names[2][0], [event("x", names[2][0])], expected_sequence=0)
        assert other == Receipt(Position.of({"2": 1}), 1, 1)
        assert writer.end == receipt.joined(other.position)
        for partition in journal.partitions():
            for offsets, batch in journal.located(partition, 0, journal.end()[partition]):
                found = set(batch.column("entity").to_pylist())
                assert {partition_of(name, 3) for name in found} == {int(partition)}
                assert offsets[0] == 0
        assert sequences(journal) == {**{name: [1, 2] for name in mixed}, names[2][0]: [1]}


def test_a_writer_that_expects_another_topic_is_refused_and_fences_nobody(broker: Broker, tmp_path: Path) -> None:
    journal = KafkaJournal(new_topic(broker), tmp_path)
    with journal.writer(known=journal.id()) as writer:
        for absent in (journal, KafkaJournal(Topic(broker.address, "none"), tmp_path)):
            with pytest.raises(JournalAway, match="not another"):
                absent.writer(known="another")
        writer.append([event("a")])


def test_of_an_append_over_several_partitions_all_is_stored_or_nothing(broker: Broker, tmp_path: Path) -> None:
    topic, names = new_topic(broker, 3, max_message_bytes="4000"), names_in(3)
    with KafkaWriter(topic, tmp_path) as writer:
        good = [event(f"a-{name}", name) for (name,) in names]
        with pytest.raises(EventRefused, match=r"has \d,\d\d\d bytes as a message: the topic takes less"):
            writer.append([*good, event("large", names[2][0], metadata={"x": "y" * 4_000})])
        assert list(KafkaJournal(topic).events()) == []
        writer.append(good)
        writer.append([event(f"b-{n}", names[0][0]) for n in range(300)])  # more than one message's bytes together
        assert sequences(KafkaJournal(topic)) == {
            name: [*range(1, 302 if name == names[0][0] else 2)] for (name,) in names
        }


def test_threads_that_share_a_writer_share_transactions_and_get_receipts_of_their_own(
    broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(broker, 2)
    with KafkaWriter(topic, tmp_path) as writer, ThreadPoolExecutor(16) as pool:
        appends = [[event(f"{n}-{k}", f"entity-{n % 5}") for k in range(n % 3 + 1)] for n in range(64)]
        receipts = list(pool.map(writer.append, appends))
        journal = KafkaJournal(topic)
        assert sum(map(len, sequences(journal).values())) == sum(map(len, appends))
        for found in sequences(journal).values():
            assert found == [*range(1, len(found) + 1)]
        for receipt, events in [*zip(receipts, appends, strict=True)][::9]:  # of one entity each, so of one partition
            *_, last = journal.events(stop=receipt)
            assert last.id == events[-1].id


def test_the_index_may_be_deleted_and_is_made_anew_of_the_topic(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker)
    with KafkaWriter(topic, tmp_path) as writer:
        first = writer.append_to("emma", [event("a"), event("b")])
    shutil.rmtree(tmp_path)
    with KafkaWriter(topic, tmp_path) as writer:
        assert writer.append_to("emma", [event("a"), event("b")]) == first
        assert writer.append_to("emma", [event("c")], expected_sequence=2).last_sequence == 3


def test_an_index_of_another_topic_is_made_anew(broker: Broker, tmp_path: Path) -> None:
    for _ in range(2):
        with KafkaWriter(new_topic(broker), tmp_path) as writer:
            assert writer.append_to("emma", [event("a")], expected_sequence=0).last_sequence == 1


def test_events_that_have_their_sequences_are_copied_as_they_are(broker: Broker, tmp_path: Path) -> None:
    source, target = new_topic(broker), new_topic(broker, 2)
    with KafkaWriter(source, tmp_path / "a") as writer:
        writer.append([event("a"), event("b", "ben"), event("c")])
        assert writer.append_batch(encode([event("d")], 7)) == writer.end
    with KafkaWriter(target, tmp_path / "b") as writer, KafkaJournal(source) as journal:
        for _, batch in journal.located("0", 0, journal.end()["0"]):
            writer.append_numbered(batch)
    found = {each.id: (each.entity, each.sequence) for each in KafkaJournal(target).events()}
    assert found == {"a": ("emma", 1), "b": ("ben", 1), "c": ("emma", 2), "d": ("emma", 3)}


def test_who_repeats_an_event_that_was_deleted_is_refused_and_nobody_else(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker)
    with KafkaWriter(topic, tmp_path) as writer:
        writer.append_to("emma", [event("old")])
        writer.append([event("x", "ben")])
        delete_before(topic, 2)
        requests = [AppendRequest([event("new", "ben")]), AppendRequest([event("old")], "emma")]
        first, repeat = writer._append_together(requests)
        assert isinstance(first, Appended)
        assert isinstance(repeat, EventRefused)
        assert "'old' is stored already, and dropped since" in str(repeat)


class TestOthersWhoSend:
    """Who is no owner can send to a topic all the same. It is noticed, before anything is numbered wrongly."""

    def test_an_event_of_somebody_else_is_counted_before_the_next_one_is_numbered(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path) as writer:
            writer.append_to("emma", [event("a")])
            send(topic, stored_value("copied", 2))
            assert writer.append_to("emma", [event("b")]).last_sequence == 3
        assert [(each.id, each.sequence) for each in KafkaJournal(topic).events()] == [
            ("a", 1),
            ("copied", 2),
            ("b", 3),
        ]

    def test_that_the_ends_move_a_moment_late_is_no_other_sender(
        self, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic, asked = new_topic(broker), Admin.ends
        with KafkaWriter(topic, tmp_path) as writer:
            writer.append_to("emma", [event("a")])
            send(topic, stored_value("copied", 2))
            late = iter([asked(writer._admin, [0])] * 4)
            monkeypatch.setattr(Admin, "ends", lambda admin, numbers: next(late, None) or asked(admin, numbers))
            assert writer.append_to("emma", [event("b")]).last_sequence == 3

    def test_a_message_that_is_no_event_stops_writer_and_reader_until_it_is_passed_over(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path) as writer:
            writer.append([event("a")])
            send(topic, b"hello")
            for _ in range(2):
                with pytest.raises(JournalCorrupt, match="The message at 0:2 is no event: it is not JSON") as refusal:
                    writer.append([event("b")])
            assert "pass_over 0:2" in str(refusal.value)
        with pytest.raises(JournalCorrupt, match="0:2"):
            list(KafkaJournal(topic).events())
        with KafkaWriter(topic, tmp_path, pass_over=["0:2"]) as writer:
            writer.append([event("b")])
        assert [each.id for each in KafkaJournal(topic, pass_over=["0:2"]).events()] == ["a", "b"]


class TestTopics:
    def test_a_topic_that_was_made_anew_is_noticed(self, broker: Broker, tmp_path: Path) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path) as writer, KafkaJournal(topic) as journal:
            writer.append([event("a")])
            before = journal.id()
            assert before == writer.journal_id
            delete(topic)
            assert journal.id() is None
            create_topic(topic, partitions=1)
            assert journal.id() not in (None, before)
            for _ in range(2):
                with pytest.raises(JournalAway, match="another one than it was when this writer was opened"):
                    writer.append([event("b")])
        assert list(KafkaJournal(topic).events()) == []
        with KafkaWriter(topic, tmp_path) as writer:
            assert writer.append_to("emma", [event("a")], expected_sequence=0).last_sequence == 1

    def test_partitions_that_were_added_are_noticed(self, broker: Broker, tmp_path: Path) -> None:
        topic, ((first, *_), _) = new_topic(broker, 1), names_in(2)
        strays = [name for number in range(9) if partition_of(name := f"n{number}", 2) == 1]
        with KafkaWriter(topic, tmp_path) as writer:
            writer.append([event(f"e-{name}", name) for name in (first, *strays)])
        add_partitions(topic, 2)
        with pytest.raises(JournalCorrupt, match="stand in partition 0; of 2 partitions theirs is 1"):
            KafkaWriter(topic, tmp_path)

    def test_a_topic_that_would_be_compacted_is_no_journal(self, broker: Broker, tmp_path: Path) -> None:
        with pytest.raises(SettingInvalid, match="keep the last event only"):
            new_topic(broker, cleanup_policy="compact")
        topic = new_topic(broker)
        set_up(topic, "cleanup.policy", "compact")
        with pytest.raises(SettingInvalid, match="keep the last event only"):
            KafkaWriter(topic, tmp_path)

    def test_a_topic_is_created_once(self, broker: Broker) -> None:
        topic = new_topic(broker, 2)
        with pytest.raises(SettingInvalid, match=r"There is a topic .* already"):
            create_topic(topic, partitions=2)


def test_what_is_unstored_since_the_journals_end_is_stored(broker: Broker, tmp_path: Path) -> None:
    """The end lies behind the mark of the writer's own last transaction."""
    topic = new_topic(broker)
    with KafkaWriter(topic, tmp_path) as writer, KafkaJournal(topic) as journal:
        for id_ in "abc":
            writer.append_unstored([event(id_)], since=journal.end())
        send(topic, stored_value("x", 4), b"emma", 0)  # by who is no owner: the end lies behind what the writer knows
        writer.append_unstored([event("d")], since=journal.end())
        with pytest.raises(PositionInvalid):
            writer.append_unstored([event("e")], since=Position.of({"0": 99}))
        assert [each.id for each in journal.events()] == ["a", "b", "c", "x", "d"]


@pytest.mark.parametrize("moment", ["while it is committed", "before it is known"])
def test_a_writer_that_is_interrupted_when_an_append_counts_takes_nothing_until_it_is_opened_again(
    broker: Broker, tmp_path: Path, moment: str
) -> None:
    topic, interrupted = new_topic(broker), threading.Event()

    def interrupt(number: int) -> None:
        if number == 7 and interrupted.is_set():
            raise KeyboardInterrupt

    with KafkaWriter(topic, tmp_path, on_step=interrupt) as writer:
        writer.append([event("a")])
        if moment == "before it is known":
            interrupted.set()
        else:
            (lane,) = writer._groups
            lane._producer = InterruptedAtTheEnd(lane._producer)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            writer.append([event("b")])
        with pytest.raises(JournalAway, match="It is not known whether the last append is stored"):
            writer.append_to("emma", [event("c")], expected_sequence=2)
    with KafkaWriter(topic, tmp_path) as writer:
        assert writer.append_to("emma", [event("b")]).last_sequence == 2
        assert writer.append_to("emma", [event("c")], expected_sequence=2).last_sequence == 3


class InterruptedAtTheEnd:
    """A producer whose user is interrupted just when the commit is done."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def commit_transaction(self, timeout_s: float) -> None:
        self._producer.commit_transaction(timeout_s)
        raise KeyboardInterrupt


def test_an_owner_of_some_partitions_says_whose_an_entity_is(broker: Broker, tmp_path: Path) -> None:
    topic, ((mine,), (other,)) = new_topic(broker, 2), names_in(2)
    with KafkaWriter(topic, tmp_path, partitions=[0]) as writer:
        with pytest.raises(EntityElsewhere):
            writer.append_unstored([event("a", other)], since=Position.of({"1": 5}))
        with pytest.raises(EventRefused):
            writer.append_to("\ud800", [event("a", "\ud800")])
        assert writer.append_to(mine, [event("a", mine)]).last_sequence == 1


class TestRetention:
    @pytest.mark.parametrize("before", [3, 5])  # with one event left, and with none
    def test_a_writer_whose_index_knows_what_was_deleted_goes_on(
        self, broker: Broker, tmp_path: Path, before: int
    ) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path) as writer:
            writer.append([event("a"), event("b", "ben")])
            writer.append([event("c")])
        delete_before(topic, before)
        with KafkaWriter(topic, tmp_path) as writer:
            assert writer.append_to("ben", [event("d", "ben")], expected_sequence=1).last_sequence == 2
            assert writer.append_to("emma", [event("e")], expected_sequence=2).last_sequence == 3

    def test_one_that_does_not_know_it_stops_and_names_the_two_ways_on(self, broker: Broker, tmp_path: Path) -> None:
        topic = new_topic(broker)
        with KafkaWriter(topic, tmp_path / "known") as writer:
            writer.append([event("a"), event("b", "ben")])
            writer.append([event("c")])
        delete_before(topic, 3)
        with KafkaWriter(topic, tmp_path / "known") as owner:
            with pytest.raises(EventsGone, match="The events at 0:0 to 0:2 are gone") as gone:
                KafkaWriter(topic, tmp_path / "new")
            owner.append([event("x", "otto")])  # nobody was fenced for an attempt that failed
        assert "Bring back an index" in str(gone.value)
        assert "go on without them" in str(gone.value)
        with KafkaWriter(topic, tmp_path / "new", accept_gone=True) as writer:
            assert writer.append_to("emma", [event("d")]).last_sequence == 3  # of her one is left
            assert writer.append_to("ben", [event("e", "ben")]).last_sequence == 1


def test_a_writer_that_is_closed_stores_nothing(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker)
    with KafkaWriter(topic, tmp_path) as writer:
        thread = threading.Thread(target=writer.append, args=[[event("a")]])
        thread.start()
        thread.join(30)
    with pytest.raises(JournalAway, match="closed"):
        writer.append([event("b")])
    assert [each.id for each in KafkaJournal(topic).events()] == ["a"]
