"""Journals as the first Stateside wrote them, before there were sequences: format version 1."""

import struct
import zlib
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa

from stateside.journal import Event
from stateside.journal.backends.files.segment import DurableEnd, segment_path
from stateside.journal.columns import GIVEN, encode


def write_old(folder: Path, appends: list[list[Event]], version: int = 1) -> None:
    """A journal as the first Stateside wrote it, byte by byte; closed properly."""
    journal_id, message = uuid4(), GIVEN.serialize().to_pybytes()
    message += b"\0" * (-len(message) % 8)
    head = struct.pack("<8sII16s", b"STATEJRN", version, len(message), journal_id.bytes)
    content = head + struct.pack("<I", zlib.crc32(head + message)) + message
    offset = 0
    for events in appends:
        content += _frame(journal_id, offset, encode(events, 5).select(GIVEN.names))
        offset += len(events)
    folder.mkdir(exist_ok=True)
    segment_path(folder, 0).write_bytes(content)
    (folder / "end").write_bytes(DurableEnd(offset, 0, len(content)).pack())


def _frame(journal_id: UUID, offset: int, batch: pa.RecordBatch) -> bytes:
    body: bytes = batch.serialize().to_pybytes()
    fields = struct.pack("<4sIIQ", b"FRAM", batch.num_rows, len(body), offset)
    return fields + struct.pack("<I", zlib.crc32(journal_id.bytes + fields + body)) + body
