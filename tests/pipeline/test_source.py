"""The journal's readers as Spark calls them, in this process: no JVM is needed for what they decide."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from stateside import journal as journal_package
from stateside.core.errors import (
    EventsGone,
    JournalAway,
    JournalCorrupt,
    PositionAhead,
    PositionInvalid,
    SettingInvalid,
    ViewInvalid,
)
from stateside.core.positions import Position
from stateside.journal import Event, JournalWriter
from stateside.journal.admin import JournalFiles, drop
from stateside.journal.backends.files.segment import segment_path
from stateside.journal.backends.nodes import Merger, NodeWriter
from stateside.journal.backends.nodes.partition import StreamIdentity
from stateside.pipeline.journal_source import (
    CHOSEN,
    ENVELOPE,
    JournalBatchReader,
    JournalSource,
    JournalStreamReader,
    OffsetRange,
    chosen_columns,
)
from stateside.spark_state.batch_log import read_position
from tests.sizes import not_in_fast, sized

_TYPES = {
    "string": t.StringType(),
    "long": t.LongType(),
    "int": t.IntegerType(),
    "binary": t.BinaryType(),
    "timestamp": t.TimestampType(),
    "array<string>": t.ArrayType(t.StringType()),
    "map<string,string>": t.MapType(t.StringType(), t.StringType()),
}


def schema(*columns: str) -> t.StructType:
    """As Spark parses the source's own."""
    parts = [*ENVELOPE.split(", "), *(f"{name} {CHOSEN[name]}" for name in columns)]
    return t.StructType([t.StructField(name, _TYPES[type_]) for name, type_ in (part.split() for part in parts)])


def stream(folder: Path, **options: Any) -> JournalStreamReader:
    chosen = chosen_columns(options.get("columns"))
    given = {"path": str(folder)} | {name: str(value) for name, value in options.items()}
    return JournalStreamReader(schema(*chosen), given)


def batch(folder: Path, *filters: Filter, **options: Any) -> list[dict[str, Any]]:
    """The rows of a batch read; each task is shipped as Spark does it."""
    given = {"path": str(folder)} | {name: str(value) for name, value in options.items()}
    reader = JournalBatchReader(schema(*chosen_columns(options.get("columns"))), given)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks at all of them again"
    tasks = reader.partitions()
    reader = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for rows in reader.read(task) for row in rows.to_pylist()]


def batches(reader: JournalStreamReader, start: Any, limit: ReadLimit | None = None) -> Iterator[tuple[Any, list[str]]]:
    """What a query would read, batch by batch, until nothing is left."""
    while (end := reader.latestOffset(start, limit or reader.getDefaultReadLimit())) != start:
        tasks = reader.partitions(start, end)
        tables = [rows for task in tasks for rows in pickle.loads(pickle.dumps(reader)).read(task)]
        yield end, [row for table in tables for row in table.column("id").to_pylist()]
        start = end


def fill(folder: Path, segments: int = 4, events: int = 10) -> list[Event]:
    made = [
        Event(
            f"e{n}", f"c{n % 7}", f"type-{n // events}", n, {"n": n}, (f"tag-{n // events}",), metadata={"trace": "7"}
        )
        for n in range(segments * events)
    ]
    with JournalWriter(folder, segment_bytes_max=1) as writer:
        for first in range(0, len(made), events):
            writer.append(made[first : first + events])
    return made


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, dict[str, Position]]:
    """Two nodes with 30 events each, merged into three partitions; the receipt of each event."""
    receipts: dict[str, Position] = {}
    with NodeWriter(tmp_path, "a") as a, NodeWriter(tmp_path, "b") as b, Merger(tmp_path, partitions=3) as merger:
        for number in range(30):
            for name, node in (("a", a), ("b", b)):
                event = Event(f"{name}{number}", f"{name}-entity-{number % 5}", "call", number, {})
                receipts[event.id] = node.append([event])
            if number % 4 == 0:
                merger.merge()
        merger.merge()
    return tmp_path, receipts


def test_a_stream_reads_everything_once_in_batches_no_larger_than_the_limit(tmp_path: Path) -> None:
    events = fill(tmp_path)
    reader = stream(tmp_path, eventsPerBatchMax=7)
    found = list(batches(reader, reader.initialOffset()))
    assert [id_ for _, ids in found for id_ in ids] == [event.id for event in events]
    assert [len(ids) for _, ids in found] == [7, 7, 7, 7, 7, 5]
    assert found[-1][0] == {"0": 40, "journal": reader._stored().id}, "as it always was: old checkpoints go on"


