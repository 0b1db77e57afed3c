"""Rating reports: the result of rating a range of the journal, so that the sink's sweep need not rate the range again.

    FOLDER/00000000000001000000-00000000000001062500      the range's offsets
        5f2c9a01                                          crc32 of the line below
        {"journal": "…", "start": …, "stop": …, …}

The tasks that rate a batch write reports beside their rows; the sink reads the reports when it sweeps the batch, and
then deletes them. Rating is a pure function of the journal, so a report is right whichever attempt of whichever batch
wrote it, and several reports may cover the same events. A report must be complete (checked by its checksum) and of this
journal (checked by the id); any other report is skipped. Reports only save time: a range without one is rated again.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from stateside.billing.book.book import Book
from stateside.billing.book.texts import Longs
from stateside.billing.rating.rating import is_bad, is_usage
from stateside.core import ViewLayout, write_atomically

EVENTS_MIN: Final = 10_000  # fewer events get no report: rating them takes less time than the file does
BAD_MAX: Final = 10_000  # more bad events get no report either: a long file that saves little
NEVER_US: Final = 2**63 - 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RatingReport:
    """For events with start <= offset < stop: the bad ones, and the earliest period end of the others."""

    start: int
    stop: int
    bad: tuple[int, ...]  # their offsets, in order
    first_end_us: int  # NEVER_US if there is no usage that counts

    @classmethod
    def of(cls, rated: pa.Table, book: Book) -> RatingReport:
        """The report of rated events, which must be consecutive."""
        start, stop = rated["offset"][0].as_py(), rated["offset"][-1].as_py() + 1
        bad = rated["offset"].filter(is_bad(rated))
        return cls(start, stop, tuple(bad.to_pylist()), _first_end_us(rated, book))

    def suspects(self, first: int, times_us: Longs, closed_us: int) -> Longs:
        """The rows that may be bad, or late with periods closed up to `closed_us`; row 0 is the event at `first`."""
        suspect = np.zeros(len(times_us), np.bool_)
        if self.first_end_us <= closed_us:
            suspect |= times_us < closed_us  # a closed period has only events before its end
        bad = np.array(self.bad, np.int64) - first
        suspect[bad[(bad >= 0) & (bad < len(times_us))]] = True
        return np.flatnonzero(suspect)


@dataclass(frozen=True, slots=True)
class Reports:
    """The folder of the reports on one view's batches."""

    folder: Path

    def write(self, report: RatingReport, journal_id: str) -> None:
        """Write a report, if worth the file. If the folder is not writable, only log a warning."""
        if report.stop - report.start < EVENTS_MIN or len(report.bad) > BAD_MAX:
            return
        content = json.dumps({"journal": journal_id, **asdict(report)}).encode()
        path = self.folder / f"{report.start:020d}-{report.stop:020d}"
        try:
            write_atomically(path, f"{zlib.crc32(content):08x}\n".encode() + content, durable=False)
        except OSError as error:
            log.warning("no report of %d to %d, which are rated twice: %s", report.start, report.stop, error)

    def read(self, journal_id: str) -> list[RatingReport]:
        """All complete reports of this journal, by start."""
        found = (_parsed(content, journal_id) for content in self._contents())
        return sorted((report for report in found if report is not None), key=lambda report: report.start)

    def clear(self) -> None:
        """Delete all reports and half-written files of killed tasks, between batches, when no task writes."""
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _contents(self) -> Iterator[bytes]:
        for path in self._paths():
            try:
                yield path.read_bytes()
            except OSError as error:
                log.warning("the report %s cannot be read, and is passed over: %s", path, error)

    def _paths(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:
            return []


def reports_of(places: ViewLayout) -> Reports:
    """The reports of a view: tasks and sink must see the same folder, as with the book."""
    return Reports(places.root / "reports")


def _first_end_us(rated: pa.Table, book: Book) -> int:
    """The earliest period end: within a version period ends rise with time, so each version's first event suffices."""
    usage = rated.filter(is_usage(rated))
    firsts = usage.group_by("plan").aggregate([("time", "min")])
    times_us = firsts["time_min"].cast(pa.int64()).to_pylist()
    ends = (
        book.plans[plan].cycle.ends(np.array([time_us]))[0]
        for plan, time_us in zip(firsts["plan"].to_pylist(), times_us, strict=True)
    )
    return int(min(ends, default=NEVER_US))


def _parsed(content: bytes, journal_id: str) -> RatingReport | None:
    checksum, _, line = content.partition(b"\n")
    if checksum != f"{zlib.crc32(line):08x}".encode():
        return None
    fields = json.loads(line)
    if fields.pop("journal") != journal_id:
        return None
    return RatingReport(**{**fields, "bad": tuple(fields["bad"])})
