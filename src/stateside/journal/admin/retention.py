"""Retention: drops whole segments at a journal's beginning that no reader needs, after an optional archival.

A crash between any two steps loses no event that was to be kept or archived; the same call again continues:

1. Take the lock: one retention at a time.
2. Select every segment wholly before the position, except the newest one. EventsNeeded if a reader has not passed them
   all. The first remaining segment must be one whose events have their own sequences.
3. With an archive: write each segment to a Parquet file named after its offsets; durable, with its rows counted.
4. Take the writers' turn: no writer reads the segments, or counts from their former beginning. The index of ids takes
   in its missing events.
5. Write the base (`journal.retention_base`), durably: how far the journal may be gone, and every entity's last sequence
   there.
6. Delete the segments, the oldest first.

A reader of a deleted segment keeps its open file. Later reads raise EventsGone. The ids of dropped events are known
until the index of ids is rebuilt; afterwards the same event again is a new one. Their content is unknown: an event with
such an id counts as the stored one, whatever its content.

Readers: a reader outside of Stateside registers itself, as `readers/NAME.json` in the journal's folder, and again with
each new position. Known without registration: the views of queries here, and the Spark applications collected by
`ops.journal_readers`. Retention drops nothing that a reader needs.

Trimming drops merged events from the nodes' logs, by the same rules. The merger is a log's reader: its done events are
in the stream for good, and its last frames record so durably. The newest segment of a log stays, and so do events
needed by a reader registered in the log's own folder. The log's base keeps every entity's last sequence, so that nodes
continue sequences without gaps, even with rebuilt indexes. Nodes find the ids of trimmed events in the stream
(`nodes.node_index.trimmed`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stateside.core.errors import EventsNeeded, JournalCorrupt, RequestInvalid, StatesideError
from stateside.core.json_file import JsonFile
from stateside.core.positions import Position
from stateside.core.progress import Watch, nobody
from stateside.core.storage import sync_directory
from stateside.journal.admin.export import Selection, export
from stateside.journal.admin.journal_files import JournalFiles
from stateside.journal.backends.files import frame_index, retention_base, segment, zone_maps
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.lock import Turns, lock_alone
from stateside.journal.backends.files.retention_base import Base
from stateside.journal.backends.nodes import MergedJournal
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.index import Ids
from stateside.journal.queries import generation
from stateside.journal.queries.query_views import QueryViews

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_POSITION: JsonFile[Position] = JsonFile(
    "A reader's position",
    lambda document: Position.parse(document["position"]),
    lambda position: {"position": str(position)},
    damage=JournalCorrupt,
    next_step="Let the reader register itself again, or delete the file if it reads no more",
)


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of a journal, and how far it has read."""

    name: str
    position: Position


def register(place: JournalFiles, name: str, position: Position) -> None:
    """Protect all events from `position` on, up to which this reader has read."""
    _POSITION.write(_path(place, name), position)


def unregister(place: JournalFiles, name: str) -> None:
    """Remove a reader that has ended."""
    _path(place, name).unlink(missing_ok=True)


def readers(place: JournalFiles) -> list[Reader]:
    """The registered readers, and the journal's own views, if there are any."""
    found = registered(place)
    if generation.current(place.views) is not None:
        with QueryViews(place.stream(), place.views) as views:
            found.append(Reader("the views of queries", views.position()))
    return found


def registered(place: JournalFiles) -> list[Reader]:
    """The readers that registered themselves."""
    paths = sorted((place.directory / "readers").glob("*.json"))
    return [Reader(path.stem, position) for path in paths if (position := _POSITION.read(path)) is not None]


