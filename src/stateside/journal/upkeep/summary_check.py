"""The check of a segment's summary against its events."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa

from stateside.journal import summaries
from stateside.journal.summaries import Collector
from stateside.journal.upkeep.findings import Findings


class SummaryCheck:
    """Follows the events of a segment that has a summary; does nothing if it has none."""

    def __init__(self, segment: Path, findings: Findings) -> None:
        self._segment, self._findings = segment, findings
        self._collector = Collector() if summaries.path_of(segment).exists() else None

    def take(self, batch: pa.RecordBatch) -> None:
        """The next events."""
        if self._collector is not None:
            self._collector.take(batch)

    def finish(self, journal_id: str, events: int) -> None:
        """All events of the segment, so many, were taken."""
        if self._collector is None or not events:
            return
        kept = summaries.load(self._segment, UUID(journal_id), events)
        if kept != self._collector.summary():
            path = summaries.path_of(self._segment)
            wrong = "is damaged, and not used" if kept is None else "does not say what the segment has"
            self._findings.add("summary", f"The summary {path} {wrong}", "Delete that file: it is made anew")
