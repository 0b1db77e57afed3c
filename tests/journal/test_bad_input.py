"""Bad input of every kind, wherever events are: a specific error with place and next step, and nothing lost or skipped.

The tables below go over a journal on files, the logs of nodes, the merged stream and the views of queries.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stateside.core.errors import (
    EventRefused,
    JournalAway,
    JournalCorrupt,
    JournalLocked,
    OperatingError,
    SequenceConflict,
    SetupError,
    StatesideError,
    ViewsBusy,
)
from stateside.core.positions import Position
from stateside.core.storage import try_lock
from stateside.journal import Event, FileLog, JournalWriter, MemoryJournal
from stateside.journal import index as index_module
from stateside.journal.admin import JournalFiles, drop
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.backends.files.lock import Turns
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter, partition
from stateside.journal.contract import Journal
from stateside.journal.queries import Queries, QueryViews
from tests.disks import fill, mounted
from tests.sizes import some

COUNT = 12


def event(number: int, size: int = 400) -> Event:
    return Event(f"e{number}", f"entity-{number % 2}", "call", number, {"text": "x" * size}, ("tag",))


def told(error: StatesideError, place: Path) -> None:
    """The error says where, and what to do next."""
    assert str(place) in str(error.where), error
    assert error.next_step, error


# What is no event


BAD: dict[str, Any] = {
    "oversize JSON": ({"payload": {"text": "x" * 65_536}}, "65536 are allowed"),
    "oversize bytes": ({"payload": b"x" * 65_537}, "65536 are allowed"),
    "bad UTF-8 in the id": ({"id": "\ud800"}, "id"),
    "bad UTF-8 in the entity": ({"entity": "em\udcffma"}, "entity"),
    "bad UTF-8 in a tag": ({"tags": ("\udfff",)}, "tag"),
    "bad UTF-8 in the payload": ({"payload": {"text": "\ud800"}}, "payload"),
    "a time before 1970": ({"time_us": -1}, "time"),
    "a time after 2199": ({"time_us": 7_258_118_400_000_000}, "time"),
    "a time beyond 64 bits": ({"time_us": 2**70}, "time"),
}

WRITERS: dict[str, Callable[[Path], Any]] = {
    "files": lambda folder: JournalWriter(folder),
    "a node": lambda folder: NodeWriter(folder, "a"),
    "memory": lambda folder: MemoryJournal().writer(),
}
APPENDS: dict[str, Callable[[Any, Event], Any]] = {
    "append": lambda writer, bad: writer.append([event(1), bad]),
    "append_to": lambda writer, bad: writer.append_to("entity-1", [event(1), bad]),
    "append_once": lambda writer, bad: writer.append_once([event(1), bad]),
    "append_unstored": lambda writer, bad: writer.append_unstored([event(1), bad], since=Position.start()),
}


@pytest.mark.parametrize("how", APPENDS)
@pytest.mark.parametrize("where", WRITERS)
@pytest.mark.parametrize("what", BAD)
def test_what_is_no_event_is_refused_with_the_reason_and_nothing_is_stored(
    tmp_path: Path, what: str, where: str, how: str
) -> None:
    changes, reason = BAD[what]
    good = {"id": "bad", "entity": "entity-1", "type": "call", "time_us": 1, "payload": {}, "tags": ()}
    with WRITERS[where](tmp_path) as writer:
        before = writer.append([event(0)])
        with pytest.raises(EventRefused, match="Event 1 of the batch") as refused:
            APPENDS[how](writer, Event(**(good | changes)))
        assert reason in str(refused.value)
        assert "Nothing of the batch was stored" in str(refused.value)
        assert writer.end == before
        assert writer.append_to("entity-1", [event(1)], expected_sequence=0).first_sequence == 1


@pytest.mark.parametrize("where", WRITERS)
def test_a_sequence_that_an_unknown_entity_cannot_have_is_a_conflict_that_says_so(tmp_path: Path, where: str) -> None:
    with WRITERS[where](tmp_path) as writer:
        with pytest.raises(SequenceConflict, match="'nobody' is at sequence 0, not at 5") as conflict:
            writer.append_to("nobody", [Event("e", "nobody", "call", 0, {})], expected_sequence=5)
        assert (conflict.value.current, "Nothing was stored" in str(conflict.value)) == (0, True)
        assert writer.receipt_of("nobody", "e") is None


def test_an_unknown_entity_has_no_events_in_any_stream(tmp_path: Path) -> None:
    for stream in (files(tmp_path / "files").stream(), merged(tmp_path / "merged").stream()):
        with QueryViews(stream, tmp_path / f"views-{type(stream).__name__}") as views:
            for _ in range(2):
                queries = Queries(stream, views)
                assert list(queries.entity("nobody").current()) == []
                assert queries.last_sequence("nobody") == 0
                views.follow()


# Two for one lock


@contextmanager
def a_turn(folder: Path) -> Iterator[None]:
    JournalWriter(folder).close()
    turns = Turns(folder / "lock")
    with turns.take():
        yield
    turns.close()


def second_merger(folder: Path) -> Merger:
    return Merger(folder)


@contextmanager
def following(folder: Path) -> Iterator[None]:
    JournalWriter(folder).close()
    (folder / "views").mkdir()
    handle = try_lock(folder / "views" / "lock")
    assert handle is not None
    yield
    os.close(handle)


@contextmanager
def retaining(folder: Path) -> Iterator[None]:
    JournalWriter(folder).close()
    handle = try_lock(folder / "retention.lock")
    assert handle is not None
    yield
    os.close(handle)


LOCKS: dict[str, Any] = {
    "a turn": (a_turn, lambda folder: JournalWriter(folder, wait_s_max=0.05), JournalLocked, "end it"),
    "a node": (lambda folder: NodeWriter(folder, "a"), lambda folder: NodeWriter(folder, "a"), JournalLocked, "fenced"),
    "the merger": (Merger, second_merger, JournalLocked, "end it"),
    "the views": (
        following,
        lambda folder: QueryViews(FileJournal(folder), folder / "views").follow(),
        ViewsBusy,
        "That is fine",
    ),
    "retention": (
        retaining,
        lambda folder: drop(JournalFiles(folder), 1, []),
        JournalLocked,
        "Wait until it is done",
    ),
}


@pytest.mark.parametrize("what", LOCKS)
def test_the_second_one_for_a_lock_is_told_who_has_it_and_what_to_do(tmp_path: Path, what: str) -> None:
    first, second, error, next_step = LOCKS[what]
    with first(tmp_path):
        with pytest.raises(error) as refused:
            second(tmp_path)
        told(refused.value, tmp_path)
        assert next_step in str(refused.value.next_step)


# Damage


@dataclass(frozen=True)
class Subject:
    """Events that are acknowledged, the folder whose segments are damaged, and all ways to read them."""

    folder: Path
    segments: Path
    ids: list[str]
    stream: Callable[[], Journal]
    reads: dict[str, Callable[[], Iterator[str]]]
    go_on: Callable[[], None]  # one more event is appended, with which all are there


def ids_of(batches: Iterator[tuple[Any, Any]]) -> Iterator[str]:
    for _, batch in batches:
        yield from batch.column("id").to_pylist()


def asked(stream: Journal, folder: Path, query: Callable[[Queries], Any]) -> Iterator[str]:
    with QueryViews(stream, folder) as views:
        for found in query(Queries(stream, views)).current():
            yield found.event.id


def reads_of(make: Callable[[], Any], views: Path) -> dict[str, Callable[[], Iterator[str]]]:
    """Each with a stream of its own, which has nothing open."""
    whole = np.arange(COUNT)
    return {
        "batches": lambda: ids_of(make().batches("0", 0, COUNT)),
        "gather": lambda: ids_of(make().gather("0", whole)),
        "all": lambda: asked(make(), views, lambda queries: queries.all()),
        "by tag": lambda: asked(make(), views, lambda queries: queries.tagged("tag")),
        "by time": lambda: asked(make(), views, lambda queries: queries.between(0, COUNT)),
        "new views": lambda: made_anew(make(), views.with_name("new views")),
    }


def made_anew(stream: Journal, folder: Path) -> Iterator[str]:
    shutil.rmtree(folder, ignore_errors=True)
    with QueryViews(stream, folder) as views:
        views.follow()
        yield from (found.event.id for found in Queries(stream, views).tagged("tag").current())


def files(folder: Path) -> Subject:
    with JournalWriter(folder, segment_bytes_max=2_000) as writer:
        for number in range(COUNT):
            writer.append([event(number)])
    with QueryViews(FileJournal(folder), folder / "views") as views:
        views.follow()
    reads = reads_of(lambda: FileJournal(folder), folder / "views")
    reads["events"] = lambda: (found.id for found in FileLog(folder).events())
    reads["without views"] = lambda: asked(FileJournal(folder), folder / "none", lambda queries: queries.all())

    def go_on() -> None:
        with JournalWriter(folder) as writer:
            writer.append_once([event(COUNT)])

    return Subject(folder, folder, [f"e{n}" for n in range(COUNT)], lambda: FileJournal(folder), reads, go_on)


def written_by_a_node(folder: Path) -> None:
    with NodeWriter(folder, "a", segment_bytes_max=2_000) as node:
        for number in range(COUNT):
            node.append_to(f"entity-{number % 2}", [event(number)])


def append_and_merge(folder: Path) -> None:
    with NodeWriter(folder, "a") as node, Merger(folder) as merger:
        node.append_to(f"entity-{COUNT % 2}", [event(COUNT)])
        merger.merge()


def merged(folder: Path) -> Subject:
    written_by_a_node(folder)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as mergers:
        patch.setattr(partition, "SEGMENT_BYTES_MAX", 3_000)
        patch.setattr("stateside.journal.backends.nodes.merger.FRAME_EVENTS_MAX", 1)
        mergers.enter_context(Merger(folder)).merge()
    with QueryViews(MergedJournal(folder), folder / "views") as views:
        views.follow()
    reads = reads_of(lambda: MergedJournal(folder), folder / "views")
    reads["merged events"] = lambda: (found.id for found in MergedJournal(folder).events())
    reads["a merger"] = lambda: merging(folder)
    ids = [f"e{n}" for n in range(COUNT)]
    return Subject(
        folder, folder / "merged" / "0", ids, lambda: MergedJournal(folder), reads, lambda: append_and_merge(folder)
    )


def merging(folder: Path) -> Iterator[str]:
    """A merger whose index is gone reads all of the stream before it merges anything."""
    shutil.rmtree(folder / "merged" / "index", ignore_errors=True)
    with Merger(folder) as merger:
        merger.merge()
    yield from (found.id for found in MergedJournal(folder).events())


def node(folder: Path) -> Subject:
    """What a node's log has nobody else has yet."""
    written_by_a_node(folder)

    def tail() -> Iterator[str]:
        shutil.rmtree(folder / "merged", ignore_errors=True)
        stream = MergedJournal(folder)
        for row in range(COUNT // 2):
            for number in range(2):
                found = list(stream.tail(f"entity-{number}", row + 1, row + 1))
                if not found:
                    raise AssertionError(f"{number}-{row} is left out")
                yield found[0].id

    def opening() -> Iterator[str]:
        for index in ("index", "places"):
            shutil.rmtree(folder / "nodes" / "a" / "1" / index, ignore_errors=True)
        with NodeWriter(folder, "a") as writer:
            assert [writer.last_sequence(f"entity-{number}") for number in range(2)] == [COUNT // 2] * 2
        yield from (f"e{n}" for n in range(COUNT))

    def merger() -> Iterator[str]:
        shutil.rmtree(folder / "merged", ignore_errors=True)
        with Merger(folder) as merging:
            try:
                merging.merge()
            finally:
                yield from (found.id for found in MergedJournal(folder).events())

    reads = {"a merger": merger, "a node": opening, "the tail": tail}
    ids = [f"e{n}" for n in range(COUNT)]
    directory = folder / "nodes" / "a" / "1"
    return Subject(folder, directory, ids, lambda: MergedJournal(folder), reads, lambda: append_and_merge(folder))


def flipped(at: float) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        place = int(at * (len(content) - 1))
        return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]

    return flip


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda content: None,
    "emptied": lambda content: b"",
    "cut in its header": lambda content: content[:20],
    "cut in a frame": lambda content: content[: -len(content) // 3],
    "cut by a byte": lambda content: content[:-1],
    "bit-flipped at the start": flipped(0),
    "bit-flipped in the middle": flipped(0.6),
    "bit-flipped at the end": flipped(1),
    "overwritten": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", some(list(DAMAGES), 8))
@pytest.mark.parametrize("make", [files, node, merged], ids=["files", "a node's log", "the merged stream"])
def test_no_reader_skips_what_a_damaged_segment_had_and_all_is_there_when_it_is_back(
    tmp_path: Path, make: Callable[[Path], Subject], damage: str, which: str
) -> None:
    subject = make(tmp_path / "journal")
    paths = sorted(subject.segments.glob("*.segment"))
    assert len(paths) > 2
    path = {"first": paths[0], "middle": paths[len(paths) // 2], "last": paths[-1]}[which]
    content = path.read_bytes()
    damaged = DAMAGES[damage](content)
    path.unlink() if damaged is None else path.write_bytes(damaged)
    errors = 0
    for name, read in subject.reads.items():
        found: list[str] = []
        try:
            found.extend(read())
        except StatesideError as error:
            assert isinstance(error, JournalCorrupt | JournalAway), (name, error)
            told(error, subject.folder)
            errors += 1
        else:
            assert found == subject.ids, f"{name} skipped something"
        assert found == subject.ids[: len(found)], f"{name} gave something else"
    assert errors > 0, "nobody noticed"
    path.write_bytes(content)
    for name, read in subject.reads.items():
        assert list(read()) == subject.ids, name
    subject.go_on()
    stream = subject.stream()
    assert list(ids_of(stream.batches("0", 0, COUNT + 1))) == [*subject.ids, f"e{COUNT}"]


VIEW_DAMAGES = {name: change for name, change in DAMAGES.items() if name != "deleted"}


@pytest.mark.parametrize("damage", some([*VIEW_DAMAGES, "deleted"], 4))
@pytest.mark.parametrize("make", [files, merged], ids=["files", "the merged stream"])
def test_damaged_views_cost_nobody_an_event_and_are_made_anew(
    tmp_path: Path, make: Callable[[Path], Subject], damage: str
) -> None:
    subject = make(tmp_path / "journal")
    views = subject.folder / "views"
    (path,) = views.glob("*/data.mdb")
    content = DAMAGES[damage](path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    for name in ("all", "by tag", "by time"):
        assert list(subject.reads[name]()) == subject.ids, name
    stream = subject.stream()
    with QueryViews(stream, views) as followed:
        assert followed.follow() == stream.end()
        assert [found.event.id for found in Queries(stream, followed).tagged("tag").current()] == subject.ids


@pytest.mark.parametrize("damage", ["emptied", "cut in a frame", "cut in its header", "overwritten"])
@pytest.mark.parametrize(
    ("where", "index"), [("files", "ids"), ("files", "sequences"), ("a node", "places"), ("a node", "index")]
)
def test_a_damaged_index_is_told_ends_no_process_and_may_be_deleted(
    tmp_path: Path, where: str, index: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "EVENTS_READ_MAX", 1)
    monkeypatch.setattr(index_module, "WRITTEN_AT_ONCE", 1)
    monkeypatch.setattr(index_module, "UNWRITTEN_MAX", 1)
    for number in range(2):
        with WRITERS[where](tmp_path) as writer:
            writer.append_to("entity-0", [event(2 * number)])
    (path,) = tmp_path.glob(f"**/{index}/data.mdb")
    path.write_bytes(DAMAGES[damage](path.read_bytes()) or b"")

    def append() -> None:
        with WRITERS[where](tmp_path) as writer:
            assert writer.append_to("entity-0", [event(4)], expected_sequence=2).first_sequence == 3

    if path.stat().st_size:
        with pytest.raises(JournalAway, match="may be deleted") as refused:
            append()
        told(refused.value, tmp_path)
        shutil.rmtree(path.parent)
    append()


# A full disk


def test_a_full_disk_refuses_an_append_to_a_journal_or_a_node_and_keeps_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    def append(writer: Any, number: int) -> None:
        writer.append_to(f"entity-{number % 2}", [event(number, 20_000)])

    for name, open_writer in (("files", WRITERS["files"]), ("a node", WRITERS["a node"])):
        with mounted(tmp_path / name, "3m") as disk:
            with open_writer(disk) as writer:
                append(writer, 0)
                ballast, acknowledged = fill(disk), 1
                with pytest.raises(OperatingError, match="No space left on device") as refused:
                    for number in range(1, 500):
                        append(writer, number)
                        acknowledged += 1
                told(refused.value, disk)
                ballast.unlink()
                for number in range(acknowledged, acknowledged + 3):
                    append(writer, number)
            if name == "a node":
                with Merger(disk) as merger:
                    merger.merge()
            stream: Any = FileJournal(disk) if name == "files" else MergedJournal(disk)
            ids = list(ids_of(stream.batches("0", 0, stream.end()["0"])))
            assert ids == [f"e{number}" for number in range(acknowledged + 3)]


def test_a_merger_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with mounted(tmp_path / "small disk", "3m") as disk, NodeWriter(folder, "a") as writer:
        (folder / "merged").symlink_to(disk, target_is_directory=True)
        with Merger(folder) as merger:
            writer.append([event(0)])
            merger.merge()
            ballast = fill(disk)
            writer.append([event(number, 20_000) for number in range(1, 60)])
            for _ in range(2):
                with pytest.raises(OperatingError, match="No space left on device") as refused:
                    merger.merge()
                assert refused.value.next_step
                assert list(ids_of(MergedJournal(folder).batches("0", 0, 1))) == ["e0"]
            ballast.unlink()
            assert merger.merge() == 59
        assert list(ids_of(MergedJournal(folder).batches("0", 0, 60))) == [f"e{number}" for number in range(60)]


def test_views_whose_disk_is_full_say_so_and_queries_go_on_without_them(tmp_path: Path) -> None:
    subject = files(tmp_path / "journal")
    with mounted(tmp_path / "small disk", "3m") as disk:
        ballast = fill(disk)
        stream = subject.stream()
        with QueryViews(stream, disk / "views") as views:
            with pytest.raises((SetupError, OSError)) as refused:
                views.follow()
            assert isinstance(refused.value, SetupError), "an error of ours, with place and next step"
            told(refused.value, disk)
            assert [found.event.id for found in Queries(stream, views).all().current()] == subject.ids
            ballast.unlink()
            assert views.follow() == stream.end()