def test_a_stream_without_options_has_the_columns_that_it_always_had() -> None:
    """So no older query's schema changes; the journal's newer columns come when they are asked for."""
    old = "offset long, id string, entity string, type string, time timestamp, appended timestamp, "
    assert JournalSource({}).schema() == old + "tags array<string>, payload string"
    asked = JournalSource({"columns": "sequence, metadata", "fields": "n long"})
    assert asked.schema().endswith("payload string, sequence long, metadata map<string,string>, n long")
    with pytest.raises(ViewInvalid, match="cannot be added"):
        JournalSource({"columns": "sequence, offset"}).schema()


def test_the_newer_columns_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([Event("1", "emma", "call", 0, b"\0\1", version=3, metadata={"trace": "4bf9", "writer": "a"})])
        writer.append([Event("2", "emma", "call", 0, {"n": 1}, extra={"colour": "red"})])
    first, second = batch(tmp_path, columns=",".join(CHOSEN))
    assert (first["sequence"], first["version"], first["data"], first["payload"]) == (1, 3, b"\0\1", "{}")
    assert dict(first["metadata"]) == {"trace": "4bf9", "writer": "a"}
    assert (second["sequence"], second["version"], second["data"], second["metadata"]) == (2, 1, None, None)
    assert second["extra"] == '{"colour":"red"}' and second["partition"] == "0"


def test_a_batch_is_a_range_of_offsets_and_by_default_all_that_is_there(tmp_path: Path) -> None:
    events = fill(tmp_path)
    assert [row["id"] for row in batch(tmp_path)] == [event.id for event in events]
    assert [row["offset"] for row in batch(tmp_path, start="0:5", end="0:32")] == list(range(5, 32))
    assert batch(tmp_path, start="0:7", end="0:7") == []
    with pytest.raises(PositionAhead, match="end 0:41 lies beyond the stream's end, 0:40"):
        batch(tmp_path, end="0:41")
    with pytest.raises(PositionInvalid, match="does not lie before"):
        batch(tmp_path, start="0:9", end="0:8")
    with pytest.raises(PositionInvalid, match="no partition '1'"):
        batch(tmp_path, start="1:9")


