"""What a handler gives back: a JSON document, a file in its place, or a stream that goes on for as long as it likes.

Stamps and positions stand in a document as they are. They become text at one place, `as_json`, which knows who asks: so
no handler shows a scoped token how many events the journal has.

The outlet: sends a stream to one client, at the pace at which the client takes it.

The next part is asked for only once the client has taken nearly all of what was sent (`connection`). So nothing piles
up here for who reads slowly; what makes the parts sees that it is not asked, and decides. A client that takes nothing
at all is disconnected (`connections`).

ETags: a client that has an answer already, and says so, is told that nothing changed instead of getting it again.

    ETag: W/"REPLICA-BATCH-HASH"    the hash is over the question, who asks, and the stamp's `edition`

Weak, because the age in the stamp is another one each time: the header `Stateside-Age-Ms` has that of now. An answer's
rows are a function of its batch, so the same ETag means the same rows. Only answers of one stamp have one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import orjson

from stateside.core.positions import Position
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.access.principal import Principal
from stateside.serving.stamp import Stamp
from stateside.serving.web.request import Call


@dataclass(frozen=True, slots=True)
class File:
    """What is not JSON: its type, its bytes, and the name to keep it by."""

    kind: str
    content: bytes
    name: str


@dataclass(frozen=True, slots=True)
class StreamResponse:
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
    stream: StreamResponse | None = None
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


_OVER = "token-invalid: this needs a token that is valid, and has none, or not any more"
log = logging.getLogger(__name__)


async def send(call: Call, response: Response, stream: StreamResponse, is_over: Callable[[], bool]) -> None:
    """Send a response's stream, each part at once, until it ends, the client goes away, or may not have it any more.

    The stream is closed then. One that fails is left without its end: the connection is closed, and the client knows
    that it has not got all of it. Who asks by HEAD is sent the headers alone.
    """
    sent = asyncio.ensure_future(_sent(call, response, stream, is_over))
    left = asyncio.ensure_future(call.left())
    try:
        await asyncio.wait((sent, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        sent.cancel()  # it may wait for a part that does not come, and nobody else knows that the client went
        with suppress(asyncio.CancelledError):
            await sent


async def _sent(call: Call, response: Response, stream: StreamResponse, is_over: Callable[[], bool]) -> None:
    stamped = response.stamps[0].headers() if len(response.stamps) == 1 else ()
    headers = [("content-type", stream.kind), *stamped, *response.headers]
    try:
        await call.begin(response.status, [*headers, *security_headers(stream.kind, response.headers)])
        if call.method != "HEAD":
            await _give_parts(call, stream, is_over)
        await call.give(b"", more=False)
    except Exception:
        log.exception("A stream of %s broke off", stream.kind)
    finally:
        await _close(stream)


async def _give_parts(call: Call, stream: StreamResponse, is_over: Callable[[], bool]) -> None:
    async for part in stream.parts:
        if is_over():
            await call.give(stream.cut(_OVER))
            break
        await call.give(part)


async def _close(stream: StreamResponse) -> None:
    close = getattr(stream.parts, "aclose", None)
    if close is not None:
        await close()


NOT_MODIFIED: Final = 304


def validated(response: Response, call: Call, holder: Principal) -> Response:
    """The response with its ETag; without its content, as 304, if the request names that one."""
    if len(response.stamps) != 1 or response.stream is not None or response.status != 200:
        return response
    tag = etag(response.stamps[0], call.path, call.query_string, holder)
    headers = (*response.headers, ("etag", tag))
    if _names(call.headers.get("if-none-match"), tag):
        return replace(response, document={}, file=None, status=NOT_MODIFIED, headers=headers)
    return replace(response, headers=headers)


def etag(stamp: Stamp, path: str, query: str, holder: Principal) -> str:
    """The ETag of an answer of this stamp to this question, asked by this holder."""
    views = None if holder.views is None else tuple(sorted(holder.views))
    digest = _begun(views, tuple(sorted(holder.where.items())), stamp.edition, stamp.source).copy()
    digest.update(f"{len(path)} {path} {query}".encode())
    return f'W/"{stamp.replica}-{stamp.batch}-{digest.hexdigest()}"'


@lru_cache(maxsize=1_024)
def _begun(views: tuple[str, ...] | None, where: tuple[tuple[str, str], ...], edition: str, source: str) -> blake2b:
    """The hash over all but the question: of a batch that has many answers it is the same."""
    return blake2b(json.dumps([views, where, edition, source]).encode(), digest_size=8)


def _names(header: str | None, tag: str) -> bool:
    """Whether a header If-None-Match names this tag; weak and strong ones are alike there."""
    if header is None:
        return False
    named = [each.strip() for each in header.split(",")]
    return "*" in named or tag.removeprefix("W/") in [each.removeprefix("W/") for each in named]
