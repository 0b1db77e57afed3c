"""Verification finds whatever is wrong, says where, and changes nothing."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import lmdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.journal import Event, JournalWriter
from stateside.journal import index as index_module
from stateside.journal.admin import JournalFiles, VerificationResult, verify
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.backends.files.segment import segment_offsets, segment_path
from stateside.journal.columns import encode
from stateside.journal.index import hash_of
from stateside.journal.queries import QueryViews
from stateside.journal.queries import format as form
from stateside.journal.queries import generation as generations

EVENTS = 60


def events(count: int, first: int = 0) -> list[Event]:
    return [
        Event(f"e{n}", f"entity-{n % 7}", f"type-{n % 2}", 1_000 * n, {"n": n}, ("all", f"tag-{n % 5}"))
        for n in range(first, first + count)
    ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JournalFiles:
    """A journal of several segments with both indexes and views, a few events behind each of them."""
    monkeypatch.setattr(index_module, "WRITTEN_AT_ONCE", 20)
    monkeypatch.setattr(index_module, "EVENTS_UNWRITTEN_MAX", 25)
    place = JournalFiles(tmp_path / "journal")
    with JournalWriter(place.directory, segment_bytes_max=6_000) as writer:
        for first in range(0, EVENTS - 10, 5):
            writer.append_once(events(5, first))
        with QueryViews(FileJournal(place.directory), place.views) as views:
            views.follow()
        writer.append(events(10, EVENTS - 10))
    return place


def contents(place: JournalFiles) -> dict[str, str]:
    """All files but LMDB's tables of readers, which every reader notes itself in."""
    paths = [path for path in place.directory.rglob("*") if path.is_file() and path.name != "lock.mdb"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def kinds(verdict: VerificationResult) -> set[str]:
    return set(verdict.findings.counts)


def put(directory: Path, name: str, key: bytes, value: bytes | None) -> None:
    """Change an index or views behind their back."""
    with lmdb.open(str(directory), max_dbs=8, map_size=1 << 26) as environment:
        database = environment.open_db(name.encode())
        with environment.begin(write=True) as transaction:
            if value is None:
                assert transaction.delete(key, db=database)
            else:
                transaction.put(key, value, db=database)


class TestWhatIsRight:
    def test_nothing_is_found_and_all_of_it_was_compared(self, place: JournalFiles) -> None:
        verdict = verify(place)
        assert verdict.lines()[1:] == ["Nothing is wrong."]
        assert (verdict.events, verdict.entities, verdict.end) == (EVENTS, 7, EVENTS)
        assert verdict.segments == len(segment_offsets(place.directory)) > 2
        assert sorted(verdict.compared) == ["ids", "sequences", "views"]

    def test_nothing_is_changed(self, place: JournalFiles) -> None:
        before = contents(place)
        verify(place)
        assert contents(place) == before

    def test_it_goes_on_beside_a_writer_whose_frame_is_half_written(self, place: JournalFiles) -> None:
        with segment_path(place.directory, segment_offsets(place.directory)[-1]).open("ab") as last:
            last.write(b"FRAM, and not yet more")
        assert verify(place).ok

    def test_ids_that_are_there_twice_are_no_fault(self, place: JournalFiles) -> None:
        with JournalWriter(place.directory) as writer:
            writer.append(events(30), compare_ids=False)
            writer.append_once(events(30, 1_000))
        verdict = verify(place)
        assert verdict.ok, verdict.lines()

    def test_the_watch_is_told_up_to_the_last_event(self, place: JournalFiles) -> None:
        told: list[tuple[int, int]] = []
        verify(place, lambda done, total: told.append((done, total)))
        assert told == sorted(told)
        assert told[-1] == (EVENTS, EVENTS)

    def test_a_journal_without_indexes_and_views_is_right_too(self, tmp_path: Path) -> None:
        with JournalWriter(tmp_path) as writer:
            writer.append(events(3))
        verdict = verify(JournalFiles(tmp_path))
        assert verdict.ok
        assert verdict.compared == []


class TestTheLog:
    @given(place_in_file=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), number=st.integers(0, 100))
    def test_a_flipped_bit_anywhere_is_found(
        self, tmp_path_factory: pytest.TempPathFactory, place_in_file: float, bit: int, number: int
    ) -> None:
        folder = tmp_path_factory.mktemp("flipped")
        with JournalWriter(folder, segment_bytes_max=6_000) as writer:
            for first in range(0, 30, 5):
                writer.append(events(5, first))
        offsets = segment_offsets(folder)
        path = segment_path(folder, offsets[number % len(offsets)])
        content = bytearray(path.read_bytes())
        content[int(place_in_file * len(content))] ^= 1 << bit
        path.write_bytes(content)
        verdict = verify(JournalFiles(folder))
        assert kinds(verdict) & {"damage", "missing"}
        assert str(folder) in verdict.findings.shown[0].what

    def test_events_without_an_end_mark_are_damage(self, place: JournalFiles) -> None:
        (place.directory / "end").unlink()
        verdict = verify(place)
        assert kinds(verdict) == {"damage"}
        assert "its end mark is missing" in verdict.findings.shown[0].what

    def test_a_segment_that_is_gone_is_named_by_its_offsets_and_the_others_are_read(self, place: JournalFiles) -> None:
        _, second, third, *_ = segment_offsets(place.directory)
        segment_path(place.directory, second).unlink()
        verdict = verify(place)
        assert kinds(verdict) == {"missing"}
        assert f"offsets {second} to {third - 1} " in verdict.findings.shown[0].what
        assert verdict.events == EVENTS - (third - second)
        assert verdict.compared == []

    def test_a_segment_that_is_cut_short_is_found(self, place: JournalFiles) -> None:
        path = segment_path(place.directory, 0)
        path.write_bytes(path.read_bytes()[:-10])
        assert kinds(verify(place)) == {"damage", "missing"}

    def test_an_end_mark_that_is_damaged_is_found(self, place: JournalFiles) -> None:
        (place.directory / "end").write_bytes(b"?" * 36)
        verdict = verify(place)
        assert kinds(verdict) == {"damage"}
        assert "end mark" in verdict.findings.shown[0].what

    @pytest.mark.parametrize(("sequence", "kind"), [(5, "gap"), (3, "order"), (1, "order")])
    def test_a_sequence_that_does_not_follow_is_found_with_entity_and_offset(
        self, tmp_path: Path, sequence: int, kind: str
    ) -> None:
        with JournalWriter(tmp_path) as writer:
            writer.append([Event(f"a{n}", "emma", "call", n, {}) for n in range(3)])
            batch = encode([Event("b", "emma", "call", 9, {})], 0)
            at = batch.schema.get_field_index("sequence")
            writer.append_numbered(batch.set_column(at, batch.schema.field(at), pa.array([sequence], pa.int64())))
        verdict = verify(JournalFiles(tmp_path))
        assert kinds(verdict) == {kind}
        assert f"offset 3 of 'emma' has the sequence {sequence} after 3" in verdict.findings.shown[0].what


