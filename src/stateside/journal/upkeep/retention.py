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
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stateside.errors import EventsNeeded, JournalCorrupt, RequestInvalid
from stateside.journal import base, frame_index, segment, summaries
from stateside.journal.base import Base
from stateside.journal.ids import Ids
from stateside.journal.reader import Journal
from stateside.journal.turns import Turns, lock_alone
from stateside.journal.upkeep.exporting import export
from stateside.journal.upkeep.place import Place
from stateside.journal.upkeep.readers import Reader
from stateside.journal.upkeep.selection import Selection
from stateside.positions import Position
from stateside.storage import sync_directory

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
    place: Place, before: int, readers: Sequence[Reader], archive: Path | None = None, watch: Watch = nobody
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
    place: Place, before: Position, readers: Sequence[Reader], archive: Path | None = None, watch: Watch = nobody
) -> dict[str, Dropped]:
    """The same in every partition of the journal's stream; what went, by partition.

    EventsNeeded, before anything goes, if a reader needs something in any of them.
    """
    parts = place.partitions()
    for name, part in parts.items():
        for _, cut in whole_segments(part, before[name])[-1:]:
            _check_readers(part, cut, readers)
    return {name: drop(part, before[name], readers, archive, watch) for name, part in parts.items()}


def position_before(place: Place, appended_us: int) -> Position:
    """Where in each partition the first segment begins that has an event appended at this time or later."""
    return Position.of({name: offset_before(part, appended_us) for name, part in place.partitions().items()})


def whole_segments(place: Place, before: int) -> list[tuple[int, int]]:
    """Step 2: the ranges of offsets of the segments that lie wholly before this offset; never the newest one's."""
    end = Journal(place.directory).durable_end()
    offsets = [offset for offset in segment.segment_offsets(place.directory) if offset <= end.segment_offset]
    return [(first, behind) for first, behind in pairwise(offsets) if behind <= before]


def offset_before(place: Place, appended_us: int) -> int:
    """Where the first segment begins that has an event which was appended at this time or later."""
    journal = Journal(place.directory)
    reached = _first(place)
    for first, behind in whole_segments(place, journal.durable_end().offset):
        ((_, batch),) = journal.batches(behind - 1, behind)
        if batch.column("appended").cast(pa.int64())[0].as_py() >= appended_us:
            return first
        reached = behind
    return reached


def _first(place: Place) -> int:
    """Where the first segment begins; a log that its owner has not begun yet has none."""
    return next(iter(segment.segment_offsets(place.directory)), 0)


def _check_readers(place: Place, cut: int, readers: Sequence[Reader]) -> None:
    for reader in readers:
        if reader.position[place.partition] < cut:
            raise EventsNeeded(
                f"{reader.name} has read up to {reader.position}, and the events before {place.partition}:{cut} "
                "would go",
                next_step="Nothing was dropped. Let it read on, or give an earlier position",
            )


def _check_sequences(place: Place, cut: int) -> None:
    if "sequence" not in segment.schema(segment.segment_path(place.directory, cut)).names:
        raise RequestInvalid(
            f"The events from {place.partition}:{cut} on were stored before there were sequences: they are numbered by "
            "what stands before them, which must stay",
            where=str(place.directory),
            next_step="Give the position of a segment that a newer Stateside wrote, or keep them all",
        )


def _archived(place: Place, archive: Path, ranges: Sequence[tuple[int, int]], watch: Watch) -> Iterator[Path]:
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


def _base(place: Place, cut: int) -> Base:
    """What is to be known when all before this offset is gone."""
    known = base.read(place.directory)
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


def _keep_ids(place: Place) -> None:
    journal = Journal(place.directory)
    Ids(journal).keep(journal.durable_end())


def _lay_base(place: Place, found: Base) -> None:
    """Step 5."""
    journal_id = segment.journal_id(place.directory)
    assert journal_id is not None, "there are segments"
    found.write(place.directory, journal_id)


def _delete(place: Place, ranges: Sequence[tuple[int, int]]) -> None:
    """Step 6."""
    for first, _ in ranges:
        path = segment.segment_path(place.directory, first)
        path.unlink()
        frame_index.forget(path)
        summaries.forget(path)
        sync_directory(place.directory)


@contextmanager
def _turn(place: Place) -> Iterator[None]:
    """Step 4. JournalLocked if a writer does not end its turn in time."""
    turns = Turns(place.directory / "lock")
    try:
        with turns.take():
            yield
    finally:
        turns.close()


@contextmanager
def _lock(place: Place) -> Iterator[None]:
    what, next_step = "Another process drops segments of this journal", "Nothing was dropped. Wait until it is done"
    handle = lock_alone(place.directory / "retention.lock", what, next_step)
    try:
        yield
    finally:
        os.close(handle)
