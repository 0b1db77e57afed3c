"""What a handler gives back: a JSON document, a file in its place, or a stream that goes on for as long as it likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stateside.serving.stamp import Stamp


@dataclass(frozen=True, slots=True)
class File:
    """What is not JSON: its type, its bytes, and the name to keep it by."""

    kind: str
    content: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes that come one after the other, of this type. The iterator is closed when the client goes away.

    `cut` makes what is sent last where the stream is broken off, for this reason: so that nobody takes it for whole.
    """

    kind: str
    parts: AsyncIterator[bytes]
    cut: Callable[[str], bytes] = lambda why: b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, and the stamps of what it was made from."""

    document: Mapping[str, Any]
    stamps: Sequence[Stamp] = ()
    status: int = 200
    file: File | None = None
    stream: Stream | None = None
    headers: Sequence[tuple[str, str]] = field(default=())


def stamped(stamp: Stamp, document: Mapping[str, Any]) -> Response:
    """A document that is an answer of this stamp, which stands first in it."""
    return Response({"stamp": stamp.as_dict(), **document}, [stamp])
