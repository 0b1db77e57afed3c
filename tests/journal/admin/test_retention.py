"""Retention drops what nobody needs, keeps what is told of it, and leaves a journal that goes on as before."""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from stateside.cli import main
from stateside.core.clock import ManualClock
from stateside.core.errors import EventsGone, EventsNeeded, JournalCorrupt
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.admin import (
    JournalFiles,
    Reader,
    drop,
    offset_before,
    register,
    retention,
    statistics,
    unregister,
    verify,
)
from stateside.journal.admin.verification import Verification
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.backends.files.lock import Turns
from stateside.journal.backends.files.segment import segment_offsets, segment_path
from stateside.journal.queries import Queries, QueryViews
from stateside.ops.journal_readers import known_readers
from tests.journal.receipts import offsets
from tests.sizes import not_in_fast
from tests.waiting import WAIT_S_MAX

COUNT = 60

DroppingAt = Callable[..., AbstractContextManager[object]]


def events(count: int, first: int = 0) -> list[Event]:
    return [
        Event(f"e{n}", f"entity-{n % 7}" if n > 5 else f"early-{n}", "call", n, {"n": n}, ("tag",))
        for n in range(first, first + count)
    ]


def filled(directory: Path) -> JournalFiles:
    with JournalWriter(directory, segment_bytes_max=3_500) as writer:
        for first in range(0, COUNT, 5):
            writer.append_once(events(5, first))
    assert len(segment_offsets(directory)) > 4
    return JournalFiles(directory)


@pytest.fixture
def place(tmp_path: Path) -> JournalFiles:
    return filled(tmp_path / "journal")


class TestADrop:
    @given(before=st.integers(0, COUNT + 5), forget=st.booleans(), views=st.booleans())
    def test_what_stays_is_the_same_and_the_journal_goes_on(
        self, tmp_path_factory: pytest.TempPathFactory, before: int, forget: bool, views: bool
    ) -> None:
        place = filled(tmp_path_factory.mktemp("journal"))
        kept = list(FileLog(place.directory).events())
        if views:
            with QueryViews(FileJournal(place.directory), place.views) as followed:
                followed.follow()
        done = drop(place, before, [])
        assert done.begin <= before
        assert done.begin == segment_offsets(place.directory)[0]
        if forget:  # whatever is made again must not begin to count again
            for index in (place.ids, place.sequences):
                shutil.rmtree(index, ignore_errors=True)
        journal = FileLog(place.directory)
        assert list(journal.events(journal.begin())) == kept[done.begin :]
        with JournalWriter(place.directory) as writer:
            receipt = writer.append_to("early-0", [Event("again", "early-0", "call", 9, {})], expected_sequence=1)
            assert (receipt.first_sequence, receipt.position) == (2, Position.of({"0": COUNT + 1}))
            writer.append_once(events(20, COUNT))
        verdict = verify(place)
        assert verdict.ok, verdict.lines()

    def test_views_that_are_made_anew_begin_where_the_journal_does(self, place: JournalFiles) -> None:
        begin = drop(place, 30, []).begin
        stream = FileJournal(place.directory)
        with QueryViews(stream, place.views) as views:
            assert views.follow() == stream.end()
            queries = Queries(stream, views)
            found = list(queries.tagged("tag").current(Position.of({"0": begin})))
            assert [one.event.id for one in found] == [f"e{n}" for n in range(begin, COUNT)]
            of_entity = [one.event for one in queries.entity("entity-1").current(Position.of({"0": begin}))]
            assert [event.id for event in of_entity] == [f"e{n}" for n in range(begin, COUNT) if n % 7 == 1]
            assert of_entity[0].sequence == sum(n % 7 == 1 for n in range(6, begin)) + 1
        assert verify(place).ok

    def test_views_that_end_where_the_journal_begins_go_on(self, place: JournalFiles) -> None:
        end = FileLog(place.directory).end()
        with QueryViews(FileJournal(place.directory), place.views) as views:
            views.follow()
            with JournalWriter(place.directory, segment_bytes_max=1) as writer:
                writer.append(events(1, COUNT))
            drop(place, COUNT, [Reader("views", end)])
            assert FileLog(place.directory).begin() == end
            generation = (place.views / "current").read_text()
            assert views.follow() == Position.of({"0": COUNT + 1})
            assert (place.views / "current").read_text() == generation

    def test_the_newest_segment_always_stays(self, place: JournalFiles) -> None:
        newest = segment_offsets(place.directory)[-1]
        assert drop(place, 10**9, []).begin == newest
        assert segment_offsets(place.directory) == [newest]


