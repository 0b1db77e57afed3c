"""The merged stream for its readers: partitions, offsets, waiting, and where a node's receipt stands in it."""

import shutil
import threading
from pathlib import Path

import pytest

from stateside.core.errors import PositionAhead, PositionInvalid
from stateside.core.positions import Position
from stateside.journal import Event
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter, partition
from stateside.journal.columns import SCHEMA
from tests.journal.nodes.dying import event


def test_a_stream_is_empty_before_its_first_merger(tmp_path: Path) -> None:
    stream = MergedJournal(tmp_path)
    assert (stream.id(), list(stream.partitions()), stream.end()) == (None, [], Position.start())
    with NodeWriter(tmp_path, "a") as node:
        receipt = node.append_to("emma", [event("0")]).position
    assert not stream.covers(receipt)
    assert stream.wait_for(receipt, 0.01) is None


def test_a_stream_has_an_id_for_life_and_the_journal_s_columns(tmp_path: Path) -> None:
    stream, ids = MergedJournal(tmp_path), set()
    for number in range(2):
        with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
            node.append_to("emma", [event(f"{number}")])
            merger.merge()
        ids.add(stream.id())
    assert len(ids) == 1
    assert None not in ids
    assert stream.end() == Position.of({"0": 2})
    for first, batch in stream.batches("0", 1, 2):
        assert (first, batch.num_rows, batch.schema) == (1, 1, SCHEMA)
    with pytest.raises(PositionInvalid):
        list(stream.batches("0", 0, 3))
    with pytest.raises(PositionInvalid, match="no partition '7'"):
        list(stream.batches("7", 0, 0))


def test_a_partition_s_log_names_its_positions_as_the_stream_does(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path, partitions=2) as merger:
        receipt = node.append([Event(f"e{number}", f"c{number}", "call", 0, {}) for number in range(20)])
        merger.merge()
    stream = MergedJournal(tmp_path)
    for name, log in stream.logs().items():
        assert log.end() == Position.of({name: stream.end()[name]}) != Position.start()
        middle = Position.of({name: 2})
        assert len(list(log.events(middle, log.end()))) == log.end().one() - 2
        for foreign in (receipt, stream.end(), Position.of({"01"[name == "0"]: 1})):
            for asked in ({"start": foreign}, {"stop": foreign}):
                with pytest.raises(PositionInvalid):
                    list(log.events(**asked))
            with pytest.raises(PositionInvalid):
                log.unstored([], foreign)
        assert len(log.unstored([event("new")], middle)) == 1


def test_events_come_back_as_they_were_given_to_the_node(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        node.append_to("emma", [event("0"), event("1")])
        merger.merge()
    found = list(MergedJournal(tmp_path).events())
    assert found == [event("0"), event("1")]
    assert all(not one.extra for one in found)


def test_a_reader_waits_until_the_end_has_moved(tmp_path: Path) -> None:
    stream = MergedJournal(tmp_path)
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        node.append_to("emma", [event("0")])
        assert not stream.wait(Position.start(), 0.01)
        merger.merge()
        assert stream.wait(Position.start(), 0)
        assert not stream.wait(stream.end(), 0.01)


# Receipts


def test_a_receipt_is_found_in_the_stream_once_it_is_merged(tmp_path: Path) -> None:
    stream, receipts = MergedJournal(tmp_path), []
    with NodeWriter(tmp_path, "a") as node, NodeWriter(tmp_path, "b") as other, Merger(tmp_path) as merger:
        for number in range(10):
            for name, writer in (("ben", other), ("emma", node)):
                receipts.append(writer.append_to(name, [event(f"{name}-{number}", name)]).position)
                assert not stream.covers(receipts[-1])
            if number % 3 == 0:
                merger.merge()
        merger.merge()
    ids = [found.id for found in stream.events()]
    for number, receipt in enumerate(receipts):
        position = stream.position_of(receipt)
        assert position is not None
        assert ids[position["0"] - 1] == f"{('ben', 'emma')[number % 2]}-{number // 2}"


def test_the_receipt_of_many_entities_is_behind_all_of_their_events(tmp_path: Path) -> None:
    stream = MergedJournal(tmp_path)
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path, partitions=3) as merger:
        node.append([event(f"before-{number}", f"entity-{number}") for number in range(9)])
        receipt = node.append([event(f"{number}", f"entity-{number}") for number in range(9)])
        merger.merge()
        expected = stream.end()
        node.append([event(f"behind-{number}", f"entity-{number}") for number in range(9)])
        merger.merge()
    assert stream.position_of(receipt) == expected
    assert stream.end() != expected


