"""Sequences: every entity's events are 1, 2, 3, …, whoever appends and whatever becomes of the index."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import JournalAway
from stateside.journal import Event, FileLog, JournalWriter, index
from stateside.journal.backends.files.segment import DurableEnd
from stateside.journal.columns import encode
from stateside.journal.index import Sequences, numbered
from tests.sizes import examples

from .old_format import write_old

LIMITS = ("ENTITIES_UNWRITTEN_MAX", "EVENTS_UNWRITTEN_MAX", "EVENTS_READ_MAX")


def event(entity: str) -> Event:
    """With an id of its own: sequences are given to what is stored."""
    return Event(str(uuid4()), entity, "call", 0, {})


def found(folder: Path, old: int = 0) -> dict[str, list[int | None]]:
    """Each entity's sequences, in the journal's order, but for those of the first events."""
    sequences: defaultdict[str, list[int | None]] = defaultdict(list)
    for number, each in enumerate(FileLog(folder).events()):
        if number >= old:
            sequences[each.entity].append(each.sequence)
    return dict(sequences)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_a_batch_is_numbered_as_one_by_one(entities: list[int]) -> None:
    lasts = Counter({f"{number}": 10 * number for number in range(6)})
    batch, after = numbered(encode([event(f"{n}") for n in entities], 0), lambda names: [lasts[name] for name in names])
    for entity, sequence in zip(map(str, entities), batch.column("sequence").to_pylist(), strict=True):
        lasts[entity] += 1
        assert sequence == lasts[entity]
    assert after == {entity: lasts[entity] for entity in map(str, set(entities))}


@pytest.fixture(params=[1, 3, 1_000_000], ids=lambda size: f"written-at-{size}")
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LIMITS:
        monkeypatch.setattr(index, name, request.param)
    yield


appends = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6), max_size=10)
between = st.lists(st.sampled_from(["again", "other", "delete", "go on"]), max_size=10)


@settings(max_examples=examples(60, 300))
@given(appends, between, st.sampled_from([1, 2, 4, 1_000_000]), st.lists(st.integers(0, 8), max_size=6))
def test_sequences_have_no_gaps_whoever_appends_and_whatever_becomes_of_the_index(
    tmp_path_factory: pytest.TempPathFactory, appends: list[list[int]], between: list[str], limit: int, old: list[int]
) -> None:
    """Several writers, opened again, an index that is deleted or written at every append, events from before."""
    folder = tmp_path_factory.mktemp("journal")
    write_old(folder, [[event(f"{entity}") for entity in old]] if old else [])
    writers = [JournalWriter(folder), JournalWriter(folder)]
    with pytest.MonkeyPatch.context() as patched:
        for name in LIMITS:
            patched.setattr(index, name, limit)
        for number, entities in enumerate(appends):
            kind = between[number] if number < len(between) else "go on"
            if kind == "delete":
                shutil.rmtree(folder / "sequences", ignore_errors=True)
            if kind == "again":
                writers[0].close()
                writers[0] = JournalWriter(folder)
            writers[kind == "other"].append([event(f"{entity}") for entity in entities])
        for writer in writers:
            writer.close()
    before = Counter(map(str, old))
    for entity, numbers in found(folder, len(old)).items():
        assert numbers == list(range(before[entity] + 1, before[entity] + 1 + len(numbers)))


def test_many_threads_and_writers_number_without_gaps(tmp_path: Path, limits: None) -> None:
    def send(writer_number: int) -> None:
        with JournalWriter(tmp_path) as writer:
            for number in range(20):
                writer.append([event("emma"), event(f"{number % 3}"), event("emma"), event(f"w{writer_number}")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    for numbers in found(tmp_path).values():
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(found(tmp_path)["emma"]) == 160


def test_a_small_journal_has_no_index_on_disk(tmp_path: Path) -> None:
    for _ in range(2):
        with JournalWriter(tmp_path) as writer:
            writer.append([event("emma")])
    assert not (tmp_path / "sequences").exists()


def test_an_index_spares_who_opens_the_journal_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "EVENTS_READ_MAX", 5)
    for _ in range(2):
        with JournalWriter(tmp_path) as writer:
            writer.append([event(f"{number}") for number in range(10)])
    with JournalWriter(tmp_path) as writer:
        writer.append([event("0")])
    read: list[tuple[int, int]] = []
    batches = FileLog.batches

    def noted(journal: FileLog, start: int, stop: int, mark: DurableEnd | None = None) -> object:
        read.append((start, stop))
        return batches(journal, start, stop, mark)

    with monkeypatch.context() as watched, JournalWriter(tmp_path) as writer:
        watched.setattr(FileLog, "batches", noted)
        writer.append([event("0"), event("9"), event("new")], compare_ids=False)
    assert read == [(20, 21)]
    assert found(tmp_path)["0"] == [1, 2, 3, 4]
    assert found(tmp_path)["9"] == [1, 2, 3]
    assert found(tmp_path)["new"] == [1]


def test_an_index_of_another_journal_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "EVENTS_READ_MAX", 1)
    for name, count in (("one", 3), ("two", 5)):
        for _ in range(count):
            with JournalWriter(tmp_path / name) as writer:
                writer.append([event("emma")])
    shutil.rmtree(tmp_path / "two" / "sequences")
    shutil.copytree(tmp_path / "one" / "sequences", tmp_path / "two" / "sequences")
    with JournalWriter(tmp_path / "two") as writer:
        writer.append([event("emma")])
    assert found(tmp_path / "two") == {"emma": [1, 2, 3, 4, 5, 6]}


def test_an_index_that_cannot_be_kept_stores_nothing_and_is_told(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([event("emma") for _ in range(3)])
    (tmp_path / "sequences").write_bytes(b"")
    with pytest.raises(JournalAway, match="the journal's sequences cannot be kept"):
        JournalWriter(tmp_path)
    (tmp_path / "sequences").unlink()
    with JournalWriter(tmp_path) as writer:
        writer.append([event("emma")])
    assert found(tmp_path) == {"emma": [1, 2, 3, 4]}


def test_an_append_that_failed_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([event("emma")])
        with monkeypatch.context() as full:
            full.setattr("stateside.journal.backends.files.segment.FRAME_BYTES_MAX", 10)
            with pytest.raises(Exception, match="smaller batches"):
                writer.append([event("emma") for _ in range(5)])
        writer.append([event("emma")])
    assert found(tmp_path) == {"emma": [1, 2]}


def test_sequences_that_are_given_are_kept_and_gone_on_from(tmp_path: Path) -> None:
    batch, _ = numbered(encode([event("emma")] * 2, 0), lambda names: [40])
    with JournalWriter(tmp_path) as writer:
        writer.append_numbered(batch)
        writer.append([event("emma")])
    with JournalWriter(tmp_path) as writer:
        writer.append([event("emma")])
    assert found(tmp_path) == {"emma": [41, 42, 43, 44]}
    assert Sequences(FileLog(tmp_path)).lasts(["emma", "ben"], FileLog(tmp_path).durable_end()) == [44, 0]


@pytest.mark.parametrize("at_once", [1, 1_000_000])
def test_sequences_that_are_given_come_on_top_of_those_that_are_there(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in LIMITS:
        monkeypatch.setattr(index, limit, at_once)
    with JournalWriter(tmp_path) as writer:
        writer.append([event("emma") for _ in range(3)])
    batch, _ = numbered(encode([event("ben")], 0), lambda names: [0])
    with JournalWriter(tmp_path) as writer:
        writer.append_numbered(batch)
        assert writer.append_numbered(batch.slice(0, 0))["0"] == 4
        writer.append([event("emma")])
        writer.append([event("carl")])
    with JournalWriter(tmp_path) as writer:
        writer.append([event("emma")])
    assert found(tmp_path) == {"emma": [1, 2, 3, 4, 5], "ben": [1], "carl": [1]}