class TestIdsOfDroppedEvents:
    def test_they_are_still_compared_although_no_writer_had_them_on_disk(self, place: JournalFiles) -> None:
        with JournalWriter(place.directory) as writer:
            assert offsets(writer.append_once(events(3))) == [0, 1, 2]
        drop(place, 30, [])
        with JournalWriter(place.directory) as writer:
            assert offsets(writer.append_once(events(3))) == [0, 1, 2]
            assert writer.end["0"] == COUNT


class TestBesideWriters:
    @not_in_fast("writers that go on for a while")
    def test_they_go_on_while_segments_are_dropped(self, place: JournalFiles) -> None:
        """Two of them for the same entities: each reads what the other one stored, from where segments are going."""
        sequences: dict[str, list[int]] = defaultdict(list)

        def append(name: str) -> None:
            with JournalWriter(place.directory, segment_bytes_max=3_500) as writer:
                for number in range(100):
                    entity = f"shared-{number % 3}"
                    receipt = writer.append_to(entity, [Event(f"{name}{number}", entity, "call", 0, {})])
                    sequences[entity].append(receipt.last_sequence)

        with ThreadPoolExecutor(2) as pool:
            writing = [pool.submit(append, name) for name in ("a", "b")]
            dropped = 0
            while not all(done.done() for done in writing):
                dropped += drop(place, 10**9, []).segments
            for done in writing:
                done.result()
        assert dropped > 10
        assert {entity: sorted(found) for entity, found in sequences.items()} == {
            f"shared-{number}": list(range(1, 2 * len(range(number, 100, 3)) + 1)) for number in range(3)
        }
        verdict = verify(place)
        assert verdict.ok, verdict.lines()
        assert verdict.end == COUNT + 200

    def test_nothing_goes_while_one_of_them_has_its_turn(self, place: JournalFiles) -> None:
        """It may be counting from what is there, or be about to read it."""
        turns, offsets = Turns(place.directory / "lock"), segment_offsets(place.directory)
        with ThreadPoolExecutor(1) as pool:
            with turns.take():
                dropping = pool.submit(drop, place, 30, [])
                with pytest.raises(TimeoutError):
                    dropping.result(timeout=0.3)
                assert segment_offsets(place.directory) == offsets
                assert not (place.directory / "base").exists()
            assert dropping.result(timeout=WAIT_S_MAX).segments > 1
        turns.close()

    def test_one_that_is_behind_counts_on_from_the_base(self, place: JournalFiles) -> None:
        """What it has not read yet is gone: its own last read ended in a segment that was dropped."""
        with JournalWriter(place.directory) as behind, JournalWriter(place.directory, segment_bytes_max=1) as ahead:
            behind.append_to("shared", [Event("s1", "shared", "call", 0, {})])
            for number in range(2, 6):
                ahead.append_to("shared", [Event(f"s{number}", "shared", "call", 0, {})])
            drop(place, COUNT + 4, [])
            assert FileLog(place.directory).begin()["0"] > COUNT + 1
            assert behind.append_to("shared", [Event("s6", "shared", "call", 0, {})]).last_sequence == 6
        assert verify(place).ok


DROP = """
import os
import sys
from pathlib import Path
from stateside.journal.backends.files.segment import segment_offsets, segment_path
from stateside.journal.admin import JournalFiles, drop

place = JournalFiles(Path(sys.argv[1]))
drop(place, 30, [])
last = segment_path(place.directory, segment_offsets(place.directory)[-1])
os.truncate(last, last.stat().st_size - int(sys.argv[2]))
"""


class TestBesideUpkeep:
    """Another process drops segments while somebody looks at all of them."""

    @pytest.fixture
    def dropping_at(self, run_python: Callable[..., str], place: JournalFiles) -> DroppingAt:
        """When a function is called for the first time segments go, and the last one loses some bytes perhaps."""

        def dropping_at(owner: Any, name: str, lost_bytes: int = 0) -> AbstractContextManager[object]:
            real, times = getattr(owner, name), count()

            def act(*arguments: Any) -> Any:
                if next(times) == 0:
                    run_python(DROP, place.directory, lost_bytes)
                return real(*arguments)

            return patch.object(owner, name, act)

        return dropping_at

    @pytest.mark.parametrize("moment", ["_read", "_read_segment"])
    def test_verify_begins_anew_and_finds_nothing_wrong(
        self, place: JournalFiles, dropping_at: DroppingAt, moment: str
    ) -> None:
        with dropping_at(Verification, moment):
            verdict = verify(place)
        assert verdict.ok, verdict.lines()
        assert verdict.events == COUNT - segment_offsets(place.directory)[0] < COUNT

    def test_what_is_wrong_is_still_found(self, place: JournalFiles, dropping_at: DroppingAt) -> None:
        with dropping_at(Verification, "_read_segment", lost_bytes=10):
            assert verify(place).findings.counts == {"damage": 1, "missing": 1}

    def test_statistics_are_of_what_is_left(self, place: JournalFiles, dropping_at: DroppingAt) -> None:
        with dropping_at(sys.modules[statistics.__module__], "views_of"):
            found = statistics(place)
        begin = segment_offsets(place.directory)[0]
        assert (found.begin, found.events) == (f"0:{begin}", COUNT - begin)
        assert begin > 0


