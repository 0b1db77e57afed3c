"""The head of a plain request: what most clients send, line by line the same at every request of a connection.

Whatever is not plain is left to the parser that knows all of HTTP: a header that is not among those below, or twice, or
folded, a connection that is to be closed, a transfer coding, a condition, a cookie; and whatever says from which site's
page it comes, as that may be refused (`access.session`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(rb"([A-Za-z-]+):[ \t]*([!-~](?:[ -~]*[!-~])?|)[ \t]*")
_WITHOUT_EFFECT: Final = frozenset(
    {
        b"user-agent",
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"cache-control",
        b"content-type",
        b"pragma",
        b"referer",
        b"tracestate",
    }
)
_TAKEN: Final = frozenset({b"authorization", b"connection", b"content-length", b"host", b"traceparent"})
_DIGITS_MAX: Final = 9
END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer depends on, beside the address."""

    host: str
    authorization: str | None
    traceparent: str | None
    body_bytes: int

    @classmethod
    def parse(cls, lines: bytes) -> Head | None:
        """The head that these lines are, each with its end, after the request's first one; None if it is not plain."""
        found: dict[bytes, str] = {}
        for line in lines.removesuffix(END).split(b"\r\n"):
            match = _LINE.fullmatch(line)
            name = b"" if match is None else match[1].lower()
            if match is None or name in found or not (name in _WITHOUT_EFFECT or name in _TAKEN):
                return None
            found[name] = match[2].decode("ascii")
        length = found.get(b"content-length", "0")
        host = found.get(b"host")
        plain = length.isdigit() and len(length) <= _DIGITS_MAX
        if host is None or not plain or found.get(b"connection", "keep-alive").lower() != "keep-alive":
            return None
        return cls(host, found.get(b"authorization"), found.get(b"traceparent"), int(length))
