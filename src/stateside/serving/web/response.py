"""What a handler gives back: a JSON document, a file in its place, or a stream that goes on for as long as it likes.

Stamps and positions stand in a document as they are. They become text at one place, `as_json`, which knows who asks: so
no handler shows a scoped token how many events the journal has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from stateside.positions import Position
from stateside.serving.access.position_codec import PositionCodec
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

    def shown(self, positions: PositionCodec) -> Response:
        """The response with its stamps as a holder is shown them."""
        return replace(self, stamps=[positions.stamp(stamp) for stamp in self.stamps])


def stamped(stamp: Stamp, document: Mapping[str, Any]) -> Response:
    """A document that is an answer of this stamp, which stands first in it."""
    return Response({"stamp": stamp, **document}, [stamp])


def as_json(document: Mapping[str, Any], positions: PositionCodec) -> bytes:
    """A document as it is sent: a stamp or a position in it is written here, as the holder is shown it."""

    def default(value: object) -> Any:
        match value:
            case Stamp():
                return positions.stamp(value).as_dict()
            case Position():
                return str(positions.encode(value))
        raise TypeError(f"{type(value).__name__} stands in a document")

    return orjson.dumps(document, default, orjson.OPT_PASSTHROUGH_DATACLASS)
