"""The file format: an independent parser, written from the drawing in `segment`, reads what the writer wrote."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.files.segment import DurableEnd, segment_offsets
from stateside.journal.columns import SCHEMA

MakeEvents = Callable[..., list[Event]]


def parse(content: bytes) -> tuple[UUID, pa.Schema, list[tuple[int, pa.RecordBatch]]]:
    """The journal's id, the schema, and each frame's first offset and batch."""
    assert content[:8] == b"STATEJRN"
    version, schema_size, journal_id, header_crc = struct.unpack_from("<II16sI", content, 8)
    message = content[36 : 36 + schema_size]
    assert (version, schema_size % 8, header_crc) == (2, 0, zlib.crc32(content[:32] + message))
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    frames = []
    at_byte = 36 + schema_size
    while at_byte < len(content):
        fields = content[at_byte : at_byte + 20]
        magic, rows, size, first_offset = struct.unpack("<4sIIQ", fields)
        (crc,) = struct.unpack_from("<I", content, at_byte + 20)
        body = content[at_byte + 24 : at_byte + 24 + size]
        assert (magic, crc) == (b"FRAM", zlib.crc32(journal_id + fields + body))
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        assert batch.num_rows == rows
        frames.append((first_offset, batch))
        at_byte += 24 + size
    return UUID(bytes=journal_id), schema, frames


def test_a_segment_looks_as_it_is_drawn(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
        writer.append(make_events(3, first=2))
    journal_id, schema, frames = parse((tmp_path / "00000000000000000000.segment").read_bytes())
    assert journal_id.version == 4
    assert schema.equals(SCHEMA)
    assert [(first, batch.num_rows) for first, batch in frames] == [(0, 2), (2, 3)]
    assert frames[1][1].column("id").to_pylist() == ["e2", "e3", "e4"]


def test_every_segment_is_named_after_its_first_offset(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as writer:
        for count in (2, 1, 3):
            writer.append(make_events(count, writer.end["0"]))
    assert segment_offsets(tmp_path) == [0, 2, 3]
    assert [parse(path.read_bytes())[2][0][0] for path in sorted(tmp_path.glob("*.segment"))] == [0, 2, 3]


def test_every_segment_of_a_journal_carries_the_same_id(tmp_path: Path, make_events: MakeEvents) -> None:
    for count in (2, 1, 3):
        with JournalWriter(tmp_path, segment_bytes_max=1) as writer:
            writer.append(make_events(count, writer.end["0"]))
    ids = [str(parse(path.read_bytes())[0]) for path in tmp_path.glob("*.segment")]
    assert ids == [FileLog(tmp_path).id()] * 3


def test_the_end_mark_looks_as_it_is_told(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
    content = (tmp_path / "end").read_bytes()
    size = (tmp_path / "00000000000000000000.segment").stat().st_size
    fields = struct.pack("<8sQQQ", b"STATEEND", 2, 0, size)
    assert content == fields + struct.pack("<I", zlib.crc32(fields))
    assert DurableEnd.read(tmp_path) == DurableEnd(2, 0, size)


def test_there_is_no_end_mark_where_there_is_no_journal(tmp_path: Path) -> None:
    assert DurableEnd.read(tmp_path) is None
    assert DurableEnd.read(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "leftover", [".00000000000000000005.segment.x1y2z3", "00000000000000000000.segment.torn-9", "notes.txt", "lock"]
)
def test_other_files_in_the_folder_are_no_segments(tmp_path: Path, leftover: str) -> None:
    JournalWriter(tmp_path).close()
    (tmp_path / leftover).touch()
    assert segment_offsets(tmp_path) == [0]