class TestTheIndexes:
    def test_an_id_that_is_missing_is_found(self, place: JournalFiles) -> None:
        put(place.ids, "events", hash_of("e3"), None)
        verdict = verify(place)
        assert kinds(verdict) == {"ids"}
        assert "'e3'" in verdict.findings.shown[0].what

    @pytest.mark.parametrize("wrong", [2, 4])
    def test_an_id_at_a_wrong_offset_is_found(self, place: JournalFiles, wrong: int) -> None:
        put(place.ids, "events", hash_of("e3"), struct.pack("<Q", wrong))
        assert kinds(verify(place)) == {"ids"}

    def test_an_id_that_no_event_has_is_found(self, place: JournalFiles) -> None:
        put(place.ids, "events", hash_of("nobody's"), struct.pack("<Q", 1))
        assert kinds(verify(place)) == {"ids"}

    def test_a_wrong_sequence_is_found(self, place: JournalFiles) -> None:
        put(place.sequences, "entities", hash_of("entity-1"), struct.pack("<Q", 99))
        verdict = verify(place)
        assert kinds(verdict) == {"sequences"}
        assert "99 of 'entity-1'" in verdict.findings.shown[0].what

    def test_an_entity_that_the_log_does_not_have_is_found(self, place: JournalFiles) -> None:
        put(place.sequences, "entities", hash_of("nobody"), struct.pack("<Q", 1))
        assert kinds(verify(place)) == {"sequences"}

    @pytest.mark.parametrize("index", ["ids", "sequences"])
    def test_an_index_of_another_journal_or_ahead_of_the_log_or_damaged_is_found(
        self, place: JournalFiles, index: str
    ) -> None:
        directory = place.directory / index
        put(directory, "meta", b"covers", struct.pack("<Q", EVENTS + 1))
        assert kinds(verify(place)) == {index}
        put(directory, "meta", b"journal", b"another")
        assert "another journal" in verify(place).findings.shown[0].what
        (directory / "data.mdb").write_bytes(b"no LMDB" * 1_000)
        assert "cannot be read" in verify(place).findings.shown[0].what


