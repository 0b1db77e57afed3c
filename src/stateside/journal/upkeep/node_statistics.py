"""Statistics of a journal that nodes write: their logs, how far each is merged, and what waits for a missing event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateside.journal import segment
from stateside.journal.merge import MergedStream
from stateside.journal.nodes.log import is_sealed, node_logs
from stateside.journal.segment import PARTITION
from stateside.journal.upkeep.place import Place
from stateside.journal.upkeep.statistics import time_text, views_of
from stateside.journal.upkeep.undisturbed import undisturbed

GAPS_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """One log of a node; `merged` is up to where all of it is in the stream."""

    log: str
    begin: int
    end: int
    merged: int
    sealed: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """What `stateside journal stat` tells of such a journal. The numbers of segments and bytes are the stream's."""

    journal: str
    begin: str
    end: str
    events: int
    unmerged: int
    partitions: int
    segments: int
    bytes: int
    views_cover: str | None
    entities_in_views: int | None
    gaps: int
    longest_gaps: tuple[dict[str, Any], ...]
    logs: tuple[LogStatistics, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def node_statistics(place: Place) -> NodeStatistics:
    """How the journal is now. Reads a few headers, not the events."""
    return undisturbed(place, lambda: _statistics(place))


def _statistics(place: Place) -> NodeStatistics:
    stream = MergedStream(place.directory)
    logs, stalled = tuple(_logs(place.directory, stream)), stream.stalled()
    begin, end = stream.begin(), stream.end()
    paths = [path for part in place.partitions().values() for path in _segments(part.directory)]
    views, entities = views_of(place)
    return NodeStatistics(
        journal=stream.id() or "",
        begin=str(begin),
        end=str(end),
        events=end.events() - begin.events(),
        unmerged=sum(log.end - log.merged for log in logs),
        partitions=len(stream.partitions()),
        segments=len(paths),
        bytes=sum(path.stat().st_size for path in paths),
        views_cover=None if views is None else str(views),
        entities_in_views=entities,
        gaps=stalled.count,
        longest_gaps=tuple(
            {"entity": gap.entity, "missing_sequence": gap.missing_sequence, "since": time_text(gap.since_us)}
            for gap in stalled.shown[:GAPS_SHOWN_MAX]
        ),
        logs=logs,
    )


def _logs(directory: Path, stream: MergedStream) -> Iterator[LogStatistics]:
    done = stream.sources().done  # before the ends: so nothing is merged that a log does not have
    for name, log in node_logs(directory).items():
        sizes = (path.stat().st_size for path in _segments(log.directory))
        end, begin = log.durable_end().offset, log.begin()[PARTITION]
        yield LogStatistics(name, begin, end, done[name], is_sealed(log.directory), sum(sizes))


def _segments(directory: Path) -> list[Path]:
    return [segment.segment_path(directory, offset) for offset in segment.segment_offsets(directory)]
