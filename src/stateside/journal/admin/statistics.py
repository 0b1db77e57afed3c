"""Statistics: the size of a journal, and the coverage of its indexes and views. Reads headers, not events."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from stateside.core.positions import Position
from stateside.journal.admin.index_check import covered
from stateside.journal.admin.journal_files import JournalFiles, undisturbed
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.queries import QueryViews
from stateside.journal.queries.format import TAG, ViewsDamaged, scope

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE_TAGS = 1_000


@dataclass(frozen=True, slots=True)
class Statistics:
    """The output of `stateside journal stat`. Offsets of an index or of the views: None if there are none."""

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
        return asdict(self)


def statistics(place: JournalFiles) -> Statistics:
    """The present state of the journal."""
    return undisturbed(place, lambda: _statistics(place))


def _statistics(place: JournalFiles) -> Statistics:
    journal = FileLog(place.directory)
    offsets = segment.segment_offsets(place.directory)
    begin, end = offsets[0], journal.durable_end().offset
    views, entities = views_of(place)
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
        views_cover=None if views is None else views[PARTITION],
        entities_in_views=entities,
    )


def tags(views: QueryViews, prefix: str = "") -> dict[str, int]:
    """All tags with a prefix by name, with their numbers of events. Memory: the tags, not the events."""
    stream = views.stream
    begin, end = stream.begin(), stream.end()
    found, known = _known_tags(views, prefix)
    for partition in stream.partitions():
        start = min(max(known[partition], begin[partition]), end[partition])
        for _, batch in stream.batches(partition, start, end[partition]):
            for event_tags in batch.column("tags").to_pylist():
                found.update(tag for tag in set(event_tags) if tag.startswith(prefix))
    return dict(sorted(found.items()))


def _known_tags(views: QueryViews, prefix: str) -> tuple[Counter[str], Position]:
    """The tags in the views, in one snapshot, and the position of the views."""
    found: Counter[str] = Counter()
    try:
        with views.snapshot() as snapshot:
            if snapshot is None:
                return found, Position.start()
            for number in range(len(snapshot.state.partitions)):
                after = None
                while page := snapshot.names(scope(TAG, number), prefix, after, _PAGE_TAGS):
                    for name, term in page:
                        found[name] += term.events
                    after = page[-1][0]
            return found, snapshot.state.position()
    except ViewsDamaged:
        return Counter(), Position.start()


def views_of(place: JournalFiles) -> tuple[Position | None, int | None]:
    """The position of the views of queries, and their number of entities; None if there are no views."""
    with QueryViews(place.stream(), place.views) as views:
        try:
            with views.snapshot() as snapshot:
                return (None, None) if snapshot is None else (snapshot.state.position(), snapshot.state.entities)
        except ViewsDamaged:
            return None, None


def _appended(journal: FileLog, offset: int) -> str:
    ((_, batch),) = journal.batches(offset, offset + 1)
    appended_us = batch.column("appended").cast("int64")[0].as_py()
    return time_text(appended_us)


def time_text(time_us: int) -> str:
    """A time in ISO 8601."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")
