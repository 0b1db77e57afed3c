"""The writer of a journal on files: turns, one frame per append, durable before it is acknowledged.

`JournalWriter` has the numbered steps of an append.

The next append begins a new segment when the newest one is large enough, when its first event is old enough (so that
retention by age finds segments that are wholly old; `Rolling` decides both), or when its columns are not those of this
Stateside.

Recovery finds the end that another writer left, and sets a torn frame aside. The last writer may have been killed, or
the power lost, at any moment. But every frame is synced before the next one is written, and every segment before the
next one begins. So only the very last frame of a journal can be torn, and no whole frame ever follows a torn one.
At the first damage in the last segment:

- A whole frame follows, anywhere: the damaged frame was durable. JournalCorrupt, with file and byte.
- None follows, but the end mark is beyond the damage: the events were acknowledged. JournalCorrupt, with their number.
- None follows, and the end mark is at or before the damage: the frame is torn. Its bytes, and all after them, are
  copied to `SEGMENT.torn-BYTE` beside the segment, and then cut off. Nothing is destroyed; the copy may be deleted by
  hand.

One case cannot be distinguished. After a power failure the end mark may be an earlier one (see `DurableEnd`); if the
disk then also damaged the very last acknowledged frame, the frame looks torn. Only the log message and the copied
bytes remain.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import ClassVar, Final, Literal, get_args
from uuid import UUID, uuid4

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import EventsGone, JournalAway, JournalCorrupt, PositionInvalid, SettingInvalid
from stateside.core.positions import Position
from stateside.core.storage import CLOSED, write_atomically
from stateside.journal.append_batch import EventPlace
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.lock import WAIT_S_MAX, Turns
from stateside.journal.backends.files.segment import (
    PARTITION,
    DurableEnd,
    Frame,
    Segment,
    segment_path,
    write_again,
    write_all,
)
from stateside.journal.columns import SCHEMA
from stateside.journal.index import Ids, Sequences
from stateside.journal.topic_note import check_none
from stateside.journal.writer import LogWriter, Names, OneLog, Result

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
SEGMENT_S_MAX: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The maximum size and age of a segment."""

    bytes_max: int = SEGMENT_BYTES_MAX
    s_max: float = SEGMENT_S_MAX


class Rolling:
    """Decides when a segment is finished. Reads the segment's first event at opening, never in an append."""

    def __init__(self, directory: Path, limits: SegmentLimits) -> None:
        self._directory, self._limits = directory, limits
        self._began_us = 0

    def opened(self, end: DurableEnd, now_us: int) -> None:
        """Start with the segment that ends here.

        A segment whose first event cannot be read counts as new: readers report the damage.
        """
        self._began_us = now_us
        if end.offset > end.segment_offset:
            with suppress(JournalCorrupt):
                self._began_us = self._first_appended_us(end)

    def is_due(self, end: DurableEnd, now_us: int) -> bool:
        """Whether the segment that ends here is finished."""
        if end.offset == end.segment_offset:  # empty
            return False
        return end.segment_bytes >= self._limits.bytes_max or now_us - self._began_us >= self._limits.s_max * 1_000_000

    def _first_appended_us(self, end: DurableEnd) -> int:
        path = segment_path(self._directory, end.segment_offset)
        opened = Segment(path)
        try:
            frame = next(opened.frames(stop_byte=end.segment_bytes))
            return int(opened.batch(frame).column("appended").cast(pa.int64())[0].as_py())
        finally:
            opened.close()


NODES = "nodes"  # folder of the nodes' logs, if any
_OF_NODES = (NODES, "merged")
log = logging.getLogger(__name__)


def recover(directory: Path, newborn: UUID, known: UUID | None = None) -> tuple[UUID, DurableEnd]:
    """The journal's id and the end where a writer may continue; an empty folder becomes the journal `newborn`.

    With a `known` id: JournalAway if another journal, or none, is there, as when a disk is not mounted.
    """
    offsets = segment.segment_offsets(directory)
    if known is not None and segment.journal_id(directory) != known:
        raise JournalAway(
            "The journal is gone, or another one is in its place",
            where=f"{directory}, where the journal {known} was",
            next_step="Nothing was stored. Bring its disk back; then the same append goes on by itself",
        )
    found = DurableEnd.read(directory)
    marked = found or DurableEnd(0, 0, 0)
    if not offsets:
        _refuse_nodes(directory)
        _refuse_loss(directory, DurableEnd(0, 0, 0), marked)
        return newborn, DurableEnd(0, 0, segment.create(directory, 0, SCHEMA, newborn).stat().st_size)
    journal_id, end = _recover_last(directory, offsets, marked)
    _refuse_loss(directory, end, marked)
    if found is None and end.offset:
        log.warning("journal %s: its end mark was missing; the last whole frame is its end, %d", directory, end.offset)
    return journal_id, end


