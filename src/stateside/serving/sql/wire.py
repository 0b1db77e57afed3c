"""What a worker and its SQL process say to each other, on a connection for each question.

    worker    asks        ASKED
    process   answers     BEGUN, then PART any number of times, then END;  or LISTED;  or ERROR
    worker    leaves      the end of its side: nobody waits for the rest

    frame := u8 kind   u32 size   content: bytes of a PART, else a pickled value

Both are the same program of the same user, and the connection is a socket in a folder that only this user can enter.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from stateside.serving.access.principal import Principal
from stateside.serving.rows.floor import Floor
from stateside.serving.sql.sql_query import SqlQuery

_HEAD = struct.Struct(">BI")


class Kind(IntEnum):
    """What a frame is."""

    ASKED, BEGUN, PART, END, LISTED, ERROR = range(6)


@dataclass(frozen=True, slots=True)
class StatementMessage:
    """A statement, and who asks it; without one: which relations there are."""

    holder: Principal
    question: SqlQuery | None = None
    floor: Floor = field(default_factory=Floor)


def socket_in(folder: str) -> str:
    """The socket that a SQL process listens on, in its private folder."""
    return str(Path(folder) / "socket")


async def read(reader: asyncio.StreamReader) -> tuple[Kind, Any]:
    """The next frame; IncompleteReadError if there is none."""
    kind, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    content = await reader.readexactly(size)
    return Kind(kind), content if kind == Kind.PART else pickle.loads(content)


async def send(writer: asyncio.StreamWriter, kind: Kind, value: Any = None) -> None:
    """Send a frame, and wait until the other side takes what was sent."""
    content = value if kind == Kind.PART else pickle.dumps(value)
    writer.write(_HEAD.pack(kind, len(content)) + content)
    await writer.drain()
