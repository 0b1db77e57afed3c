"""Verification: reads a whole journal and everything derived from it, changes nothing, and reports faults.

1. Open the indexes of ids and sequences, and the views, as of one moment; then read the end mark.
2. Read every segment up to the end: its header, its place after the segment before, and every frame with its checksum.
3. Check for every event that its entity's sequences grow by one (`index_check.LogCheck`).
4. Compare indexes and views with the events that they cover (`index_check`, `view_check`), and the zone maps of
   segments (`index_check.SummaryCheck`). If the log itself is damaged, indexes and views are not compared: they may
   know more events than are readable.

For a journal written by nodes the same steps run for every partition of the merged stream, and then for every log of a
node (`node_logs`).

A verification may run beside writers, readers and retention (`undisturbed`). A crash's remains beyond the end mark are
skipped: the next writer checks them.

`verify_stream` is for a journal stored by others, as a topic of Kafka. Checksums and copies are the broker's task. It
checks that every message is an event, and that each entity's sequences grow by one. Views are not compared: a query
checks every event that it finds through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stateside.core.errors import JournalCorrupt
from stateside.core.positions import Position
from stateside.core.progress import Watch, nobody
from stateside.journal.admin import index_check, view_check
from stateside.journal.admin.findings import Findings, VerificationResult
from stateside.journal.admin.index_check import LogCheck, SummaryCheck
from stateside.journal.admin.journal_files import JournalFiles
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import PARTITION, DurableEnd, Segment
from stateside.journal.columns import conformed
from stateside.journal.contract import Journal


@dataclass(frozen=True, slots=True)
class Subject:
    """The journal under verification, and everything derived from its events.

    `stream`: the stream id in the views; None for the journal's own id. `has_gaps`: sequences grow, but not by one.
    `observe` receives every stored batch, with its first offset.
    """

    place: JournalFiles
    journal: FileLog
    views: Path
    stream: str | None
    has_gaps: bool = False
    observe: Callable[[int, pa.RecordBatch], None] | None = None

    @classmethod
    def of(cls, place: JournalFiles) -> Subject:
        """A journal of one log."""
        journal = FileLog(place.directory)
        return cls(place, journal, place.views, None)


class Verification:
    """One run over one journal's segments."""

    def __init__(self, subject: Subject, findings: Findings, watch: Watch = nobody) -> None:
        self._subject, self._place, self._watch = subject, subject.place, watch
        self._findings = findings
        self._verdict = VerificationResult(self._findings)
        self._damaged = False

    @property
    def damaged(self) -> bool:
        """Whether some events could not be read."""
        return self._damaged

    def run(self) -> VerificationResult:
        try:
            journal_id = self._subject.journal.id() or ""
            self._open(journal_id)
            try:
                self._read(journal_id)
                self._finish()
            finally:
                for index in (self._ids, self._sequences):
                    if index is not None:
                        index.close()
        except JournalCorrupt as damage:  # of the newest segment's header, or the end mark: nothing is readable
            self._tell(damage)
        self._note_torn()
        return self._verdict

    def _open(self, journal_id: str) -> None:
        """Step 1."""
        place, findings = self._place, self._findings
        self._begin = self._subject.journal.begin()[PARTITION]
        self._ids = index_check.opened(place.ids, "events", journal_id, findings)
        self._sequences = index_check.opened(place.sequences, "entities", journal_id, findings)
        stream = self._subject.stream or journal_id
        self._views = view_check.opened(self._subject.views, stream, place.partition, self._begin, findings)
        self._ids_check = None if self._ids is None else index_check.IdsCheck(self._ids, findings)
        self._sequences_check = (
            None if self._sequences is None else index_check.SequencesCheck(self._sequences, findings)
        )

    def _read(self, journal_id: str) -> None:
        """Steps 2 and 3, and the part of step 4 done per event."""
        directory = self._place.directory
        end = self._subject.journal.durable_end()
        offsets = [offset for offset in segment.segment_offsets(directory) if offset <= end.segment_offset]
        reached = self._begin
        self._verdict.end = end.offset
        known = retention_base.read(directory)
        if known.offset < self._begin:
            reached = known.offset  # events before were not dropped by retention
        before = known.lasts if self._begin == known.offset else None  # else a drop was interrupted
        if self._subject.has_gaps:
            before = None
        self._log = LogCheck(self._findings, before if self._begin else {}, has_gaps=self._subject.has_gaps)
        for first_offset in offsets:
            self._expect(reached, first_offset)
            reached = self._read_segment(first_offset, end, journal_id)
        self._expect(reached, end.offset)
        self._verdict.entities = len(self._log.lasts)

    def _read_segment(self, first_offset: int, end: DurableEnd, journal_id: str) -> int:
        """Returns the offset up to which the events are readable."""
        reached = first_offset
        self._verdict.segments += 1
        summary = SummaryCheck(segment.segment_path(self._place.directory, first_offset), self._findings)
        try:
            for first, batch in self._batches(first_offset, end, journal_id):
                self._take(first, batch)
                summary.take(batch)
                reached = first + batch.num_rows
                self._watch(reached - self._begin, end.offset - self._begin)
            summary.finish(journal_id, reached - first_offset)
        except JournalCorrupt as damage:
            self._tell(damage)
        return reached

    def _batches(self, first_offset: int, end: DurableEnd, journal_id: str) -> Iterator[tuple[int, pa.RecordBatch]]:
        path = segment.segment_path(self._place.directory, first_offset)
        opened = Segment(path)
        try:
            if str(opened.journal_id) != journal_id:
                raise segment.corrupt(path, 0, f"this segment is of the journal {opened.journal_id}, not {journal_id}")
            stop_byte = end.segment_bytes if first_offset == end.segment_offset else None
            for frame in opened.frames(stop_byte=stop_byte):
                stored = opened.batch(frame)
                if self._subject.observe is not None:
                    self._subject.observe(frame.first_offset, stored)
                batch = conformed(stored)
                if batch.num_rows != frame.rows:
                    raise segment.corrupt(path, frame.begin_byte, f"a frame has {batch.num_rows} events")
                self._verdict.frames += 1
                yield frame.first_offset, batch
        finally:
            opened.close()

    def _take(self, first: int, batch: pa.RecordBatch) -> None:
        """Check the events of a frame, in two parts where the index of sequences ends between them."""
        self._verdict.events += batch.num_rows
        if self._ids_check is not None and not self._damaged:
            self._ids_check.take(first, batch.column("id").to_pylist())
        covers = 0 if self._sequences_check is None else self._sequences_check.covers
        cut = min(max(covers - first, 0), batch.num_rows)
        for low, high in ((0, cut), (cut, batch.num_rows)):
            self._compare_sequences(first + low)
            if low < high:
                part = batch.slice(low, high - low)
                numbered = self._log.take(range(first + low, first + high), part)
                if self._views is not None and not self._damaged:
                    self._views.take(first + low, part, numbered)

    def _compare_sequences(self, offset: int) -> None:
        """Compare once, when the log is read up to the end of the index of sequences."""
        check = self._sequences_check
        if check is None or check.covers != offset or self._damaged or "sequences" in self._verdict.compared:
            return
        check.compare(self._log.lasts, is_all=self._log.is_all)
        self._verdict.compared.append("sequences")

    def _expect(self, reached: int, offset: int) -> None:
        """A finding unless the events up to `offset` have been read."""
        if reached == offset:
            return
        self._damaged = True
        self._log.forget()
        what = f"The events at offsets {reached} to {offset - 1} cannot be read, and they were durable"
        if reached > offset:
            what = f"The segments overlap at offsets {offset} to {reached - 1}"
        self._findings.add("missing", f"{what} ({self._place.directory})", "Restore the segments from a copy")

    def _finish(self) -> None:
        """Step 4."""
        end = self._verdict.end
        if self._damaged:
            self._verdict.notes.append("Indexes and views were not compared: the log itself is damaged.")
            self._verdict.compared.clear()
            return
        if self._ids_check is not None:
            self._ids_check.finish(self._begin, end)
            self._verdict.compared.append("ids")
        self._compare_sequences(end)
        if self._sequences_check is not None:
            self._sequences_check.finish(end)
        if self._views is not None:
            self._views.finish(end)
            self._verdict.compared.append("views")

    def _tell(self, damage: JournalCorrupt) -> None:
        self._damaged = True
        self._findings.add("damage", f"{damage.what} ({damage.where})", damage.next_step or "")

    def _note_torn(self) -> None:
        torn = self._place.torn()
        if torn:
            self._verdict.notes.append(
                f"{len(torn)} files with what crashes left unfinished, never acknowledged: {torn[0].name} …"
            )


def verify_stream(stream: Journal, watch: Watch = nobody) -> VerificationResult:
    """Read every partition up to its present end. Reports to `watch` the number of offsets read, and the total."""
    findings = Findings()
    verdict = VerificationResult(findings)
    begin, end = stream.begin(), stream.end()
    reached, total = begin, end.events() - begin.events()
    for partition in stream.partitions():
        findings.where = f"partition {partition}"
        log = LogCheck(findings, None if begin[partition] else {})
        try:
            for offsets, batch in stream.located(partition, begin[partition], end[partition]):
                log.take(offsets, batch)
                verdict.events += batch.num_rows
                reached = reached.joined(Position.of({partition: int(offsets[-1]) + 1}))
                watch(reached.events() - begin.events(), total)
        except JournalCorrupt as damage:
            findings.add("damage", f"{damage.what} ({damage.where})", damage.next_step or "")
            verdict.notes.append(f"What stands around that in partition {partition} was not looked at.")
        verdict.entities += len(log.lasts)
    verdict.end = end.events()
    watch(total, total)
    return verdict
