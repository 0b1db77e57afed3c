"""The head of a request: checks against request smuggling, and a fast parser of plain heads.

The parser (llhttp) refuses most input that two programs may read differently. `check` refuses the rest, so that a proxy
in front of the server and the server agree on a request's end and host:

    Host                    none, or several (RFC 9112, 3.2); none is possible in HTTP/1.0; no host and port
    the target              an absolute address of another host than `Host` names; characters that are not ASCII
    Transfer-Encoding       another one than `chunked`; any in HTTP/1.0
    Upgrade, with a body    the parser takes later bytes for the other protocol, so the body would be lost

A plain head is what most clients send, with the same lines at every request of a connection. All other heads are left
to the parser: with a header outside the lists below, a repeated or folded header, a connection to be closed, a transfer
coding, a precondition, a cookie; and with a header that names the requesting page's site, as such a request may
be refused (`access.browser_session`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stateside.core.errors import RequestInvalid

Headers = Sequence[tuple[bytes, bytes]]  # lower-case names

_VERSIONS: Final = ("1.0", "1.1")
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~-]+)(?::[0-9]{0,5})?")
_TARGET: Final = re.compile(rb"[!-~]+")
_ABSOLUTE: Final = re.compile(rb"(https?)://([^/?#]*)([^#]*).*", re.IGNORECASE)
_PORTS: Final = {b"http": b":80", b"https": b":443"}
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
    """The parts of a head that an answer depends on, beside the address."""

    host: str
    authorization: str | None
    traceparent: str | None
    body_bytes: int

    @classmethod
    def parse(cls, lines: bytes) -> Head | None:
        """Parses header lines (without the request line, with the final blank line); None if the head is not plain."""
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
        if not _HOST.fullmatch(host.encode("ascii")):
            return None
        return cls(host, found.get(b"authorization"), found.get(b"traceparent"), int(length))


def check(version: str, target: bytes, headers: Headers, *, upgrade: bool) -> bytes:
    """The target's path and query; RequestInvalid if the head leaves its host or the request's end in doubt.

    `upgrade`: the parser takes the bytes after the head for another protocol.
    """
    if version not in _VERSIONS:
        raise RequestInvalid(f"HTTP/{version} is not spoken here", next_step="Ask with HTTP/1.1")
    host = _host(version, headers)
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version != "1.1"):
        raise RequestInvalid("This Transfer-Encoding is not known here", next_step="Send `chunked`, or the length")
    if upgrade and (codings or any(name == b"content-length" and int(value) for name, value in headers)):
        raise RequestInvalid(
            "A request with a body asks for another protocol", next_step="Send it without the header Upgrade"
        )
    if not _TARGET.fullmatch(target):
        raise RequestInvalid("The address has characters that are not ASCII", next_step="Percent-encode them")
    return target if target.startswith((b"/", b"*")) else _own(target, host)


def _host(version: str, headers: Headers) -> bytes:
    """The request's host; empty in HTTP/1.0 without one."""
    hosts = [value for name, value in headers if name == b"host"]
    if not hosts and version == "1.0":
        return b""
    if len(hosts) != 1:
        raise RequestInvalid(
            f"The request has {len(hosts) or 'no'} Host header{'s' * bool(hosts)}", next_step="Send exactly one"
        )
    if not _HOST.fullmatch(hosts[0]):
        raise RequestInvalid("The header Host is no host and port", next_step="Send one like 127.0.0.1:8471")
    return hosts[0]


def _own(target: bytes, host: bytes) -> bytes:
    """The path and query of an absolute address, which must name this host."""
    found = _ABSOLUTE.fullmatch(target)
    port = b"" if found is None else _PORTS[found[1].lower()]
    if found is None or found[2].lower().removesuffix(port) != host.lower().removesuffix(port):
        raise RequestInvalid(
            "The address is of another host than the header Host", next_step="Ask for a path, like /v1/views"
        )
    return found[3] if found[3].startswith(b"/") else b"/" + found[3]
