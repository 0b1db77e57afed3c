"""The headers that every answer carries, whatever it is: what a browser must not do with it.

Nothing is guessed (`nosniff`), stored, framed or told to other sites, and a document may load nothing and run nothing.
An answer that is a page brings a policy of its own, and what never changes says for how long it may be kept. A PDF has
no policy: a browser's own viewer would be bound by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Headers = Sequence[tuple[str, str]]

_POLICY: Final = "content-security-policy"
_CACHE: Final = "cache-control"
_KEPT: Final[Headers] = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
)
_ALWAYS: Final[Headers] = (*_KEPT, (_CACHE, "no-store"))
_STRICT: Final[Headers] = (*_ALWAYS, (_POLICY, "default-src 'none'; frame-ancestors 'none'"))


def security_headers(kind: str, own: Headers = ()) -> Headers:
    """Those of an answer of this type, which has these of its own."""
    brought = {name for name, _ in own}
    if _CACHE in brought:
        return _KEPT
    return _ALWAYS if _POLICY in brought or kind == "application/pdf" else _STRICT
