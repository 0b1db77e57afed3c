"""Statistics and verification of a journal written by nodes.

The statistics report the logs, how far each is merged, and the gaps. The verification:

1. Look up how far the logs are *done*: all earlier events are in the stream.
2. Verify every partition of the merged stream as a journal, with the views of queries.
3. Verify every log of a node, up to its seal or end mark: its frames, and that each entity's sequences grow. Gaps are
   no fault there: other nodes may have written in between.
4. Compare the done events of each log with the stream's events from the log: by number, and by a sum over all of them
   (`view_check.StatementSums`). Events trimmed or dropped on either side are left out.

Memory: a name and a number for each entity.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import JournalCorrupt
from stateside.core.positions import Position
from stateside.core.progress import Watch, nobody
from stateside.journal.admin.findings import Findings, VerificationResult
from stateside.journal.admin.journal_files import JournalFiles, undisturbed
from stateside.journal.admin.statistics import time_text, views_of
from stateside.journal.admin.verification import Subject, Verification
from stateside.journal.admin.view_check import StatementSums, hashes_of
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.backends.nodes import MergedJournal
from stateside.journal.backends.nodes.log import NodeLog, is_sealed, node_logs
from stateside.journal.backends.nodes.partition import MergedPartition

GAPS_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """One log of a node; all events before `merged` are in the stream."""

    log: str
    begin: int
    end: int
    merged: int
    sealed: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The output of `stateside journal stat` for such a journal. The numbers of segments and bytes are the stream's."""

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
        return asdict(self)


def node_statistics(place: JournalFiles) -> NodeStatistics:
    """The present state of the journal. Reads a few headers, not the events."""
    return undisturbed(place, lambda: _statistics(place))


def _statistics(place: JournalFiles) -> NodeStatistics:
    stream = MergedJournal(place.directory)
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


def _logs(directory: Path, stream: MergedJournal) -> Iterator[LogStatistics]:
    done = stream.merged().done  # before the ends, so that `merged` never exceeds a log's end
    for name, log in node_logs(directory).items():
        sizes = (path.stat().st_size for path in _segments(log.directory))
        end, begin = log.durable_end().offset, log.begin()[PARTITION]
        yield LogStatistics(name, begin, end, done[name], is_sealed(log.directory), sum(sizes))


def _segments(directory: Path) -> list[Path]:
    return [segment.segment_path(directory, offset) for offset in segment.segment_offsets(directory)]


_MEND = "Restore the folder `merged` or the log from a copy; nothing was changed"


def verify(place: JournalFiles, watch: Watch = nobody) -> VerificationResult:
    """Verify any journal, also while written. Reports to `watch` the number of events read, and the total.

    Starts again if segments were dropped meanwhile and a fault was found.
    """
    return undisturbed(place, lambda: _verdict(place, watch), lambda found: found.ok)


def _verdict(place: JournalFiles, watch: Watch) -> VerificationResult:
    if place.has_nodes:
        return _NodeVerification(place, watch).run()
    return Verification(Subject.of(place), Findings(), watch).run()


class _NodeVerification:
    def __init__(self, place: JournalFiles, watch: Watch) -> None:
        self._place, self._watch = place, watch
        self._stream, self._logs = MergedJournal(place.directory), node_logs(place.directory)
        self._done, self._total, self._read = Position.start(), 0, 0
        self._begins = {name: log.begin()[PARTITION] for name, log in self._logs.items()}
        self._findings, self._damaged = Findings(), False
        self._verdict = VerificationResult(self._findings)
        self._merged, self._logged = StatementSums(), StatementSums()

    def run(self) -> VerificationResult:
        with suppress(JournalCorrupt):  # found again, and reported, by the verification of its part
            self._done = self._stream.merged().done
            ends = (log.durable_end().offset for log in self._logs.values())
            self._total = self._stream.end().events() + sum(ends)
        for name, part in self._place.partitions().items():
            self._verify_partition(name, part)
        entities = self._verdict.entities
        for name, log in self._logs.items():
            self._verify_log(name, log)
        self._verdict.entities = entities  # the logs have the same entities
        self._findings.where = None
        self._compare()
        return self._verdict

    def _verify_partition(self, name: str, part: JournalFiles) -> None:
        subject = Subject(
            part, MergedPartition(part.directory), self._place.views, self._stream.id(), observe=self._take_merged
        )
        self._run(f"Partition {name} of the stream", subject)

    def _verify_log(self, name: str, log: NodeLog) -> None:
        place = JournalFiles(log.directory)

        def take(first: int, batch: pa.RecordBatch) -> None:
            self._take_logged(name, first, batch)

        self._run(f"The log {name}", Subject(place, log, place.views, None, has_gaps=True, observe=take))

    def _run(self, where: str, subject: Subject) -> None:
        self._findings.where, before = where, self._read
        run = Verification(subject, self._findings, lambda done, _: self._watch(before + done, self._total))
        found = run.run()
        self._read += found.events
        self._damaged |= run.damaged
        self._verdict.add(found)

    def _take_merged(self, first: int, batch: pa.RecordBatch) -> None:
        for name in batch.column("source").unique().to_pylist():
            rows = batch.filter(pc.equal(batch.column("source"), name))
            self._add(self._merged, name, rows, rows.column("source_offset").to_numpy())

    def _take_logged(self, name: str, first: int, batch: pa.RecordBatch) -> None:
        self._add(self._logged, name, batch, np.arange(first, first + batch.num_rows))

    def _add(self, sums: StatementSums, name: str, batch: pa.RecordBatch, offsets: np.ndarray) -> None:
        """Add the events of a log that must be on both sides."""
        there = (offsets >= self._begins.get(name, 0)) & (offsets < self._done[name])
        sums.add(name, hashes_of(batch.column("id"))[there], offsets[there], batch.column("sequence").to_numpy()[there])

    def _compare(self) -> None:
        """Step 4."""
        dropped = any(retention_base.offset(part.directory) for part in self._place.partitions().values())
        if self._damaged or dropped:
            why = "a part of it is damaged" if self._damaged else "the stream's first events were dropped"
            self._verdict.notes.append(f"The logs were not compared with the stream: {why}.")
            return
        for name in self._logs:
            (merged, _), (logged, _) = self._merged.of(name), self._logged.of(name)
            if self._merged.of(name) != self._logged.of(name):
                what = f"Of the {logged:,} events of the log {name} before {self._done[name]} the stream has {merged:,}"
                self._findings.add("merge", what if merged != logged else f"{what}, and not the same ones", _MEND)
        self._verdict.compared.append("nodes' logs")
