"""Cursors: where the next page of a question begins. Whoever has one gets no row that they could not ask for, because
every page is answered within the scope of who asks. A scoped token gets it encrypted (`access.position_codec`), as the
last key that a page looked at may be another's.

    cursor := base64url without padding of: 6 bytes of blake2b over the rest, JSON
    JSON   := {"v": 1, "view": …, "batch": …, "fingerprint": …, "after": key in hex, "question": hash}

A question's pages are all of one batch: the one that the first page was of, out of the replica's history. The
fingerprint says of which run; `after` is the last key that the page looked at.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final

from stateside.errors import CursorInvalid

VERSION: Final = 1
_CHECK_BYTES = 6


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind which key, of which batch, the page of this question begins."""

    view: str
    batch: int
    fingerprint: str
    after: bytes
    question: str

    def __str__(self) -> str:
        document = {"v": VERSION, **asdict(self), "after": self.after.hex()}
        content = json.dumps(document, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_check(content) + content).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, view: str, question: str) -> Cursor:
        """The cursor in a text; CursorInvalid if it is damaged, or of another view or question."""
        try:
            cursor = cls._parse(text)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _invalid("This is no cursor, or a damaged one") from None
        if (cursor.view, cursor.question) != (view, question):
            raise _invalid("This cursor belongs to another view or another question")
        return cursor

    @classmethod
    def _parse(cls, text: str) -> Cursor:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        check, content = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        document: dict[str, Any] = json.loads(content)
        cursor = cls(
            view=str(document["view"]),
            batch=int(document["batch"]),
            fingerprint=str(document["fingerprint"]),
            after=bytes.fromhex(document["after"]),
            question=str(document["question"]),
        )
        if (
            cursor.batch < 0 or check != _check(content) or str(cursor) != text
        ):  # so all of it is as `str` would write it
            raise ValueError(text)
        return cursor


def _check(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECK_BYTES).digest()


def _invalid(what: str) -> CursorInvalid:
    return CursorInvalid(
        what, next_step="Give it as the page before had it, with the same question; or begin anew, without it"
    )
