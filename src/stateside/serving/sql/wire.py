"""The protocol between a worker and its SQL process: one connection per message.

    worker    asks        ASKED
    process   answers     BEGUN, then PART any number of times, then END;  or LISTED;  or ERROR
    worker    leaves      closes its side: the rest is not wanted

    frame := u8 kind   u32 size   content: bytes of a PART, else a pickled value

Pickle is safe here: both ends are the same program of the same user, and the socket is in a folder that only this user
can enter.
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
    ASKED, BEGUN, PART, END, LISTED, ERROR = range(6)


@dataclass(frozen=True, slots=True)
class StatementMessage:
    """A statement and its principal; without a statement, a request for the list of relations."""

    holder: Principal
    question: SqlQuery | None = None
    floor: Floor = field(default_factory=Floor)


def socket_in(folder: str) -> str:
    """The socket of a SQL process, in its private folder."""
    return str(Path(folder) / "socket")


async def read(reader: asyncio.StreamReader) -> tuple[Kind, Any]:
    """The next frame; IncompleteReadError if there is none."""
    kind, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    content = await reader.readexactly(size)
    return Kind(kind), content if kind == Kind.PART else pickle.loads(content)


async def send(writer: asyncio.StreamWriter, kind: Kind, value: Any = None) -> None:
    """Send a frame, and wait while the other side is slow to read."""
    content = value if kind == Kind.PART else pickle.dumps(value)
    writer.write(_HEAD.pack(kind, len(content)) + content)
    await writer.drain()
