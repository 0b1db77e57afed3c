"""Retention: whole segments at a journal's beginning are dropped once nobody needs them, and archived before if wanted.

How; a crash between any two steps loses nothing that is not archived or was not to be dropped, and the same call again
goes on:

1. The lock: one at a time.
2. What goes is every segment that lies wholly before the position, but never the newest one, nor what a reader has not
   passed: then EventsNeeded names it. The first segment that stays must be one whose events have their own sequences.
3. With an archive: each segment becomes a Parquet file there, named after its offsets; durable, and its rows counted.
4. The writers' turn: none of them reads what goes, or counts from what was there before. The index of ids takes in
   what it has not yet.
5. The base (`journal.base`) says how far the journal may be gone, and every entity's last sequence there; durable.
6. The segments are deleted, the oldest first.

Who reads a segment that is deleted meanwhile reads on in it. What comes later is an error, EventsGone. The ids of
dropped events are known as long as the index of ids is not made anew; afterwards the same event again is a new one. Of
what they said nothing is known: an event under such an id counts as the stored one, whatever its content.

Readers: who still needs a journal's events, and from which position on. Retention drops nothing that one needs.

A reader that is not part of Stateside registers itself, as `readers/NAME.json` in the journal's folder, and again
whenever it has come further. Others are known anyway: the views of queries here, those of Spark to who collects them
(`ops.journal_readers`).

Trimming: from the nodes' logs goes what the merged stream has, by the rules of retention (`retention`).

The merger is a log's reader: what it says is done lies in the stream for good, and its last frames say so durably. The
newest segment of a log stays, and so does what a reader needs that registered itself with the log's own folder. Of what
is gone the log's base keeps every entity's last sequence, so that nodes go on giving sequences without gaps, even if
their indexes are made anew. The ids of trimmed events they find in the stream (`nodes.trimmed`).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stateside.core.errors import EventsNeeded, JournalCorrupt, PositionInvalid, RequestInvalid, StatesideError
from stateside.core.positions import Position
from stateside.core.storage import sync_directory, write_atomically
from stateside.journal import frame_index, retention_base, segment, zone_maps
from stateside.journal.admin.export import Selection, export
from stateside.journal.admin.journal_files import JournalFiles
from stateside.journal.index import Ids
from stateside.journal.lock import Turns, lock_alone
from stateside.journal.merge import MergedStream
from stateside.journal.nodes.log import node_logs
from stateside.journal.queries import generation
from stateside.journal.queries.query_views import QueryViews
from stateside.journal.reader import Journal
from stateside.journal.retention_base import Base

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a journal, and up to where it has."""

    name: str
    position: Position


def register(place: JournalFiles, name: str, position: Position) -> None:
    """Let nothing be dropped that this reader has not read: it has read up to the position."""
    write_atomically(_path(place, name), json.dumps({"position": str(position)}).encode())


def unregister(place: JournalFiles, name: str) -> None:
    """Forget a reader that reads no more."""
    _path(place, name).unlink(missing_ok=True)


def readers(place: JournalFiles) -> list[Reader]:
    """The registered ones, and the journal's own views, if there are any."""
    found = registered(place)
    if generation.current(place.views) is not None:
        with QueryViews(place.stream(), place.views) as views:
            found.append(Reader("the views of queries", views.position()))
    return found


def registered(place: JournalFiles) -> list[Reader]:
    """Those that registered themselves."""
    return [Reader(path.stem, _position(path)) for path in sorted((place.directory / "readers").glob("*.json"))]


def _path(place: JournalFiles, name: str) -> Path:
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise RequestInvalid(f"{name!r:.120} is no name of a reader", next_step="Use letters, digits, '.', '_', '-'")
    return place.directory / "readers" / f"{name}.json"


def _position(path: Path) -> Position:
    try:
        return Position.parse(json.loads(path.read_bytes())["position"])
    except (ValueError, LookupError, TypeError, AttributeError, PositionInvalid) as error:
        raise JournalCorrupt(
            f"A reader's position cannot be read: {error!r}",
            where=str(path),
            next_step="Let the reader register itself again, or delete the file if it reads no more",
        ) from error


Watch = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many segments and events are gone; the journal begins at `begin` now."""

    segments: int
    events: int
    begin: int
    archived: tuple[Path, ...] = ()


def nobody(done: int, total: int) -> None:
    """Watches nothing."""


def drop(
    place: JournalFiles, before: int, readers: Sequence[Reader], archive: Path | None = None, watch: Watch = nobody
) -> Dropped:
    """Drop the segments that lie wholly before this offset. The watch is told how many are archived, of how many."""
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
    """The same in every partition of the journal's stream; what went, by partition.

    EventsNeeded, before anything goes, if a reader needs something in any of them.
    """
    parts = place.partitions()
    for name, part in parts.items():
        for _, cut in whole_segments(part, before[name])[-1:]:
            _check_readers(part, cut, readers)
    return {name: drop(part, before[name], readers, archive, watch) for name, part in parts.items()}


def position_before(place: JournalFiles, appended_us: int) -> Position:
    """Where in each partition the first segment begins that has an event appended at this time or later."""
    return Position.of({name: offset_before(part, appended_us) for name, part in place.partitions().items()})


def whole_segments(place: JournalFiles, before: int) -> list[tuple[int, int]]:
    """Step 2: the ranges of offsets of the segments that lie wholly before this offset; never the newest one's."""
    end = Journal(place.directory).durable_end()
    offsets = [offset for offset in segment.segment_offsets(place.directory) if offset <= end.segment_offset]
    return [(first, behind) for first, behind in pairwise(offsets) if behind <= before]


def offset_before(place: JournalFiles, appended_us: int) -> int:
    """Where the first segment begins that has an event which was appended at this time or later."""
    journal = Journal(place.directory)
    reached = _first(place)
    for first, behind in whole_segments(place, journal.durable_end().offset):
        ((_, batch),) = journal.batches(behind - 1, behind)
        if batch.column("appended").cast(pa.int64())[0].as_py() >= appended_us:
            return first
        reached = behind
    return reached


def _first(place: JournalFiles) -> int:
    """Where the first segment begins; a log that its owner has not begun yet has none."""
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
    """Step 3. A file that an earlier call has written is kept if it has all rows."""
    folder = archive / (Journal(place.directory).id() or "")
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
    """What is to be known when all before this offset is gone."""
    known = retention_base.read(place.directory)
    if known.offset >= cut:  # an earlier call came so far
        return known
    lasts: dict[str, int] = dict(known.lasts)
    for _, batch in Journal(place.directory).batches(known.offset, cut):
        entities, sequences = (batch.column(name).to_pylist() for name in ("entity", "sequence"))
        if batch.column("sequence").null_count == 0:
            lasts.update(zip(entities, sequences, strict=True))
        else:
            lasts.update((entity, lasts.get(entity, 0) + count) for entity, count in Counter(entities).items())
    return Base(cut, lasts)


def _keep_ids(place: JournalFiles) -> None:
    journal = Journal(place.directory)
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
    """Drop the segments of all logs that are wholly merged, and wholly appended before a time; what went, by log.

    If a log cannot be trimmed, the others are all the same, and then its error is raised.
    """
    stream = MergedStream(folder)
    if stream.id() is None:
        raise RequestInvalid(
            "There is no merged stream here, so all of the logs is needed",
            where=str(folder),
            next_step="Start `stateside journal merge` first",
        )
    done, dropped = stream.sources().done, {}
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