class TestReadersOfWhatIsGone:
    def test_they_get_an_error_that_names_the_range_and_both_ways_on(self, place: JournalFiles) -> None:
        begin = drop(place, 30, []).begin
        stream = FileJournal(place.directory)
        with QueryViews(stream, place.views) as views:
            for read in (
                lambda: list(FileLog(place.directory).events()),
                lambda: list(stream.batches("0", 3, 40)),
                lambda: list(Queries(stream, views).all().current()),
                lambda: list(Queries(stream, views).tagged("tag").current(Position.of({"0": 3}))),
            ):
                with pytest.raises(EventsGone, match=f"{begin - 1} are gone") as error:
                    read()
                assert f"0:{begin}" in str(error.value)
                assert "from a copy" in str(error.value)

    def test_views_that_never_had_the_events_do_not_make_a_query_leave_them_out(self, place: JournalFiles) -> None:
        begin = drop(place, 30, []).begin
        stream = FileJournal(place.directory)
        with QueryViews(stream, place.views) as views:
            views.follow()
            queries = Queries(stream, views)
            for query in (queries.all(), queries.tagged("tag"), queries.entity("early-0"), queries.between(0, COUNT)):
                for start in (None, Position.of({"0": begin - 1})):
                    with pytest.raises(EventsGone, match=f"Start at 0:{begin}"):
                        list(query.current(start))
                    with pytest.raises(EventsGone, match=f"Start at 0:{begin}"):
                        next(query.live(start))

    def test_a_segment_that_nobody_dropped_is_still_a_loss(self, place: JournalFiles) -> None:
        begin = drop(place, 30, []).begin
        segment_path(place.directory, begin).unlink()
        with pytest.raises(JournalCorrupt, match=f"no event at offset {begin}"):
            list(FileLog(place.directory).events(Position.of({"0": begin})))
        assert set(verify(place).findings.counts) == {"missing"}


class TestRefusals:
    def test_what_a_reader_needs_stays_and_the_reader_is_named(self, place: JournalFiles) -> None:
        before = segment_offsets(place.directory)
        with pytest.raises(EventsNeeded, match="slow has read up to 0:7"):
            drop(place, 30, [Reader("fast", Position.of({"0": 50})), Reader("slow", Position.of({"0": 7}))])
        assert segment_offsets(place.directory) == before

    def test_registered_readers_and_the_views_of_queries_are_known(self, place: JournalFiles) -> None:
        register(place, "exporter", Position.of({"0": 7}))
        with QueryViews(FileJournal(place.directory), place.views) as views:
            views.follow()
        found = {reader.name: str(reader.position) for reader in retention_readers(place)}
        assert found == {"exporter": "0:7", "the views of queries": f"0:{COUNT}"}
        unregister(place, "exporter")
        assert len(retention_readers(place)) == 1


def retention_readers(place: JournalFiles) -> list[Reader]:
    from stateside.journal.admin.retention import readers

    return readers(place)


