"""ETags: a client that has an answer already, and says so, is told that nothing changed instead of getting it again.

    ETag: W/"REPLICA-BATCH-HASH"    the hash is over the question, who asks, and the stamp's `edition`

Weak, because the age in the stamp is another one each time: the header `Stateside-Age-Ms` has that of now. An answer's
rows are a function of its batch, so the same ETag means the same rows. Only answers of one stamp have one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from stateside.serving.access.holder import Holder
from stateside.serving.stamp import Stamp
from stateside.serving.web.call import Call
from stateside.serving.web.response import Response

NOT_MODIFIED: Final = 304


def validated(response: Response, call: Call, holder: Holder) -> Response:
    """The response with its ETag; without its content, as 304, if the request names that one."""
    if len(response.stamps) != 1 or response.stream is not None or response.status != 200:
        return response
    tag = etag(response.stamps[0], call.path, call.query_string, holder)
    headers = (*response.headers, ("etag", tag))
    if _names(call.headers.get("if-none-match"), tag):
        return replace(response, document={}, file=None, status=NOT_MODIFIED, headers=headers)
    return replace(response, headers=headers)


def etag(stamp: Stamp, path: str, query: str, holder: Holder) -> str:
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
