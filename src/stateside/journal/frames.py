"""Frames: the events of one segment at any offsets, many small frames as one record batch.

A segment has no index of its own. Where its frames begin is found by their heads, once, and kept while the segment is
open here: two numbers a frame, at most some 1.5 MB for a segment of 64 MiB. Of a finished segment it is kept in a file
as well (`frame_index`). Files are read, not mapped: one that is cut short meanwhile gives an error and does not end the
process.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.journal import frame_index
from stateside.journal.columns import conformed
from stateside.journal.joining import Unusual, joined
from stateside.journal.segment import FRAME_HEAD_BYTES, Segment, corrupt, frame_head, frame_is_whole

GROUP_BYTES = 2 << 20  # frames that are read together, or one frame
JOINED_BYTES_MAX = 4 << 10  # of frames that are smaller than that, on the average, Arrow is the slower reader
_WINDOW_BYTES = 16 << 10

Offsets = npt.NDArray[np.int64]
Shown = Callable[[pa.RecordBatch], pa.RecordBatch]


class Frames:
    """A segment, opened for reading at any offset. Any number of threads may read."""

    def __init__(self, path: Path, shown: Shown = conformed) -> None:
        """JournalCorrupt if its header is damaged. `shown`: how a stored batch is shown to readers."""
        opened = Segment(path)
        opened.close()
        self.path, self.journal_id = path, opened.journal_id
        self._schema, self._shown = opened.schema, shown
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        self._file = _file(os.fstat(self._handle))
        self._firsts = array("q", [opened.first_offset])  # of each frame, and of the one that comes next
        self._begins = array("q", [opened.frames_begin])
        self._extending = threading.Lock()

    def is_in_place(self) -> bool:
        """Whether the file is the one that is found under its name, and has all that was seen of it."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return _file(found) == self._file and found.st_size >= self._begins[-1]

    def extend(self, stop_byte: int | None = None) -> int:
        """Know all frames up to a byte, or all of a finished segment; the offset behind the last one."""
        with self._extending:
            if stop_byte is not None:
                self._find(stop_byte)
            elif (size := os.fstat(self._handle).st_size) > self._begins[-1]:
                self._find_all(size)
            return self._firsts[-1]

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, all known here, with the offset of each batch's first one."""
        firsts, begins = np.array(self._firsts), np.array(self._begins)
        frame, last = (int(np.searchsorted(firsts, at, "right")) - 1 for at in (start, stop - 1))
        while frame <= last:
            behind = int(np.searchsorted(begins, begins[frame] + GROUP_BYTES, "right")) - 1
            behind = min(max(behind, frame + 1), last + 1)
            low, high = max(start, int(firsts[frame])), min(stop, int(firsts[behind]))
            batch = self._batch(self._bodies(frame, behind))
            yield low, batch.slice(low - int(firsts[frame]), high - low)
            frame = behind

    def gather(self, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events at these offsets, which ascend and are all known here: some of them at a time, and where."""
        firsts, begins = np.array(self._firsts), np.array(self._begins)
        frame_of = np.searchsorted(firsts, offsets, "right") - 1
        numbers, frame_of = np.unique(frame_of, return_inverse=True)
        behind_bytes = np.cumsum(begins[numbers + 1] - begins[numbers])
        at = 0
        while at < len(numbers):
            read = int(behind_bytes[at - 1]) if at else 0
            behind = max(at + 1, int(np.searchsorted(behind_bytes, read + GROUP_BYTES, "right")))
            low, high = np.searchsorted(frame_of, [at, behind])
            yield self._taken(numbers[at:behind], offsets[low:high], frame_of[low:high] - at, firsts)
            at = behind

    def _taken(
        self, numbers: Offsets, offsets: Offsets, frame_of: Offsets, firsts: Offsets
    ) -> tuple[Offsets, pa.RecordBatch]:
        """Of the frames with these numbers the events at these offsets, each in the so-manieth of the frames."""
        bodies = [body for low, high in _adjacent(numbers) for body in self._bodies(low, high)]
        rows = firsts[numbers + 1] - firsts[numbers]
        places = np.cumsum(rows) - rows
        wanted = places[frame_of] + offsets - firsts[numbers][frame_of]
        batch = self._batch(bodies)
        return offsets, batch if len(wanted) == batch.num_rows else batch.take(pa.array(wanted))

    def _find_all(self, size: int) -> None:
        """Know the frames of a finished segment: as they were kept, or else keep them."""
        kept = frame_index.load(self.path, self.journal_id, size)
        if kept is not None:
            self._firsts, self._begins = kept
            return
        self._find(size)
        frame_index.keep(self.path, self.journal_id, size, self._firsts, self._begins)

    def _find(self, stop_byte: int) -> None:
        """Go from head to head."""
        window, window_at = b"", 0
        while (at := self._begins[-1]) < stop_byte:
            if not window_at <= at <= window_at + len(window) - FRAME_HEAD_BYTES:
                window, window_at = os.pread(self._handle, _WINDOW_BYTES, at), at
            self._add(window, at - window_at, stop_byte)

    def _add(self, window: bytes, at: int, stop_byte: int) -> None:
        """Take note of the frame whose head stands there in the window."""
        at_byte = self._begins[-1]
        if at + FRAME_HEAD_BYTES > len(window):
            raise corrupt(self.path, at_byte, "a frame's header is cut short")
        head = frame_head(window, at)
        if head is None:
            raise corrupt(self.path, at_byte, "there is no frame where one must begin")
        rows, size, first_offset, _ = head
        if first_offset != self._firsts[-1]:
            raise corrupt(
                self.path, at_byte, f"a frame begins at offset {first_offset}, {self._firsts[-1]} was expected"
            )
        if at_byte + FRAME_HEAD_BYTES + size > stop_byte:
            raise corrupt(self.path, at_byte, f"a frame of {size} bytes is cut short")
        self._begins.append(at_byte + FRAME_HEAD_BYTES + size)
        self._firsts.append(first_offset + rows)

    def _bodies(self, frame: int, behind: int) -> list[memoryview]:
        """The checked bodies of frames that lie side by side; read at once."""
        begin = self._begins[frame]
        content = memoryview(_read(self._handle, begin, self._begins[behind] - begin))
        bodies, seed = [], zlib.crc32(self.journal_id.bytes)
        for low, high in pairwise(at - begin for at in self._begins[frame : behind + 1]):
            if len(content) < high:
                raise corrupt(self.path, begin + low, "a frame is cut short")
            if not frame_is_whole(seed, content, low, high):
                raise corrupt(self.path, begin + low, "a frame's checksum does not match")
            bodies.append(content[low + FRAME_HEAD_BYTES : high])
        return bodies

    def _batch(self, bodies: list[memoryview]) -> pa.RecordBatch:
        """The frames' events as one batch. Many are read by Arrow as a stream, which is faster, or joined if small."""
        if len(bodies) == 1:
            return self._shown(pa.ipc.read_record_batch(pa.py_buffer(bodies[0]), self._schema))
        if sum(map(len, bodies)) < JOINED_BYTES_MAX * len(bodies):
            with suppress(Unusual):
                return self._shown(joined(bodies, self._schema))
        stream = pa.py_buffer(b"".join([self._schema.serialize().to_pybytes(), *bodies]))
        table = pa.ipc.open_stream(stream).read_all().combine_chunks()
        return self._shown(table.to_batches()[0])


def _read(handle: int, at_byte: int, size: int) -> bytes:
    """So many bytes from there; fewer where the file ends."""
    content = os.pread(handle, size, at_byte)
    while len(content) < size and (more := os.pread(handle, size - len(content), at_byte + len(content))):
        content += more
    return content


def _adjacent(numbers: Offsets) -> Iterator[tuple[int, int]]:
    """The runs of numbers without a gap, as ranges."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(numbers, breaks):
        yield int(run[0]), int(run[-1]) + 1


def _file(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
