"""Appending to a journal on files: one owner, one frame an append, durable before it is acknowledged."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from uuid import uuid4

import pyarrow as pa

from stateside.clock import Clock, SystemClock
from stateside.errors import JournalLocked, OperatingError
from stateside.journal import segment
from stateside.journal.event import SCHEMA, Event, encode
from stateside.journal.recovery import recover
from stateside.journal.segment import DurableEnd
from stateside.positions import Position
from stateside.storage import try_lock, write_atomically

PARTITION = "0"
SEGMENT_BYTES_MAX = 64 * 1024 * 1024

_OPEN_AGAIN = "Open the journal again; then Journal.unstored tells whether the last append must be repeated"

log = logging.getLogger(__name__)


class JournalWriter:
    """The one owner of a journal's folder, by a lock that the operating system takes back when the process dies.

    How an append becomes durable; a crash between any two steps loses no acknowledged event:

    1. The events are checked and packed into one frame. A bad event refuses the whole append.
    2. The frame is written behind the last one. A crash here leaves a torn frame, which the next owner sets aside.
    3. `fdatasync`. From here on the events survive a loss of power.
    4. The end mark is moved. From here on readers see the events.
    5. The receipt is returned: the position just after the events.

    A crash or an error between steps 2 and 5 may keep the events although their producer got no receipt. They are in
    the journal once; but nothing here compares ids, so a producer that appends them again has them twice. It asks
    first, by reading from its last receipt to the end:

        with JournalWriter(folder) as writer:  # opening settles what the last owner left
            writer.append(Journal(folder).unstored(events, since=last_receipt))
    """

    def __init__(
        self, directory: Path, *, clock: Clock | None = None, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self._directory = directory
        self._clock = clock or SystemClock()
        self._segment_bytes_max = segment_bytes_max
        self._broken: str | None = None
        self._appending = threading.Lock()
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(directory)
            try:
                self._id, self._end = recover(directory, newborn=uuid4())
                self._file = self._open_segment(self._end)
                os.fdatasync(self._file)  # its last frame may be one that a crash left written but not synced
                self._mark = _open_mark(directory, self._end)
                self._publish()
                os.fdatasync(self._mark)
            except BaseException:
                os.close(self._lock)
                raise

    @property
    def end(self) -> Position:
        """The position after the last durable event."""
        return Position.of({PARTITION: self._end.offset})

    def append(self, events: Sequence[Event]) -> Position:
        """Store the events, all or none, and return their receipt once they are durable."""
        return self.append_batch(encode(events, self._clock.now_us())) if events else self.end

    def append_batch(self, batch: pa.RecordBatch) -> Position:
        """Store events that already stand in a record batch of the journal's schema."""
        assert batch.schema.equals(SCHEMA), "a batch must come from event.encode or have its schema"
        with self._appending:
            if self._broken:
                raise OperatingError(self._broken, where=str(self._directory), next_step=_OPEN_AGAIN)
            if self._end.segment_bytes >= self._segment_bytes_max:
                self._roll()
            self._write(segment.pack_frame(self._id, self._end.offset, batch), batch.num_rows)
            self._publish()
            return self.end

    def close(self) -> None:
        """Give the journal back. Everything acknowledged is already durable; the end mark becomes so, if it can."""
        try:
            os.fdatasync(self._mark)
        except OSError as error:
            log.warning("the end mark in %s was not synced: %s", self._directory, error.strerror)
        for handle in (self._file, self._mark, self._lock):
            os.close(handle)

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, parts: list[bytes | memoryview], rows: int) -> None:
        """Steps 2 and 3. What a failed write left is cut off; after a failed sync nothing is trusted any more."""
        size = sum(len(part) for part in parts)
        with _writing(self._directory):
            try:
                _write_all(self._file, parts, self._end.segment_bytes)
            except OSError:
                os.ftruncate(self._file, self._end.segment_bytes)
                raise
        with self._breaking("The journal's disk failed to sync"):
            os.fdatasync(self._file)
        self._end = DurableEnd(self._end.offset + rows, self._end.segment_offset, self._end.segment_bytes + size)

    def _publish(self) -> None:
        """Step 4. If it fails, the events are stored but not acknowledged: the next owner finds them, once."""
        with self._breaking("The journal's end mark cannot be written"):
            os.pwrite(self._mark, self._end.pack(), 0)

    @contextmanager
    def _breaking(self, what: str) -> Iterator[None]:
        """After a failure here it is not known what the disk holds, so this writer takes nothing more."""
        try:
            yield
        except OSError as error:
            self._broken = f"{what}: {error.strerror}"
            raise OperatingError(self._broken, where=str(self._directory), next_step=_OPEN_AGAIN) from error

    def _roll(self) -> None:
        """Begin a segment. The mark is synced before its first frame comes: so it never stays a segment behind."""
        with _writing(self._directory):
            path = segment.create(self._directory, self._end.offset, SCHEMA, self._id)
            end = DurableEnd(self._end.offset, self._end.offset, path.stat().st_size)
            file = self._open_segment(end)
        os.close(self._file)
        self._file, self._end = file, end
        self._publish()
        with self._breaking("The journal's end mark failed to sync"):
            os.fdatasync(self._mark)

    def _open_segment(self, end: DurableEnd) -> int:
        return os.open(segment.segment_path(self._directory, end.segment_offset), os.O_WRONLY)


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turns the operating system's refusal to write into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise OperatingError(
            f"The journal cannot be written: {error.strerror}",
            where=str(directory),
            next_step="Nothing was stored. Make room or mend the disk, then try again",
        ) from error


def _lock(directory: Path) -> int:
    handle = try_lock(directory / "lock")
    if handle is None:
        raise JournalLocked(
            "Another writer owns this journal", where=str(directory), next_step="Stop it first, or append through it"
        )
    return handle


def _open_mark(directory: Path, end: DurableEnd) -> int:
    """The end mark's handle. The file is born whole: a reader may look, or a crash come, at any moment."""
    path = directory / segment.END_NAME
    if not path.exists():
        write_atomically(path, end.pack())
    return os.open(path, os.O_RDWR)


def _write_all(handle: int, parts: list[bytes | memoryview], at_byte: int) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            written = os.pwrite(handle, view, at_byte)
            view, at_byte = view[written:], at_byte + written
