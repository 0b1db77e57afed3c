"""Responses of handlers (a JSON document, a file or a stream), their sending, and their ETags.

Documents hold stamps and positions as objects. `as_json` alone turns them into text, for the given principal: so no
handler shows a scoped token how many events the journal has.

A stream, or a large document, is sent at the client's pace: the next part only once the client has read nearly all of
the earlier ones (`connection`). So nothing piles up for a slow reader; the producer of a stream's parts sees the back
pressure, and decides. A client that reads nothing at all is disconnected (`connection`).

A client that names the ETag of its cached answer gets 304 if nothing changed:

    ETag: W/"REPLICA-BATCH-HASH"    the hash is over the request, the principal's scope, and the stamp's `edition`

The ETag is weak, because the age in the stamp differs each time: the header `Stateside-Age-Ms` has the current age. An
answer's rows are a function of its batch, so equal ETags mean equal rows. Only answers with exactly one stamp have an
ETag.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import orjson
from starlette.responses import Response as HttpResponse
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stateside.core.positions import Position
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.access.principal import Principal
from stateside.serving.stamp import Stamp
from stateside.serving.web.request import Call

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
NOT_MODIFIED: Final = 304
PART_BYTES: Final = 64 * 1024  # of a body, sent at once
Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class File:
    """An answer that is not JSON: content type, bytes, and file name."""

    kind: str
    content: bytes
    name: str


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """A stream of bytes with its content type. The iterator is closed when the client leaves.

    `cut` makes the last bytes of a stream broken off for a reason, so that no client takes the stream for complete.
    """

    kind: str
    parts: AsyncIterator[bytes]
    cut: Callable[[str], bytes] = lambda why: b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, and the stamps of its sources."""

    document: Mapping[str, Any]
    stamps: Sequence[Stamp] = ()
    status: int = 200
    file: File | None = None
    stream: StreamResponse | None = None
    headers: Sequence[Header] = field(default=())

    @property
    def kind(self) -> str:
        """The content type."""
        other = self.file or self.stream
        return other.kind if other is not None else PROBLEM if self.status >= 400 else JSON

    def shown(self, positions: PositionCodec) -> Response:
        """The response with its stamps encoded for the principal."""
        if not (self.stamps and positions.opaque):
            return self
        return replace(self, stamps=[positions.stamp(stamp) for stamp in self.stamps])


def stamped(stamp: Stamp, document: Mapping[str, Any]) -> Response:
    """An answer with this stamp, which comes first in the document."""
    return Response({"stamp": stamp, **document}, [stamp])


def as_json(document: Mapping[str, Any], positions: PositionCodec) -> bytes:
    """The document as JSON, with stamps and positions encoded for the principal."""

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


class _Streaming(StreamingResponse):
    """Sends a stream until the stream ends, the client leaves, or the client's access ends; then closes the stream.

    A failed stream lacks its end and the connection is closed, so the client notices the missing part. HEAD gets the
    headers alone.
    """

    def __init__(self, stream: StreamResponse, response: Response, headers: Mapping[str, str], call: Call) -> None:
        self._stream, self._call = stream, call
        super().__init__(self._parts(), response.status, headers)

    async def _parts(self) -> AsyncIterator[bytes]:
        if self._call.method == "HEAD":
            return
        async for part in self._stream.parts:
            if self._call.visit.is_over():
                yield self._stream.cut(_OVER)
                return
            yield part
            await asyncio.sleep(0)  # a stream that never waits must not starve other requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            log.exception("A stream of %s broke off", self._stream.kind)
        finally:
            close = getattr(self._stream.parts, "aclose", None)
            if close is not None:
                await close()


class _Whole(HttpResponse):
    """Sends a body in parts: written at once, uvloop's TLS transport would not count the unsent rest."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        size = len(self.body)
        for at in range(0, max(size, 1), PART_BYTES):
            end = at + PART_BYTES
            await send({"type": "http.response.body", "body": self.body[at:end], "more_body": end < size})


def as_http(response: Response, call: Call) -> HttpResponse:
    """The response with the common headers, for sending."""
    stamps = response.stamps[0].headers() if len(response.stamps) == 1 else ()
    own = [*stamps, *response.headers, call.trace.header()]
    if response.status == NOT_MODIFIED:
        return HttpResponse(b"", NOT_MODIFIED, dict([*own, *security_headers(JSON, response.headers)]))
    if response.file is not None:
        own.append(("content-disposition", f'inline; filename="{response.file.name}"'))
    headers = dict([("content-type", response.kind), *own, *security_headers(response.kind, response.headers)])
    if response.stream is not None:
        return _Streaming(response.stream, response, headers, call)
    body = as_json(response.document, call.visit.positions) if response.file is None else response.file.content
    return _Whole(body, response.status, headers)


def validated(response: Response, call: Call, holder: Principal) -> Response:
    """The response with its ETag; 304 without content if the request names the ETag."""
    if len(response.stamps) != 1 or response.stream is not None or response.status != 200:
        return response
    tag = etag(response.stamps[0], call.path, call.query_string, holder)
    headers = (*response.headers, ("etag", tag))
    if _names(call.headers.get("if-none-match"), tag):
        return replace(response, document={}, file=None, status=NOT_MODIFIED, headers=headers)
    return replace(response, headers=headers)


def etag(stamp: Stamp, path: str, query: str, holder: Principal) -> str:
    """The ETag of an answer with this stamp, by request and principal."""
    views = None if holder.views is None else tuple(sorted(holder.views))
    digest = _begun(views, tuple(sorted(holder.where.items())), stamp.edition, stamp.source).copy()
    digest.update(f"{len(path)} {path} {query}".encode())
    return f'W/"{stamp.replica}-{stamp.batch}-{digest.hexdigest()}"'


@lru_cache(maxsize=1_024)
def _begun(views: tuple[str, ...] | None, where: tuple[tuple[str, str], ...], edition: str, source: str) -> blake2b:
    """The hash over all but the request: the same for many answers of a batch."""
    return blake2b(json.dumps([views, where, edition, source]).encode(), digest_size=8)


def _names(header: str | None, tag: str) -> bool:
    """Whether If-None-Match names this tag; weak and strong tags compare as equal."""
    if header is None:
        return False
    named = [each.strip() for each in header.split(",")]
    return "*" in named or tag.removeprefix("W/") in [each.removeprefix("W/") for each in named]
