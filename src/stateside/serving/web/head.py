"""The head of a request: checks against request smuggling.

The parser (llhttp) refuses most input that two programs may read differently. `check` refuses the rest, so that a proxy
in front of the server and the server agree on a request's end and host:

    Host                    none, or several (RFC 9112, 3.2); none is possible in HTTP/1.0; no host and port
    the target              an absolute address of another host than `Host` names; characters that are not ASCII
    Transfer-Encoding       another one than `chunked`; any in HTTP/1.0
    Upgrade, with a body    the parser takes later bytes for the other protocol, so the body would be lost
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from stateside.core.errors import RequestInvalid

Headers = Sequence[tuple[bytes, bytes]]  # lower-case names

_VERSIONS: Final = ("1.0", "1.1")
HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~-]+)(?::[0-9]{0,5})?")
_TARGET: Final = re.compile(rb"[!-~]+")
_ABSOLUTE: Final = re.compile(rb"(https?)://([^/?#]*)([^#]*).*", re.IGNORECASE)
_PORTS: Final = {b"http": b":80", b"https": b":443"}


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
    if not HOST.fullmatch(hosts[0]):
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