class TestTheArchive:
    def test_each_segment_becomes_a_file_with_its_events(self, place: JournalFiles, tmp_path: Path) -> None:
        done = drop(place, 30, [], tmp_path / "archive")
        assert len(done.archived) == done.segments > 1
        offsets = [at for path in done.archived for at in pq.read_table(path).column("offset").to_pylist()]
        assert offsets == list(range(done.begin))

    @pytest.mark.parametrize("step", ["_lay_base", "_delete"])
    def test_a_crash_before_any_step_loses_nothing_and_the_same_call_goes_on(
        self, place: JournalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        def crash(*arguments: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(retention, step, crash)
            drop(place, 30, [], tmp_path / "archive")
        assert len(list(FileLog(place.directory).events())) == COUNT
        assert verify(place).ok
        assert drop(place, 30, [], tmp_path / "archive").segments > 1
        assert verify(place).ok

    def test_a_crash_between_two_deletions_leaves_a_journal_that_is_right(
        self, place: JournalFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second, *_ = segment_offsets(place.directory)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(retention, "_delete", lambda place, ranges: _delete_one_and_crash(place, first))
            drop(place, 30, [])
        assert FileLog(place.directory).begin() == Position.of({"0": second})
        assert verify(place).ok
        with JournalWriter(place.directory) as writer:
            assert writer.append_to("early-0", [Event("x", "early-0", "call", 9, {})]).first_sequence == 2
        assert drop(place, 30, []).segments >= 1
        assert verify(place).ok


def _delete_one_and_crash(place: JournalFiles, first: int) -> None:
    segment_path(place.directory, first).unlink()
    raise KeyboardInterrupt


class TestTheCommands:
    def test_they_archive_and_drop_and_say_what_is_left(self, place: JournalFiles, tmp_path: Path) -> None:
        def run(*arguments: str) -> Result:
            return CliRunner().invoke(main, ["journal", *arguments, "--dir", str(tmp_path)])

        told = json.loads(run("archive", "--before", "0:20", "--to", str(tmp_path / "a"), "--json").stdout)
        assert len(told["archived"]) == told["segments"] >= 1
        assert run("drop", "--keep-days", "1", "--yes").stdout.startswith("0 segments")
        register(place, "exporter", Position.of({"0": 25}))
        refused = run("drop", "--keep-days", "0", "--yes")
        assert (refused.exit_code, "exporter has read up to 0:25" in refused.stderr) == (1, True)
        assert run("readers").stdout == "        0:25  exporter\n"
        unregister(place, "exporter")
        assert run("drop", "--keep-days", "0", "--yes").exit_code == 0
        begin = segment_offsets(place.directory)[-1]
        read = run("read", "--json")
        assert f"before 0:{begin} are gone" in read.stderr
        assert len(read.stdout.splitlines()) == COUNT - begin
        assert run("read", "--from", "0:1").exit_code == 1
        assert json.loads(run("stat", "--json").stdout)["begin"] == f"0:{begin}"
        assert run("drop", "--yes").exit_code == 1


class TestRollingByAge:
    def test_a_segment_whose_first_event_is_too_old_gets_nothing_more(self, tmp_path: Path) -> None:
        clock = ManualClock()
        for first in (0, 4):  # whichever writer it is
            with JournalWriter(tmp_path, clock=clock, segment_s_max=60) as writer:
                for number in range(first, first + 4):
                    writer.append(events(1, number))
                    clock.time_us += 25_000_000
        assert segment_offsets(tmp_path) == [0, 3, 6]
        place = JournalFiles(tmp_path)
        assert [offset_before(place, at) for at in (0, 25_000_000, 50_000_001, 10**9)] == [0, 0, 3, 6]


class TestReadersOfAnApplication:
    def written(self, folder: Path, *batches: str) -> None:
        """A checkpoint as far as it tells what was read: each batch's offset, all of them finished."""
        for number, line in enumerate(batches):
            metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
            for kind, content in (("offsets", f"v1\n{metadata}\n{line}"), ("commits", "v1\n{}")):
                (folder / kind).mkdir(parents=True, exist_ok=True)
                (folder / kind / str(number)).write_text(content)

    def test_a_view_needs_what_its_last_batch_read_and_one_of_other_sources_nothing(
        self, place: JournalFiles, tmp_path: Path
    ) -> None:
        layout = Layout(tmp_path)
        here = FileLog(place.directory).id()
        self.written(layout.view("counts").checkpoint, *(json.dumps({"0": at, "journal": here}) for at in (10, 20, 30)))
        self.written(layout.view("new").checkpoint, json.dumps({"0": 10, "journal": here}))
        self.written(layout.view("kafka").checkpoint, json.dumps({"calls": {"0": 5}}), json.dumps({"calls": {"0": 9}}))
        found = {reader.name: str(reader.position) for reader in known_readers(layout)}
        assert found == {"the view 'counts'": "0:20", "the view 'new'": "start"}

    def test_billing_needs_all_events(self, place: JournalFiles, tmp_path: Path) -> None:
        Layout(tmp_path).clock.write_text("{}")
        with pytest.raises(EventsNeeded, match="explains and audits"):
            drop(place, 30, known_readers(Layout(tmp_path)))
