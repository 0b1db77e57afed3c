"""The same event id again: the first one counts, and whoever repeats an append gets the same answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import EventRefused
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter, index
from tests.journal.receipts import offsets
from tests.sizes import examples

TIME_US = 1_700_000_000_000_000


def event(id_: str, entity: str = "emma") -> Event:
    return Event(id_, entity, "call", TIME_US, {})


def stored(folder: Path) -> list[str]:
    return [each.id for each in FileLog(folder).events()]


def test_an_event_that_is_there_already_is_answered_with_its_first_offset(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        assert offsets(writer.append_once([event("a"), event("b"), event("a")])) == [0, 1, 0]
        assert offsets(writer.append_once([event("c"), event("b")])) == [2, 1]
        assert writer.append_once([]) == []
    assert stored(tmp_path) == ["a", "b", "c"]


def test_a_bad_event_refuses_the_whole_append(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        with pytest.raises(EventRefused):
            writer.append_once([event("a"), event("")])
        assert offsets(writer.append_once([event("a")])) == [0]


def test_events_that_were_appended_in_other_ways_count_too(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([event("a"), event("a"), event("b")], compare_ids=False)
        assert offsets(writer.append_once([event("b"), event("a"), event("c")])) == [2, 0, 3]


names = st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=8)


@settings(max_examples=examples(60, 300))
@given(names, st.lists(st.sampled_from(["again", "other", "delete", "short"]), max_size=8))
def test_each_id_is_stored_once_whoever_appends_and_whatever_becomes_of_the_index(
    tmp_path_factory: pytest.TempPathFactory, appends: list[list[int]], between: list[str]
) -> None:
    """Several writers, opened again, an index that is deleted, one that is written at every append."""
    folder = tmp_path_factory.mktemp("journal")
    first: dict[str, int] = {}
    writers = [JournalWriter(folder), JournalWriter(folder)]
    with pytest.MonkeyPatch.context() as patched:
        for number, wanted in enumerate(appends):
            kind = between[number] if number < len(between) else "again"
            if kind == "short":
                patched.setattr(index, "WRITTEN_AT_ONCE", 1)
            if kind == "delete":
                shutil.rmtree(folder / "ids", ignore_errors=True)
            if kind == "again":
                writers[0].close()
                writers[0] = JournalWriter(folder)
            found = offsets(writers[kind == "other"].append_once([event(str(name)) for name in wanted]))
            for name, offset in zip(map(str, wanted), found, strict=True):
                assert first.setdefault(name, offset) == offset
        for writer in writers:
            writer.close()
    assert stored(folder) == sorted(first, key=lambda name: first[name])


def test_many_threads_and_writers_that_send_the_same_store_it_once(tmp_path: Path) -> None:
    wanted = [[event(f"{number}-{part}") for part in range(20)] for number in range(20)]
    answers: list[list[list[Position]]] = []

    def send() -> None:
        with JournalWriter(tmp_path) as writer:
            answers.append([writer.append_once(events) for events in wanted])

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored(tmp_path)) == 400
    assert len(answers) == 4
    assert all(answer == answers[0] for answer in answers)


def test_an_index_of_another_journal_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "WRITTEN_AT_ONCE", 1)
    for name in ("one", "two"):
        with JournalWriter(tmp_path / name) as writer:
            writer.append_once([event("a"), event(name)])
            writer.append_once([event("b")])
    shutil.rmtree(tmp_path / "two" / "ids")
    shutil.copytree(tmp_path / "one" / "ids", tmp_path / "two" / "ids")
    with JournalWriter(tmp_path / "two") as writer:
        assert offsets(writer.append_once([event("one"), event("two")])) == [3, 1]


@pytest.mark.e2e
def test_killed_again_and_again_a_producer_that_repeats_itself_stores_each_event_once(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from stateside.journal import JournalWriter, Event, index; index.WRITTEN_AT_ONCE = 7\n"
        "writer = JournalWriter(pathlib.Path(sys.argv[1])); print('up', flush=True)\n"
        "for n in range(600): writer.append_once([Event(str(n), 'e', 't', 1, {})])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    for pause_s in (0.05, 0.2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            threading.Event().wait(pause_s)
            process.kill()
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=120).returncode == 0
    assert stored(tmp_path) == [str(number) for number in range(600)]
