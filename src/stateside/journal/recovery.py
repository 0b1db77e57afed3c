"""What a writer does about the end that another one left: find it, and set a torn frame aside.

The last writer may have been killed, or the power lost, at any moment. But it synced every frame before it wrote the
next one, and every segment before it began the next one. So only the very last frame of a journal can be torn, and no
whole frame ever follows a torn one. At the first damage in the last segment that decides:

- A whole frame follows, anywhere: the damaged frame was durable. JournalCorrupt, with file and byte.
- None follows, but the end mark says that there were events: they were acknowledged. JournalCorrupt, with their number.
- None follows, and the end mark does not reach so far: it is torn. Its bytes, and all behind them, are copied to
  `SEGMENT.torn-BYTE` beside the segment, and then cut off. Nothing is destroyed; who needs no such file deletes it.

One thing cannot be told. After a loss of power the end mark may be an earlier one (see `DurableEnd`); if the disk then
also damaged the last acknowledged frame of all, it looks like a torn one. The log and the copied bytes are what is
left of it.
"""

from __future__ import annotations

import logging
import os
from itertools import chain, count
from pathlib import Path
from uuid import UUID

from stateside.errors import JournalAway, JournalCorrupt, SettingInvalid
from stateside.journal import segment
from stateside.journal.columns import SCHEMA
from stateside.journal.segment import DurableEnd, Frame, Segment
from stateside.storage import write_atomically

NODES = "nodes"  # where the logs of nodes lie, if there are any
_OF_NODES = (NODES, "merged")

log = logging.getLogger(__name__)


def recover(directory: Path, newborn: UUID, known: UUID | None = None) -> tuple[UUID, DurableEnd]:
    """The journal's id and its end, behind which a writer may go on; an empty folder becomes the journal `newborn`.

    Where it is `known` which journal is here, JournalAway if it is another one, or none: that of a disk that is away.
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


def _refuse_nodes(directory: Path) -> None:
    """SettingInvalid where nodes write: a log of the folder's own would not be in their stream."""
    if any((directory / name).is_dir() for name in _OF_NODES):
        raise SettingInvalid(
            "The events of this folder are written by its nodes",
            where=str(directory),
            next_step="Nothing was stored. Append as one of them, at the node that has the entity: "
            "`stateside append --node NAME`, or NodeWriter(folder, NAME)",
        )


def _recover_last(directory: Path, offsets: list[int], marked: DurableEnd) -> tuple[UUID, DurableEnd]:
    """The id and the end of the last segment, which must be of the same journal as the one before it."""
    last = Segment(segment.segment_path(directory, offsets[-1]))
    try:
        for neighbour in offsets[-2:-1]:
            Segment(segment.segment_path(directory, neighbour), last.journal_id).close()
        return last.journal_id, _recover_end(last, marked)
    finally:
        last.close()


def _recover_end(last: Segment, marked: DurableEnd) -> DurableEnd:
    """Where the segment's whole frames end, after what is torn behind them was set aside."""
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
    """Copy what lies from this byte on into a file beside the segment and, when that is durable, cut it off."""
    aside = _unused(last.path.with_name(f"{last.path.name}.torn-{at_byte}"))
    write_atomically(aside, last.bytes_from(at_byte))
    size = last.size - at_byte
    log.warning("cut off %d bytes of a torn frame: %s byte %d; they are kept in %s", size, last.path, at_byte, aside)
    os.truncate(last.path, at_byte)


def _unused(path: Path) -> Path:
    """This path or, if earlier bytes lie there already, one with a number behind it."""
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