class TestTheViews:
    def changed(self, place: JournalFiles, database: str, key: bytes, value: bytes | None) -> VerificationResult:
        path = generations.current(place.views)
        assert path is not None
        put(path, database, key, value)
        return verify(place)

    def stored(self, place: JournalFiles, database: str) -> list[tuple[bytes, bytes]]:
        path = generations.current(place.views)
        with lmdb.open(str(path), max_dbs=8, readonly=True) as environment:
            opened = environment.open_db(database.encode(), create=False)
            with environment.begin(db=opened) as transaction:
                return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]

    @pytest.mark.parametrize("database", ["terms", "blocks", "born", "zones"])
    def test_whatever_is_missing_is_found(self, place: JournalFiles, database: str) -> None:
        for key, _ in self.stored(place, database)[:1]:
            assert kinds(self.changed(place, database, key, None)) == {"views"}

    @pytest.mark.parametrize("database", ["terms", "blocks", "born", "zones"])
    def test_a_flipped_bit_is_found(self, place: JournalFiles, database: str) -> None:
        key, value = self.stored(place, database)[-1]
        assert kinds(self.changed(place, database, key, value[:-1] + bytes([value[-1] ^ 1]))) == {"views"}

    def test_an_offset_that_is_wrong_with_a_checksum_that_is_right_is_found(self, place: JournalFiles) -> None:
        for key, value in self.stored(place, "blocks"):
            block = form.unpack_block(key, value)
            wrong = [*block.offsets[:-1].tolist(), int(block.offsets[-1]) + 1]
            packed = form.pack_block(key, block.before, block.partition, wrong)
            assert kinds(self.changed(place, "blocks", key, packed)) == {"views"}
            self.changed(place, "blocks", key, value)
        assert verify(place).ok

    def test_times_that_are_wrong_are_found(self, place: JournalFiles) -> None:
        key, value = self.stored(place, "zones")[0]
        zone = form.Zone.unpack(key, value)
        wrong = form.Zone(zone.behind, ((1, 2),)).pack(key)
        assert "time of the event at offset 0" in self.changed(place, "zones", key, wrong).findings.shown[0].what

    def test_views_of_another_journal_are_found_and_not_condemned(self, place: JournalFiles) -> None:
        key, value = self.stored(place, "meta")[0]
        state = form.ViewsState.unpack(value)
        state.stream = "another"
        assert kinds(self.changed(place, "meta", key, state.pack())) == {"views"}
        assert not list(place.views.rglob("condemned"))

    def test_a_rebuild_mends_them(self, place: JournalFiles) -> None:
        key, _ = self.stored(place, "blocks")[0]
        assert not self.changed(place, "blocks", key, None).ok
        with QueryViews(FileJournal(place.directory), place.views) as views:
            views.rebuild()
        assert verify(place).ok
