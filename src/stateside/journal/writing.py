"""Writing bytes of a segment in place, at the byte where they belong."""

from __future__ import annotations

import os

from stateside.journal.end_mark import DurableEnd


def write_again(handle: int, marked: DurableEnd, end: DurableEnd) -> None:
    """Write what lies between mark and end once more, as it is, so that the sync that follows means something.

    A crash left it written but not synced, or its sync failed: then the system takes it for stored, and would not
    write it again by itself.
    """
    at_byte = marked.segment_bytes if marked.segment_offset == end.segment_offset else 0
    if at_byte < end.segment_bytes:
        write_all(handle, [os.pread(handle, end.segment_bytes - at_byte, at_byte)], at_byte)


def write_all(handle: int, parts: list[bytes | memoryview], at_byte: int) -> None:
    """Write all of these, one behind the other, from this byte on."""
    for part in parts:
        view = memoryview(part)
        while view:
            written = os.pwrite(handle, view, at_byte)
            view, at_byte = view[written:], at_byte + written
