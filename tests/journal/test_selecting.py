"""Reading what meets conditions: the same events as a filter gives, and segments without any are not opened."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import EventsGone, JournalCorrupt, PositionInvalid
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.admin import JournalFiles, drop, verify
from stateside.journal.backends.files import zone_maps
from stateside.journal.backends.files.segment import journal_id, segment_path
from stateside.journal.columns import decode
from stateside.journal.predicates import ANY, Conditions, NumberRange, Stretch, selected, shares, split, stretches
from tests.sizes import not_in_fast, sized


def fill(folder: Path, appends: list[list[Event]], segment_bytes_max: int = 1) -> FileLog:
    """A segment for each append, unless more is allowed."""
    with JournalWriter(folder, segment_bytes_max=segment_bytes_max) as writer:
        for events in appends:
            writer.append(events)
    return FileLog(folder)


def id_of(journal: FileLog) -> UUID:
    found = journal_id(journal.directory)
    assert found is not None
    return found


def event(number: int, type_: str = "call", time_us: int = 0, tags: tuple[str, ...] = ()) -> Event:
    return Event(f"e{number}", f"c{number % 3}", type_, time_us, {"number": number}, tags)


def ids(journal: FileLog, conditions: Conditions, start: int = 0, stop: int | None = None) -> list[str]:
    """What is read, after the filter that every reader lays over it."""
    found: list[str] = []
    for _, batch in selected(journal, start, journal.end()["0"] if stop is None else stop, conditions):
        wanted = conditions.wanted(batch)
        found.extend(each.id for each in decode(batch if wanted is None else batch.filter(wanted)))
    return found


@pytest.fixture
def months(tmp_path: Path) -> FileLog:
    """Four finished segments and a newest one, 100 events each: another type, tag and time in each."""
    parts = [[event(100 * n + i, f"type-{n}", 1_000 * n + i, (f"tag-{n}",)) for i in range(100)] for n in range(5)]
    return fill(tmp_path / "journal", parts)


BY = {
    "types": Conditions(types=frozenset(["type-2"])),
    "tags": Conditions(tags=frozenset(["tag-2", "no such tag"])),
    "time": Conditions(time=NumberRange(2_000, 2_099)),
}


@pytest.mark.parametrize("conditions", BY.values(), ids=BY)
def test_segments_that_the_summaries_rule_out_are_not_opened(months: FileLog, conditions: Conditions) -> None:
    """Shown by making them unreadable: a byte of each is changed, which whoever reads it is told of."""
    expected = ids(months, conditions)  # the first read makes the summaries
    assert expected == [f"e{number}" for number in range(200, 300)]
    for first in (0, 100, 300):
        path = segment_path(months.directory, first)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert ids(months, conditions) == expected
    assert stretches(months, 0, 500, conditions) == [Stretch(200, 300), Stretch(400, 500)]
    with pytest.raises(JournalCorrupt, match="checksum"):
        ids(months, ANY)


def test_the_summaries_are_made_by_who_reads_a_whole_segment_and_only_of_finished_ones(months: FileLog) -> None:
    assert ids(months, BY["types"], 50, 250) == [f"e{number}" for number in range(200, 250)]
    kept = months.directory / zone_maps.FOLDER
    assert [path.stem for path in kept.iterdir()] == [segment_path(months.directory, 100).stem]
    ids(months, BY["types"])
    assert len(list(kept.iterdir())) == 4
    loaded = zone_maps.load(segment_path(months.directory, 300), id_of(months), 100)
    assert loaded is not None
    assert (loaded.events, loaded.first_us, loaded.last_us) == (100, 3_000, 3_099)
    assert loaded.types == zone_maps.marks_of(["type-3"])


@pytest.mark.parametrize("damage", ["changed", "cut", "emptied", "of another segment", "of another journal"])
def test_a_summary_that_is_damaged_or_another_s_is_not_used(months: FileLog, tmp_path: Path, damage: str) -> None:
    expected = ids(months, BY["types"])
    path = zone_maps.path_of(segment_path(months.directory, 200))
    content = path.read_bytes()
    other = fill(tmp_path / "other", [[event(i, "other") for i in range(first, first + 100)] for first in (0, 100)])
    ids(other, BY["types"])
    there = {
        "changed": content[:-1] + bytes([content[-1] ^ 1]),
        "cut": content[:-3],
        "emptied": b"",
        "of another segment": zone_maps.path_of(segment_path(months.directory, 0)).read_bytes(),
        "of another journal": zone_maps.path_of(segment_path(other.directory, 0)).read_bytes(),
    }
    path.write_bytes(there[damage])
    assert ids(months, BY["types"]) == expected
    assert path.read_bytes() == content, "it was made again"


def test_a_segment_that_is_cut_or_gone_is_told_of_though_its_summary_would_rule_it_out(months: FileLog) -> None:
    ids(months, BY["types"])
    path = segment_path(months.directory, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(JournalCorrupt, match="cut short"):
        ids(months, BY["types"])
    path.write_bytes(whole)
    segment_path(months.directory, 100).unlink()
    with pytest.raises(JournalCorrupt, match="no event at offset 100"):
        ids(months, BY["types"])


def test_verify_finds_a_summary_that_is_wrong_and_one_that_is_damaged(months: FileLog) -> None:
    ids(months, BY["types"])
    assert verify(JournalFiles(months.directory)).ok
    path = segment_path(months.directory, 100)
    wrong = zone_maps.load(path, id_of(months), 100)
    assert wrong is not None
    zone_maps.keep(path, id_of(months), zone_maps.Summary(100, 7, 8, 9, 10, wrong.types, wrong.tags))
    zone_maps.path_of(segment_path(months.directory, 200)).write_bytes(b"rubbish")
    verdict = verify(JournalFiles(months.directory))
    assert verdict.findings.counts == {"summary": 2}
    assert "Delete" in verdict.findings.shown[0].next_step


def test_a_dropped_segment_takes_its_summary_with_it(months: FileLog) -> None:
    ids(months, BY["types"])
    drop(JournalFiles(months.directory), 200, [])
    assert len(list((months.directory / zone_maps.FOLDER).iterdir())) == 2
    assert ids(months, BY["types"], 200) == [f"e{number}" for number in range(200, 300)]
    with pytest.raises(EventsGone, match="0 to 199 are gone"):
        ids(months, BY["types"])


def test_a_reader_that_may_not_write_beside_the_journal_reads_all_the_same(months: FileLog) -> None:
    (months.directory / zone_maps.FOLDER).write_text("a file where the folder would be")
    assert len(ids(months, BY["types"])) == 100


def test_a_range_beyond_the_end_is_refused_with_conditions_too(months: FileLog) -> None:
    with pytest.raises(PositionInvalid, match="ends at 500"):
        ids(months, BY["types"], 0, 501)


def test_more_tags_than_a_summary_takes_rule_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_maps, "TEXTS_MAX", 50)
    journal = fill(tmp_path, [[event(i, tags=(f"tag-{i}",)) for i in range(60)], [event(99)]])
    conditions = Conditions(tags=frozenset(["tag-77"]))
    assert ids(journal, conditions) == ids(journal, conditions) == []
    assert stretches(journal, 0, 61, conditions) == [Stretch(0, 60), Stretch(60, 61)]


NAMES = st.sampled_from(["a", "b", "c", "d"])
EVENTS = st.lists(st.tuples(NAMES, st.integers(0, 9), st.lists(NAMES, max_size=2)), min_size=1, max_size=4)
SETS = st.none() | st.frozensets(NAMES, max_size=3)
SPANS = st.just(NumberRange()) | st.builds(NumberRange, st.integers(0, 9), st.integers(0, 9))
CONDITIONS = st.builds(Conditions, SETS, SETS, SPANS)


@not_in_fast("a property over whole journals; the examples here are small")
@settings(max_examples=sized(60, 1_000), deadline=None)
@given(
    appends=st.lists(EVENTS, min_size=1, max_size=8),
    large=st.booleans(),
    questions=st.lists(st.tuples(CONDITIONS, st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5),
)
def test_what_is_selected_is_what_a_filter_of_everything_gives(
    appends: list[list[tuple[str, int, list[str]]]],
    large: bool,
    questions: list[tuple[Conditions, float, float]],
) -> None:
    with TemporaryDirectory() as folder:
        made = [[event(0, type_, time_us, tuple(tags)) for type_, time_us, tags in part] for part in appends]
        number = iter(range(1_000))
        named = [[Event(f"e{next(number)}", "c", e.type, e.time_us, {}, e.tags) for e in part] for part in made]
        journal = fill(Path(folder), named, 2_000 if large else 1)
        end = journal.end()["0"]
        for conditions, low, high in questions:
            start, stop = sorted((round(low * end), round(high * end)))
            everything = list(journal.events())[start:stop]
            assert ids(journal, conditions, start, stop) == [e.id for e in everything if meets(e, conditions)]


def meets(each: Event, conditions: Conditions) -> bool:
    return (
        (conditions.types is None or each.type in conditions.types)
        and (conditions.tags is None or not conditions.tags.isdisjoint(each.tags))
        and conditions.time.first <= each.time_us <= conditions.time.last
    )


@given(st.dictionaries(NAMES, st.integers(0, 50), min_size=1), st.integers(1, 100))
def test_shares_are_fair_and_leave_nothing_that_was_allowed(waiting: dict[str, int], events: int) -> None:
    """Nobody gets much less than another, unless it needs no more."""
    taken = shares(waiting, events)
    assert sum(taken.values()) == min(events, sum(waiting.values()))
    assert all(0 <= taken[name] <= waiting[name] for name in waiting)
    hungry = [taken[name] for name in waiting if taken[name] < waiting[name]]
    assert not hungry or max(taken.values()) - min(hungry) <= 1


def test_a_partition_with_little_to_read_is_not_starved_by_a_small_limit() -> None:
    """The one with the most is served first; that is another one as soon as it has waited long enough."""
    assert shares({"0": 10, "1": 3}, 1) == {"0": 1, "1": 0}
    assert shares({"0": 2, "1": 3}, 1) == {"0": 0, "1": 1}


@pytest.mark.parametrize(
    ("found", "events", "parts"),
    [
        ([Stretch(0, 100)], 30, [(0, 25), (25, 50), (50, 75), (75, 100)]),
        ([Stretch(0, 10), Stretch(10, 20), Stretch(40, 50)], 25, [(0, 20), (40, 50)]),
        ([Stretch(0, 100, unsummed=True), Stretch(100, 120)], 30, [(0, 100), (100, 120)]),
        ([], 30, []),
    ],
)
def test_pieces_are_split_and_joined_to_tasks(found: list[Stretch], events: int, parts: list[tuple[int, int]]) -> None:
    assert [(part.start, part.stop) for part in split(found, events)] == parts
