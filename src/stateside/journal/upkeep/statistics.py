"""Statistics: how large a journal is, and how far what is made of it has come. Reads a few headers, not the events."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from stateside.journal import segment
from stateside.journal.queries import Views
from stateside.journal.queries.format import TAG, Damaged, scope
from stateside.journal.reader import Journal
from stateside.journal.segment import PARTITION
from stateside.journal.stream import FileStream
from stateside.journal.upkeep.index_check import covered
from stateside.journal.upkeep.place import Place

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE_TAGS = 1_000


@dataclass(frozen=True, slots=True)
class Statistics:
    """What `stateside journal stat` tells. Offsets of an index or of the views: None if there are none."""

    journal: str
    begin: str
    end: str
    events: int
    segments: int
    bytes: int
    first_appended: str | None
    last_appended: str | None
    torn_files: int
    ids_cover: int | None
    sequences_cover: int | None
    views_cover: int | None
    entities_in_views: int | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def statistics(place: Place) -> Statistics:
    """How the journal is now."""
    journal = Journal(place.directory)
    offsets = segment.segment_offsets(place.directory)
    begin, end = offsets[0], journal.durable_end().offset
    views, entities = _views(place)
    return Statistics(
        journal=journal.id() or "",
        begin=f"{PARTITION}:{begin}",
        end=f"{PARTITION}:{end}",
        events=end - begin,
        segments=len(offsets),
        bytes=sum(segment.segment_path(place.directory, offset).stat().st_size for offset in offsets),
        first_appended=_appended(journal, begin) if begin < end else None,
        last_appended=_appended(journal, end - 1) if begin < end else None,
        torn_files=len(place.torn()),
        ids_cover=covered(place.ids),
        sequences_cover=covered(place.sequences),
        views_cover=views,
        entities_in_views=entities,
    )


def tags(place: Place, prefix: str = "") -> dict[str, int]:
    """All tags with a prefix by name, and how many events have each. Memory: the tags, not the events."""
    stream = FileStream(place.directory)
    begin, end = stream.begin()[PARTITION], stream.end()[PARTITION]
    with Views(stream, place.views) as views:
        found, start = _known_tags(views, prefix)
    for _, batch in stream.batches(PARTITION, min(max(start, begin), end), end):
        for event_tags in batch.column("tags").to_pylist():
            found.update(tag for tag in set(event_tags) if tag.startswith(prefix))
    return dict(sorted(found.items()))


def _known_tags(views: Views, prefix: str) -> tuple[Counter[str], int]:
    """What the views know, in one snapshot, and the offset up to which they do."""
    found: Counter[str] = Counter()
    try:
        with views.snapshot() as snapshot:
            if snapshot is None or PARTITION not in snapshot.state.partitions:
                return found, 0
            number = snapshot.state.partitions.index(PARTITION)
            after = None
            while page := snapshot.names(scope(TAG, number), prefix, after, _PAGE_TAGS):
                found.update({name: term.events for name, term in page})
                after = page[-1][0]
            return found, snapshot.state.covers(PARTITION)
    except Damaged:
        return Counter(), 0


def _views(place: Place) -> tuple[int | None, int | None]:
    with Views(FileStream(place.directory), place.views) as views:
        try:
            with views.snapshot() as snapshot:
                return (None, None) if snapshot is None else (snapshot.state.covers(PARTITION), snapshot.state.entities)
        except Damaged:
            return None, None


def _appended(journal: Journal, offset: int) -> str:
    ((_, batch),) = journal.batches(offset, offset + 1)
    appended_us = batch.column("appended").cast("int64")[0].as_py()
    return (_EPOCH + timedelta(microseconds=appended_us)).isoformat().replace("+00:00", "Z")