def test_a_receipt_is_covered_although_another_entity_waits(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "b") as other:
        other.append_to("emma", [event("0")])
        other.release(other.slots)
    stream = MergedJournal(tmp_path)
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        waits = node.append_to("emma", [event("1")]).position
        goes_on = node.append_to("ben", [event("ben", "ben")]).position
        (tmp_path / "nodes" / "b").rename(tmp_path / "away")
        merger.merge()
        assert stream.position_of(goes_on) == Position.of({"0": 1})
        assert not stream.covers(waits)
        (tmp_path / "away").rename(tmp_path / "nodes" / "b")
        merger.merge()
        assert stream.position_of(waits) == Position.of({"0": 3})


def test_a_receipt_is_found_in_old_segments_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "SEGMENT_BYTES_MAX", 1)
    stream = MergedJournal(tmp_path)
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        receipts = []
        for number in range(6):
            receipts.append(node.append_to("emma", [event(f"{number}")]).position)
            merger.merge()
    assert len(list((tmp_path / "merged" / "0").glob("*.segment"))) > 4
    assert [stream.position_of(receipt) for receipt in receipts] == [Position.of({"0": n}) for n in range(1, 7)]


def test_a_receipt_whose_event_was_dropped_is_covered_by_the_equal_one(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("0"), event("1")])
    (tmp_path / "nodes" / "a" / "1" / "index").rename(tmp_path / "index")
    shutil.copytree(tmp_path / "nodes" / "a", tmp_path / "nodes" / "b")
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        merger.merge()
        node.append_to("emma", [event("2")])
        merger.merge()
    assert MergedJournal(tmp_path).position_of(Position.of({"b.1": 2})) == Position.of({"0": 2})


def test_what_is_no_receipt_of_this_folder_is_refused(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        node.append_to("emma", [event("0")])
        merger.merge()
    stream = MergedJournal(tmp_path)
    with pytest.raises(PositionInvalid, match=r"no log c\.1"):
        stream.covers(Position.of({"c.1": 1}))
    with pytest.raises(PositionAhead, match=r"a\.1 ends before 2"):
        stream.covers(Position.of({"a.1": 2}))
    assert stream.position_of(Position.start()) == Position.start()


def test_a_reader_waits_for_its_own_event(tmp_path: Path) -> None:
    stream, stop = MergedJournal(tmp_path), threading.Event()
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        thread = threading.Thread(target=merger.run, args=[stop])
        thread.start()
        try:
            for number in range(5):
                receipt = node.append_to("emma", [event(f"{number}")]).position
                assert stream.wait_for(receipt, 30) == Position.of({"0": number + 1})
        finally:
            stop.set()
            thread.join()
    assert stream.merged().done == Position.of({"a.1": 5})


def test_the_tail_has_what_is_not_merged_as_far_as_nothing_is_missing_in_between(tmp_path: Path) -> None:
    stream = MergedJournal(tmp_path)
    with NodeWriter(tmp_path, "b") as other, NodeWriter(tmp_path, "a") as node:
        for writer, ids in ((other, ["1"]), (node, ["2", "3"]), (other, ["4"])):
            writer.append_to("emma", [event(id_) for id_ in ids])
            writer.release(writer.slots)
    assert [found.id for found in stream.tail("emma", 1, 9)] == ["1", "2", "3", "4"]
    assert [found.id for found in stream.tail("emma", 2, 3)] == ["2", "3"]
    assert stream.tail("nobody", 1, 9) == []
    with Merger(tmp_path) as merger:
        away = (tmp_path / "nodes" / "a").rename(tmp_path / "away")
        merger.merge()
        assert stream.tail("emma", 2, 4) == []
        assert [found.id for found in stream.tail("emma", 4, 4)] == ["4"]
        away.rename(tmp_path / "nodes" / "a")
        merger.merge()
    assert stream.tail("emma", 1, 4) == [], "all of it is in the stream"