def has_nodes(directory: Path) -> bool:
    """Whether nodes write the journal of this folder."""
    return any((directory / name).is_dir() for name in _OF_NODES)


def _refuse_nodes(directory: Path) -> None:
    """SettingInvalid for a folder with nodes: their stream would not have the events of the folder's own log."""
    if has_nodes(directory):
        raise SettingInvalid(
            "The events of this folder are written by its nodes",
            where=str(directory),
            next_step="Nothing was stored. Append as one of them, at the node that has the entity: "
            "`stateside append --node NAME`, or NodeWriter(folder, NAME)",
        )


def _recover_last(directory: Path, offsets: list[int], marked: DurableEnd) -> tuple[UUID, DurableEnd]:
    """The id and the end of the last segment, which must belong to the same journal as the one before it."""
    last = Segment(segment.segment_path(directory, offsets[-1]))
    try:
        for neighbour in offsets[-2:-1]:
            Segment(segment.segment_path(directory, neighbour), last.journal_id).close()
        return last.journal_id, _recover_end(last, marked)
    finally:
        last.close()


def _recover_end(last: Segment, marked: DurableEnd) -> DurableEnd:
    """The end of the segment's whole frames, after a torn frame was set aside."""
    end = DurableEnd(last.first_offset, last.first_offset, last.frames_begin)
    try:
        for frame in last.frames():
            end = DurableEnd(frame.next_offset, last.first_offset, frame.end_byte)
    except JournalCorrupt as damage:
        whole = last.whole_frame_from(end.segment_bytes)
        if whole:
            raise _followed(damage, whole) from damage
        if end.offset >= marked.offset:
            _set_aside(last, end.segment_bytes)
    return end


def _set_aside(last: Segment, at_byte: int) -> None:
    """Copy the bytes from here on into a file beside the segment and, once the copy is durable, cut them off."""
    aside = _unused(last.path.with_name(f"{last.path.name}.torn-{at_byte}"))
    write_atomically(aside, last.bytes_from(at_byte))
    size = last.size - at_byte
    log.warning("cut off %d bytes of a torn frame: %s byte %d; they are kept in %s", size, last.path, at_byte, aside)
    os.truncate(last.path, at_byte)