@not_in_fast("a large range")
def test_a_large_range_is_split_into_tasks(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        for first in range(0, 100_000, 20_000):
            writer.append([Event(f"e{n}", "c", "call", n, {}) for n in range(first, first + 20_000)])
    tasks = JournalBatchReader(schema(), {"path": str(tmp_path)}).partitions()
    assert [ranged(task) for task in tasks] == [(n * 20_000, (n + 1) * 20_000) for n in range(5)]


def at(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


PUSHED: dict[str, tuple[list[Filter], set[int]]] = {
    "type =": ([EqualTo(("type",), "type-2")], {2, 3}),
    "type in": ([In(("type",), ("type-0", "type-2"))], {0, 2, 3}),
    "type = twice": ([EqualTo(("type",), "type-1"), In(("type",), ("type-2",))], {3}),
    "time <": ([LessThan(("time",), at(10))], {0, 3}),
    "time >= <=": ([GreaterThanOrEqual(("time",), at(19)), LessThanOrEqual(("time",), at(20))], {1, 2, 3}),
    "time >": ([GreaterThan(("time",), at(19))], {2, 3}),
    "offset": ([GreaterThan(("offset",), 9), LessThan(("offset",), 20)], {1}),
    "what cannot be used": ([Not(EqualTo(("type",), "type-1")), EqualTo(("entity",), "c1")], {0, 1, 2, 3}),
    "a number as type": ([EqualTo(("type",), 7)], {0, 1, 2, 3}),
}


@pytest.mark.parametrize(("filters", "opened"), PUSHED.values(), ids=PUSHED)
def test_conditions_that_spark_hands_down_spare_whole_segments(
    tmp_path: Path, filters: list[Filter], opened: set[int]
) -> None:
    """Four segments, the last of which is not finished and is always read. The others are damaged unless needed."""
    fill(tmp_path)
    batch(tmp_path, EqualTo(("type",), "none"))  # makes the summaries
    for number in {0, 1, 2} - opened:
        path = segment_path(tmp_path, number * 10)
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    everything = range(40) if opened == {0, 1, 2, 3} else [n for n in range(40) if n // 10 in opened]
    found = [row["offset"] for row in batch(tmp_path, *filters)]
    assert found == [n for n in everything if all(meets(n, each) for each in filters)]


def ranged(task: InputPartition) -> tuple[int, int]:
    assert isinstance(task, OffsetRange)
    return task.start, task.stop


def meets(number: int, each: Filter) -> bool:
    """What the source itself leaves out; what it cannot judge it lets through."""
    value: Any = getattr(each, "value", None)
    if isinstance(value, datetime):
        value = (value - at(0)) // timedelta(microseconds=1)
    match each:
        case EqualTo(("type",), str()):
            return bool(f"type-{number // 10}" == value)
        case In(("type",), _):
            return f"type-{number // 10}" in value
        case GreaterThan():
            return bool(number > value)
        case GreaterThanOrEqual():
            return bool(number >= value)
        case LessThan():
            return bool(number < value)
        case LessThanOrEqual():
            return bool(number <= value)
    return True


def test_a_stream_of_some_types_or_tags_spares_segments_as_well(tmp_path: Path) -> None:
    fill(tmp_path)
    for options in ({"types": '["type-1"]'}, {"tags": '["tag-1"]'}):
        reader = stream(tmp_path, **options)
        wanted = [f"e{n}" for n in range(10, 20)]
        for _ in range(2):
            ((end, ids),) = batches(reader, reader.initialOffset())
            assert ids == wanted and end["0"] == 40
        assert [ranged(task) for task in reader.partitions({"0": 0}, end)] == [(10, 20), (30, 40)]


def test_a_range_that_is_partly_gone_is_an_error_with_the_range_and_the_ways_on(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = stream(tmp_path)
    old = reader.latestOffset(reader.initialOffset(), ReadMaxRows(15))
    drop(JournalFiles(tmp_path), 30, [])
    gone = r"0:15 to 0:29 are gone: the journal begins at 0:30.*back from a copy.*start = 0:30, or 'begin'"
    for ask in (
        lambda: reader.latestOffset(old, ReadAllAvailable()),
        lambda: reader.partitions(old, {**old, "0": 40}),
        lambda: batch(tmp_path, start="0:15"),
    ):
        with pytest.raises(EventsGone, match=gone):
            ask()
    with pytest.raises(EventsGone, match="0:0 to 0:29 are gone"):
        batch(tmp_path)
    with pytest.raises(EventsGone, match="0:0 to 0:29 are gone"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize("start", ["begin", "0:30"])
def test_a_new_query_on_a_trimmed_journal_starts_at_its_begin_if_it_is_told_to(tmp_path: Path, start: str) -> None:
    fill(tmp_path)
    drop(JournalFiles(tmp_path), 30, [])
    reader = stream(tmp_path, start=start)
    assert [ids for _, ids in batches(reader, reader.initialOffset())] == [[f"e{n}" for n in range(30, 40)]]
    assert len(batch(tmp_path, start=start)) == 10
    with pytest.raises(PositionAhead):
        stream(tmp_path, start="0:41").initialOffset()


def test_a_merged_stream_is_read_whole_by_all_its_partitions(nodes: tuple[Path, dict[str, Position]]) -> None:
    folder, receipts = nodes
    rows = batch(folder, columns="partition, sequence")
    assert {row["id"] for row in rows} == set(receipts) and len(rows) == 60
    assert {row["partition"] for row in rows} == {"0", "1", "2"}
    for entity in {row["entity"] for row in rows}:
        assert [row["sequence"] for row in rows if row["entity"] == entity] == list(range(1, 7))


def test_the_limit_is_shared_by_the_partitions_and_every_event_is_read_once(
    nodes: tuple[Path, dict[str, Position]],
) -> None:
    folder, receipts = nodes
    reader = stream(folder, eventsPerBatchMax=9)
    found = list(batches(reader, reader.initialOffset()))
    assert sorted(id_ for _, ids in found for id_ in ids) == sorted(receipts)
    assert [len(ids) for _, ids in found[:-1]] == [9] * (len(found) - 1)
    first = found[0][0]
    assert [first[name] for name in "012"] == [3, 3, 3]


@not_in_fast("a property over whole merges")
def test_a_stamp_covers_a_node_s_receipt_exactly_when_the_event_was_read(
    nodes: tuple[Path, dict[str, Position]],
) -> None:
    """The batch's offsets name the nodes' logs beside the partitions. It may say less than it has, never more; at the
    stream's end it says all.
    """
    folder, receipts = nodes
    for limit in (1, 2, 7, 60):
        reader, read = stream(folder, eventsPerBatchMax=limit), set()
        for end, ids in batches(reader, reader.initialOffset()):
            read.update(ids)
            position = read_position([json.dumps(end)])
            assert {id_ for id_, receipt in receipts.items() if position.covers(receipt)} <= read
        assert all(position.covers(receipt) for receipt in receipts.values())
        assert position["a.1"] == position["b.1"] == 30


def test_what_a_node_has_appended_and_nobody_merged_yet_is_not_covered(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as a, Merger(tmp_path, partitions=2) as merger:
        receipt = a.append([Event("1", "emma", "call", 0, {})])
        reader = stream(tmp_path)
        assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"0": 0}
        merger.merge()
        end = reader.latestOffset({"0": 0}, ReadAllAvailable())
        assert read_position([json.dumps(end)]).covers(receipt)
        later = a.append([Event("2", "emma", "call", 0, {})])
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        merger.merge()
        assert read_position([json.dumps(reader.latestOffset(end, ReadAllAvailable()))]).covers(later)


def test_stop_at_available_now_and_pause_count_for_every_partition(
    nodes: tuple[Path, dict[str, Position]],
) -> None:
    folder, _ = nodes
    reader = stream(folder, stopAt="0:2,2:5")
    ((end, ids),) = batches(reader, reader.initialOffset())
    assert [end[name] for name in "012"] == [2, 0, 5] and len(ids) == 7

    reader = stream(folder)
    reader.prepareForTriggerAvailableNow()
    with NodeWriter(folder, "a") as a, Merger(folder, partitions=3) as merger:
        a.append([Event(f"late-{n}", f"a-entity-{n % 5}", "call", 0, {}) for n in range(9)])
        merger.merge()
    assert sum(len(ids) for _, ids in batches(reader, reader.initialOffset())) == 60

    pause = folder / "pause"
    pause.touch()
    reader = stream(folder, pauseFile=pause)
    assert list(batches(reader, reader.initialOffset())) == []


def test_a_stream_goes_on_from_where_a_restart_finds_it(nodes: tuple[Path, dict[str, Position]]) -> None:
    folder, receipts = nodes
    start, read = stream(folder).initialOffset(), []
    while True:
        reader = stream(folder, eventsPerBatchMax=8)  # a new process each time
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            break
        tasks = stream(folder).partitions(start, end)
        read += [id_ for task in tasks for rows in reader.read(task) for id_ in rows.column("id").to_pylist()]
        start = end
    assert sorted(read) == sorted(receipts)


def test_a_query_does_not_go_on_in_another_merged_stream(nodes: tuple[Path, dict[str, Position]]) -> None:
    folder, _ = nodes
    reader = stream(folder)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    born = StreamIdentity.read(folder / "merged")
    assert born is not None
    (folder / "merged" / "born").write_text((folder / "merged" / "born").read_text().replace(born.id[:8], "00000000"))
    with pytest.raises(PositionInvalid, match="This query has read journal"):
        reader.latestOffset(end, ReadAllAvailable())


def test_a_journal_that_is_away_is_waited_for_and_not_taken_for_another_one(tmp_path: Path) -> None:
    fill(tmp_path / "journal")
    reader = stream(tmp_path / "journal")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    for ask in (lambda: reader.latestOffset(end, ReadAllAvailable()), lambda: reader.partitions(end, end)):
        with pytest.raises(JournalAway, match="The journal is away"):
            ask()
    (tmp_path / "elsewhere").rename(tmp_path / "journal")
    assert reader.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize("options", [{}, {"start": "0:5"}, {"end": "0:9"}, {"start": "begin"}])
def test_a_batch_read_of_a_journal_that_is_away_is_an_error_and_not_empty(
    tmp_path: Path, options: dict[str, str]
) -> None:
    JournalWriter(tmp_path / "journal").close()
    assert batch(tmp_path / "journal") == [], "a journal without events is empty"
    fill(tmp_path / "journal")
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    for left in ("nothing", "an empty folder"):
        with pytest.raises(JournalAway, match="The journal is away"):
            batch(tmp_path / "journal", **options)
        if left == "nothing":
            (tmp_path / "journal").mkdir()
    assert list((tmp_path / "journal").iterdir()) == []
    (tmp_path / "journal").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "journal")
    assert batch(tmp_path / "journal", **options)


def test_a_batch_read_of_nodes_that_no_merger_has_read_is_an_error(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append([Event("1", "emma", "call", 1, {})])
    with pytest.raises(JournalAway, match="once a merger ran"):
        batch(tmp_path)


def test_a_folder_with_a_log_of_its_own_and_nodes_is_refused(nodes: tuple[Path, dict[str, Position]]) -> None:
    """Nobody makes one by accident: a writer does not begin a log beside nodes."""
    folder, _ = nodes
    with pytest.raises(SettingInvalid, match="written by its nodes"):
        fill(folder)
    fill(folder / "other")
    for path in [*(folder / "other").glob("*.segment"), folder / "other" / "end"]:
        path.rename(folder / path.name)
    with pytest.raises(SettingInvalid, match="a log of its own, and nodes"):
        batch(folder)


def test_an_empty_batch_read_gives_rows_of_the_right_schema_or_none(tmp_path: Path) -> None:
    JournalWriter(tmp_path).close()
    reader = JournalBatchReader(schema(), {"path": str(tmp_path)})
    assert reader.partitions() == []
    assert pa.Table.from_batches(list(reader.read(None)), pa.schema([])).num_rows == 0  # type: ignore[arg-type]


def test_a_journal_without_its_end_mark_is_damaged_and_not_empty(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([Event("1", "emma", "call", 0, {})])
    (tmp_path / "end").unlink()
    reader = stream(tmp_path)
    for read in (lambda: reader.latestOffset(reader.initialOffset(), ReadAllAvailable()), lambda: batch(tmp_path)):
        with pytest.raises(JournalCorrupt, match="end mark is missing"):
            read()


@contextmanager
def calling_at(number: int, act: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Act before the call of this number that a function of the journal's package, or one of C's in it, is called."""
    package, calls = str(Path(journal_package.__file__).parent), 0

    def look(frame: FrameType, what: str, _: object) -> None:
        nonlocal calls
        if what in ("call", "c_call") and frame.f_code.co_filename.startswith(package):
            calls += 1
            if calls == number:
                sys.setprofile(None)
                act()

    sys.setprofile(look)
    try:
        yield lambda: calls < number
    finally:
        sys.setprofile(None)


def two_batches(home: Path, merged: bool) -> Any:
    """A journal with two times 20 events; the offset between them."""
    if merged:
        with NodeWriter(home, "a") as node, Merger(home, partitions=2) as merger:
            node.append([Event(f"e{number}", f"c{number}", "call", 0, {}) for number in range(20)])
            merger.merge()
            reader = stream(home)
            began = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            node.append([Event(f"f{number}", f"c{number}", "call", 0, {}) for number in range(20)])
            merger.merge()
    else:
        fill(home, segments=2)
        reader = stream(home)
        began = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        with JournalWriter(home, segment_bytes_max=1) as writer:
            writer.append([Event(f"f{number}", "emma", "call", 0, {}) for number in range(20)])
    return began


@pytest.mark.parametrize("merged", [False, True], ids=["one log", "merged nodes"])
def test_a_journal_may_leave_at_any_moment_and_is_then_away(tmp_path: Path, merged: bool) -> None:
    """Before each call that planning and reading a batch makes: all of it is read, or the view is told to wait."""
    home, away, waited = tmp_path / "journal", tmp_path / "away", False
    began = two_batches(home, merged)
    whole = sorted(name for _, ids in batches(stream(home), began) for name in ids)
    assert len(whole) == 20
    for number in range(1, 10_000, sized(9, 1)):
        reader, end, read = stream(home), began, list[str]()
        with calling_at(number, lambda: home.rename(away)) as is_over:
            try:
                for end, ids in batches(reader, began):  # noqa: B007
                    read += ids
            except JournalAway:
                waited = True
        if is_over():
            break
        away.rename(home)
        read += [name for _, ids in batches(reader, end) for name in ids]
        assert sorted(read) == whole, f"it left before call {number}"
    assert waited and number > 100


@pytest.mark.parametrize("leaving", ["one log", "merged nodes", "merged"])
def test_a_journal_may_come_back_at_any_moment_and_its_batch_is_whole_or_waits(tmp_path: Path, leaving: str) -> None:
    """A batch planned without its events would be committed, and the events never read."""
    home, away = tmp_path / "journal", tmp_path / "away"
    began = two_batches(home, leaving != "one log")
    place = home / "merged" if leaving == "merged" else home
    ((end, whole),) = batches(stream(home), began)
    tasks = stream(home).partitions(began, end)

    def read() -> list[str]:
        return [name for task in tasks for rows in stream(home).read(task) for name in rows["id"].to_pylist()]

    for ask, wanted in ((lambda: stream(home).partitions(began, end), tasks), (read, whole)):
        for number in range(1, 1_000):
            place.rename(away)
            with calling_at(number, lambda: away.rename(place)) as is_over:
                try:
                    assert ask() == wanted, f"it came back before call {number}"
                except JournalAway:
                    pass
                else:
                    assert not is_over()
            if is_over():
                break
        away.rename(place)
        assert number > 5
