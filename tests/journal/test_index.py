"""The index of every backend: which value of a key counts, and the formats of 0.1.0, written here by hand."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import lmdb
import pytest

from stateside.journal import Event, JournalWriter
from stateside.journal.backends.kafka.admin import Described
from stateside.journal.backends.kafka.topic_index import TopicIndex
from stateside.journal.backends.nodes import NodeWriter
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.columns import encode
from stateside.journal.index import hash_of, numbered

TOPIC = Described("topic", 2)


def noted(index: TopicIndex, partition: int, first: int, *ids: str) -> None:
    batch, _ = numbered(encode([Event(id_, "emma", "call", 0, {}) for id_ in ids], 0), lambda names: [first])
    index.note(partition, range(first, first + len(ids)), batch)


@contextmanager
def entries(directory: Path) -> Iterator[lmdb.Transaction]:
    """A write transaction of an LMDB environment, made if there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        yield transaction


@pytest.mark.parametrize("flushed", [False, True])
def test_of_equal_ids_the_first_counts_and_of_sequences_the_last(tmp_path: Path, flushed: bool) -> None:
    index = TopicIndex(tmp_path, TOPIC)
    noted(index, 1, 0, "a", "b")
    if flushed:
        index.flush()
    noted(index, 1, 2, "a", "c", "c")
    for covered in (5, 7):
        assert [place and tuple(place) for place in index.places("abcd")] == [("1", 0), ("1", 1), ("1", 3), None]
        assert (index.lasts(["emma", "ben"]), index.covers(1), index.covers(0)) == ([5, 0], covered, 0)
        index.reach(1, 7)
        assert (index.covers(1), index.behind_last(1)) == (7, 5)
        index.close()
        index = TopicIndex(tmp_path, TOPIC)
    index.close()
    other = TopicIndex(tmp_path, Described("topic", 3))
    assert (other.places("a"), other.lasts(["emma"]), other.covers(1)) == ([None], [0], 0), "of another topic"
    other.close()


def test_an_index_of_a_topic_in_the_format_of_0_1_0_is_read(tmp_path: Path) -> None:
    with entries(tmp_path / "0" / "data") as old:
        old.put(b"e" + hash_of("emma"), struct.pack(">Q", 7))
        old.put(b"i" + hash_of("a"), struct.pack(">IQ", 1, 12))
        old.put(b"p" + struct.pack(">I", 1), struct.pack(">QQ", 20, 13))
        old.put(b"t", b"topic 2")
    index = TopicIndex(tmp_path, TOPIC)
    assert (index.lasts(["emma"]), index.covers(1), index.behind_last(1)) == ([7], 20, 13)
    assert [place and tuple(place) for place in index.places("ab")] == [("1", 12), None]
    index.close()


def test_the_indexes_of_a_node_in_the_format_of_0_1_0_are_read(tmp_path: Path) -> None:
    """They state what the log cannot: so it shows whether they are believed."""
    with NodeWriter(tmp_path, "a") as node:
        node.append([Event("1", "emma", "call", 0, {})])
    covered = struct.pack(">16sQ", UUID(node_logs(tmp_path)["a.1"].id()).bytes, 1)
    place = struct.pack(">QQ16s", 1, 1, hash_of("emma")) + b"a.1"
    old = {"index": (b"e" + hash_of("ben"), struct.pack(">Q", 4)), "places": (b"i" + hash_of("gone"), place)}
    for name, (key, value) in old.items():
        with entries(tmp_path / "nodes" / "a" / "1" / name) as index:
            index.put(key, value)
            index.put(b"l" + b"a.1", covered)
    with NodeWriter(tmp_path, "a") as node:
        assert node.last_sequence("ben") == 4
        assert str(node.append_to("emma", [Event("gone", "emma", "call", 0, {})]).position) == "a.1:1"


def test_the_indexes_of_a_journal_on_files_in_the_format_of_0_1_0_are_read(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([Event("1", "emma", "call", 0, {})])
    assert writer.journal_id is not None
    for folder, name, key in (("ids", b"events", "gone"), ("sequences", b"entities", "emma")):
        (tmp_path / folder).mkdir()
        with lmdb.open(str(tmp_path / folder), max_dbs=2) as environment:
            numbers, meta = environment.open_db(name), environment.open_db(b"meta")
            with environment.begin(write=True) as transaction:
                transaction.put(hash_of(key), struct.pack("<Q", 0 if folder == "ids" else 5), db=numbers)
                transaction.put(b"journal", str(writer.journal_id).encode(), db=meta)
                transaction.put(b"covers", struct.pack("<Q", 1), db=meta)
    with JournalWriter(tmp_path) as writer:
        assert writer._places(["gone", "1"])[0] == ("0", 0)