def _unused(path: Path) -> Path:
    """This path or, if it exists, the path with a number appended."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([path], numbered) if not candidate.exists())


def _followed(damage: JournalCorrupt, whole: Frame) -> JournalCorrupt:
    return JournalCorrupt(
        f"{damage.what}, and a whole frame with offset {whole.first_offset} follows at byte {whole.begin_byte}",
        where=damage.where,
        next_step=damage.next_step,
    )


def _refuse_loss(directory: Path, end: DurableEnd, marked: DurableEnd) -> None:
    """JournalCorrupt if the journal ends before its mark."""
    if end.offset >= marked.offset:
        return
    raise JournalCorrupt(
        f"{marked.offset - end.offset} acknowledged events are missing or damaged: "
        f"the last segment's whole frames end at offset {end.offset}, {marked.offset} were durable",
        where=f"{segment.segment_path(directory, end.segment_offset)}, byte {end.segment_bytes}",
        next_step=f"Restore this file from a copy. To accept the loss, delete the file {segment.END_NAME} beside it",
    )


Durability = Literal["synced", "written"]
_OPEN_AGAIN = "Open the journal again; the same append then stores what of the last one is not stored"


class JournalWriter(LogWriter):
    """A writer of a journal on files. Any number of writers, in any processes of one machine, append in turns.

    How an append becomes durable; a crash between any two steps loses no acknowledged event:

    1. The events are checked and packed into one record batch (`append`). A bad event refuses the whole append.
    2. The writer takes its turn (`lock`): from here to step 7 no other writer writes.
    3. If another writer had a turn since, the end is read again. If that writer left the end unsettled, because it
       crashed between steps 4 and 6, this writer recovers as at opening (see the module): a torn frame is set aside, a
       whole one is written and synced again and kept. Then the events get their sequences.
    4. The frame is written after the last one. A crash here leaves a torn frame.
    5. `fdatasync`. From here on the events survive a power failure.
    6. The end mark is moved. From here on readers see the events. The mark never moves back, so an offset that a reader
       saw keeps its event for good.
    7. The turn is released, and the receipt returned: the position just after the events.

    A crash or an error between steps 4 and 7 may keep the events although their producer got no receipt. The journal
    has them once: a producer that repeats the append, with equal events, gets the receipt, and nothing is stored twice
    (`settle`). The exceptions are the method `append_batch`, and appends without `compare_ids`.

    After a failed sync the content of the disk is unknown: this writer then accepts nothing more until it is opened
    again. Other writers continue, as after a crash.

    `durability="written"` leaves step 5 to the operating system, and to the next segment or the close: an acknowledged
    event then survives any end of the process, but not a power failure. After a power failure the last seconds of the
    last segment may be missing or damaged; if the end mark is beyond them the journal reports the loss at opening, and
    opens once the loss is accepted. The default, "synced", survives both.
    """

    schema: ClassVar[pa.Schema] = SCHEMA  # of new segments

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock | None = None,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        segment_s_max: float = SEGMENT_S_MAX,
        wait_s_max: float = WAIT_S_MAX,
        known: UUID | None = None,
        durability: Durability = "synced",
    ) -> None:
        """Recovers from an earlier crash. `wait_s_max`: how long to wait for a turn before JournalLocked.

        `known`: the expected journal id. A writer never switches to another journal, nor creates one if its own is
        away.
        """
        super().__init__(clock or SystemClock())
        if durability not in get_args(Durability):
            raise SettingInvalid(f"durability is {durability!r}", next_step='Give "synced" or "written"')
        check_none(directory)
        self._directory, self._durability = directory, durability
        self._broken: str | None = None
        self.journal_id = known
        self._recovered = self._settled = self._schema_is_ours = False
        self._file = self._mark = CLOSED
        self._end = DurableEnd(0, 0, 0)
        self._journal = FileLog(directory)
        self._rolling = Rolling(directory, SegmentLimits(segment_bytes_max, segment_s_max))
        self._ids, self._sequences = Ids(self._journal), Sequences(self._journal)
        with _writing(directory):
            if known is None:
                directory.mkdir(parents=True, exist_ok=True)
            self._turns = Turns(directory / "lock", wait_s_max)
            try:
                with self._turn():
                    self._ids.forget_beyond(self._end)
                    self._sequences.forget_beyond(self._end)
            except BaseException:
                self._close_all()
                raise

    def close(self) -> None:
        """Release the files. Acknowledged events are durable already; syncs the end mark if possible.

        Closing twice is harmless. A later append raises JournalAway.
        """
        with self._appending:
            if self._file == CLOSED:
                return
            try:
                if self._durability == "written":
                    os.fdatasync(self._file)
                os.fdatasync(self._mark)
            except OSError as error:
                log.warning("the end mark in %s was not synced: %s", self._directory, error.strerror)
            self._close_all()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Steps 2, 3 and 7. After any error in a turn, the next turn reads the end again."""
        with self._appending:
            if self._broken:
                raise JournalAway(self._broken, where=str(self._directory), next_step=_OPEN_AGAIN)
            with self._there(), _writing(self._directory), self._turns.take() as still_ours:
                settled, self._settled = self._settled, False
                if not (still_ours and settled):
                    self._settle()
                yield
                self._settled = True

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Report JournalAway, not damage, if a turn fails because the whole folder was removed meanwhile."""
        try:
            yield
        except (PositionInvalid, JournalCorrupt, EventsGone) as error:
            if not self._recovered or DurableEnd.read(self._directory) is not None:
                raise
            raise JournalAway(
                "The journal is away", where=str(self._directory), next_step="Nothing was stored. Bring it back"
            ) from error

    @property
    def end(self) -> Position:
        return Position.of({PARTITION: self._end.offset})

    def _in_turn(self, act: Callable[[], Result], names: Names) -> Result:
        with self._turn():
            return act()

    def _check_since(self, since: Position) -> None:
        if since[PARTITION] > self._end.offset:
            with self._turn():
                for _ in self._read(PARTITION, since[PARTITION], self._end.offset):  # PositionInvalid
                    pass

    def _store(self, batch: pa.RecordBatch, lasts: Mapping[str, int]) -> OneLog:
        first = self._store_frame(batch)
        self._sequences.note(lasts, self._end)
        return OneLog(PARTITION, first)

    def _store_frame(self, batch: pa.RecordBatch) -> int:
        """Steps 4 to 6, within this writer's turn; returns the offset of the first event."""
        if not self._schema_is_ours or self._rolling.is_due(self._end, self._clock.now_us()):
            self._roll()
        first = self._end.offset
        self._write(segment.pack_frame(self._id, first, batch), batch.num_rows)
        self._publish()
        self._ids.note(batch.column("id").to_pylist(), first, self._end)
        return first

    def _read(self, log: str, start: int, stop: int) -> Iterator[tuple[range, pa.RecordBatch]]:
        with self._there():
            for first, batch in self._journal.batches(start, stop):
                yield range(first, first + batch.num_rows), batch

    def _places(self, ids: Sequence[str]) -> list[EventPlace | None]:
        offsets = self._ids.offsets(ids, self._end)
        return [None if offset is None else EventPlace(PARTITION, offset) for offset in offsets]

    def _lasts(self, entities: Sequence[str]) -> Sequence[int]:
        return self._sequences.lasts(entities, self._end)

    def _settle(self) -> None:
        """Step 3: read the end, and make sure that nothing unsettled follows."""
        marked = DurableEnd.read(self._directory)
        if marked is not None and self._is_settled(marked):
            self._end = marked
            self._open_mark()
        else:
            self._recovered = False
            self._recover(marked or DurableEnd(0, 0, 0))
            self._recovered = True

    def _is_settled(self, marked: DurableEnd) -> bool:
        """Whether the journal ends at this mark, in the segment open here, with nothing begun after it."""
        if not self._recovered or marked.segment_offset != self._end.segment_offset:
            return False
        found = os.fstat(self._file)
        begun = marked.offset > marked.segment_offset and segment.segment_path(self._directory, marked.offset).exists()
        return bool(found.st_nlink) and found.st_size == marked.segment_bytes and not begun

    def _recover(self, marked: DurableEnd) -> None:
        """As at opening: find the end, sync everything before it, and only then publish it to readers."""
        self._id, self._end = recover(self._directory, uuid4(), self.journal_id)
        self.journal_id = self._id
        self._open_segment(self._end)
        write_again(self._file, marked, self._end)
        os.fdatasync(self._file)
        self._open_mark()
        self._publish()
        os.fdatasync(self._mark)

    def _write(self, parts: list[bytes | memoryview], rows: int) -> None:
        """Steps 4 and 5. A failed write is cut off; after a failed sync nothing is trusted any more."""
        size = sum(len(part) for part in parts)
        try:
            write_all(self._file, parts, self._end.segment_bytes)
        except OSError:
            os.ftruncate(self._file, self._end.segment_bytes)
            raise
        if self._durability == "synced":
            self._sync()
        self._end = DurableEnd(self._end.offset + rows, self._end.segment_offset, self._end.segment_bytes + size)

    def _sync(self) -> None:
        with self._breaking("The journal's disk failed to sync"):
            os.fdatasync(self._file)

    def _publish(self) -> None:
        """Step 6. If it fails, the events are stored but not acknowledged: the next turn finds them, once."""
        with self._breaking("The journal's end mark cannot be written"):
            os.pwrite(self._mark, self._end.pack(), 0)

    @contextmanager
    def _breaking(self, what: str) -> Iterator[None]:
        """After a failure in the block the content of the disk is unknown, so this writer accepts nothing more."""
        try:
            yield
        except OSError as error:
            self._broken = f"{what}: {error.strerror}"
            raise JournalAway(self._broken, where=str(self._directory), next_step=_OPEN_AGAIN) from error

    def _roll(self) -> None:
        """Begin a segment. The mark is synced before the segment's first frame, so it never lags by a segment.

        The old segment is synced, too: a writer with durability "written" may have appended to it.
        """
        self._sync()
        path = segment.create(self._directory, self._end.offset, self.schema, self._id)
        end = DurableEnd(self._end.offset, self._end.offset, path.stat().st_size)
        self._open_segment(end)
        self._end = end
        self._publish()
        with self._breaking("The journal's end mark failed to sync"):
            os.fdatasync(self._mark)

    def _open_segment(self, end: DurableEnd) -> None:
        path = segment.segment_path(self._directory, end.segment_offset)
        opened = os.open(path, os.O_RDWR)
        _close(self._file)
        self._file = opened
        self._schema_is_ours = segment.schema(path).equals(self.schema)
        self._rolling.opened(end, self._clock.now_us())

    def _open_mark(self) -> None:
        """Open the end mark, created atomically if missing: a reader may look, or a crash come, at any moment."""
        path = self._directory / segment.END_NAME
        if not path.exists():
            write_atomically(path, self._end.pack())
        opened = os.open(path, os.O_RDWR)
        _close(self._mark)
        self._mark = opened

    def _close_all(self) -> None:
        """Close and forget the file descriptors: the operating system reuses their numbers."""
        self._broken = "This writer is closed"
        handles, self._file, self._mark = (self._file, self._mark), CLOSED, CLOSED
        for handle in handles:
            _close(handle)
        self._turns.close()


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turn the operating system's write errors into JournalAway, with the next step."""
    try:
        yield
    except OSError as error:
        raise JournalAway(
            f"The journal cannot be written: {error.strerror}",
            where=str(directory),
            next_step="Nothing was stored. Make room or mend the disk, then try again",
        ) from error


def _close(handle: int) -> None:
    if handle != CLOSED:
        os.close(handle)