def _path(place: JournalFiles, name: str) -> Path:
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise RequestInvalid(f"{name!r:.120} is no name of a reader", next_step="Use letters, digits, '.', '_', '-'")
    return place.directory / "readers" / f"{name}.json"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The numbers of dropped segments and events; the journal now begins at `begin`."""

    segments: int
    events: int
    begin: int
    archived: tuple[Path, ...] = ()


def drop(
    place: JournalFiles, before: int, readers: Sequence[Reader], archive: Path | None = None, watch: Watch = nobody
) -> Dropped:
    """Drop the segments wholly before this offset. `watch` receives the number of archived segments, and the total."""
    with _lock(place):
        ranges = whole_segments(place, before)
        if not ranges:
            return Dropped(0, 0, _first(place))
        begin, cut = ranges[0][0], ranges[-1][1]
        _check_readers(place, cut, readers)
        _check_sequences(place, cut)
        archived = () if archive is None else tuple(_archived(place, archive, ranges, watch))
        found = _base(place, cut)
        with _turn(place):
            _keep_ids(place)
            _lay_base(place, found)
            _delete(place, ranges)
        return Dropped(len(ranges), cut - begin, cut, archived)


def drop_all(
    place: JournalFiles, before: Position, readers: Sequence[Reader], archive: Path | None = None, watch: Watch = nobody
) -> dict[str, Dropped]:
    """As `drop`, in every partition of the journal's stream; returns the results by partition.

    EventsNeeded, before anything is dropped, if a reader needs events in any partition.
    """
    parts = place.partitions()
    for name, part in parts.items():
        for _, cut in whole_segments(part, before[name])[-1:]:
            _check_readers(part, cut, readers)
    return {name: drop(part, before[name], readers, archive, watch) for name, part in parts.items()}


def position_before(place: JournalFiles, appended_us: int) -> Position:
    """Per partition, the beginning of the first segment with an event appended at this time or later."""
    return Position.of({name: offset_before(part, appended_us) for name, part in place.partitions().items()})


def whole_segments(place: JournalFiles, before: int) -> list[tuple[int, int]]:
    """Step 2: the offset ranges of the segments wholly before this offset, except the newest segment."""
    end = FileLog(place.directory).durable_end()
    offsets = [offset for offset in segment.segment_offsets(place.directory) if offset <= end.segment_offset]
    return [(first, behind) for first, behind in pairwise(offsets) if behind <= before]


def offset_before(place: JournalFiles, appended_us: int) -> int:
    """The beginning of the first segment with an event appended at this time or later."""
    journal = FileLog(place.directory)
    reached = _first(place)
    for first, behind in whole_segments(place, journal.durable_end().offset):
        ((_, batch),) = journal.batches(behind - 1, behind)
        if batch.column("appended").cast(pa.int64())[0].as_py() >= appended_us:
            return first
        reached = behind
    return reached


def _first(place: JournalFiles) -> int:
    """Where the first segment begins; a log not yet begun by its owner has none."""
    return next(iter(segment.segment_offsets(place.directory)), 0)


def _check_readers(place: JournalFiles, cut: int, readers: Sequence[Reader]) -> None:
    for reader in readers:
        if reader.position[place.partition] < cut:
            raise EventsNeeded(
                f"{reader.name} has read up to {reader.position}, and the events before {place.partition}:{cut} "
                "would go",
                next_step="Nothing was dropped. Let it read on, or give an earlier position",
            )


def _check_sequences(place: JournalFiles, cut: int) -> None:
    if "sequence" not in segment.schema(segment.segment_path(place.directory, cut)).names:
        raise RequestInvalid(
            f"The events from {place.partition}:{cut} on were stored before there were sequences: they are numbered by "
            "what stands before them, which must stay",
            where=str(place.directory),
            next_step="Give the position of a segment that a newer Stateside wrote, or keep them all",
        )


def _archived(place: JournalFiles, archive: Path, ranges: Sequence[tuple[int, int]], watch: Watch) -> Iterator[Path]:
    """Step 3. An earlier call's file is kept if it has all rows."""
    folder = archive / (FileLog(place.directory).id() or "")
    folder.mkdir(parents=True, exist_ok=True)
    for number, (first, behind) in enumerate(ranges, 1):
        target = folder / f"{first:020d}-{behind:020d}.parquet"
        if not target.exists():
            start, stop = (Position.of({place.partition: at}) for at in (first, behind))
            export(place.stream(), Selection(start, stop), target, "parquet")
        _check_archive(target, behind - first)
        yield target
        watch(number, len(ranges))


def _check_archive(target: Path, events: int) -> None:
    try:
        rows = pq.read_metadata(target).num_rows
    except pa.ArrowInvalid as error:
        rows = f"something that is no Parquet file ({error})"
    if rows != events:
        raise JournalCorrupt(
            f"The archive has {rows} where {events} events belong",
            where=str(target),
            next_step="Nothing was dropped. Move this file away, then try again",
        )


def _base(place: JournalFiles, cut: int) -> Base:
    """The base for a cut at this offset."""
    known = retention_base.read(place.directory)
    if known.offset >= cut:  # an earlier call came so far
        return known
    lasts: dict[str, int] = dict(known.lasts)
    for _, batch in FileLog(place.directory).batches(known.offset, cut):
        entities, sequences = (batch.column(name).to_pylist() for name in ("entity", "sequence"))
        if batch.column("sequence").null_count == 0:
            lasts.update(zip(entities, sequences, strict=True))
        else:
            lasts.update((entity, lasts.get(entity, 0) + count) for entity, count in Counter(entities).items())
    return Base(cut, lasts)


def _keep_ids(place: JournalFiles) -> None:
    journal = FileLog(place.directory)
    Ids(journal).keep(journal.durable_end())


def _lay_base(place: JournalFiles, found: Base) -> None:
    """Step 5."""
    journal_id = segment.journal_id(place.directory)
    assert journal_id is not None, "there are segments"
    found.write(place.directory, journal_id)


def _delete(place: JournalFiles, ranges: Sequence[tuple[int, int]]) -> None:
    """Step 6."""
    for first, _ in ranges:
        path = segment.segment_path(place.directory, first)
        path.unlink()
        frame_index.forget(path)
        zone_maps.forget(path)
        sync_directory(place.directory)


@contextmanager
def _turn(place: JournalFiles) -> Iterator[None]:
    """Step 4. JournalLocked if a writer does not end its turn in time."""
    turns = Turns(place.directory / "lock")
    try:
        with turns.take():
            yield
    finally:
        turns.close()


@contextmanager
def _lock(place: JournalFiles) -> Iterator[None]:
    what, next_step = "Another process drops segments of this journal", "Nothing was dropped. Wait until it is done"
    handle = lock_alone(place.directory / "retention.lock", what, next_step)
    try:
        yield
    finally:
        os.close(handle)


def trim(folder: Path, appended_before_us: int | None = None) -> dict[str, Dropped]:
    """Drop the segments of all logs that are wholly merged and wholly appended before a time; results by log.

    If a log cannot be trimmed, the others are trimmed all the same, and then its error is raised.
    """
    stream = MergedJournal(folder)
    if stream.id() is None:
        raise RequestInvalid(
            "There is no merged stream here, so all of the logs is needed",
            where=str(folder),
            next_step="Start `stateside journal merge` first",
        )
    done, dropped = stream.merged().done, {}
    errors: list[StatesideError] = []
    for name, log in node_logs(folder).items():
        place = JournalFiles(log.directory)
        try:
            before = done[name] if appended_before_us is None else offset_before(place, appended_before_us)
            dropped[name] = drop(place, min(before, done[name]), registered(place))
        except StatesideError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return dropped
