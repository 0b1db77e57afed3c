"""The hosts that an open server answers to: where nobody needs a token, the name that it is asked by must be its own.

A website can have its own name lead to 127.0.0.1 once its page is loaded (DNS rebinding). To the browser, page and
server are one site then: it names no other origin, and the page may read all answers. But it says in the header `Host`
by which name it asks, and no script can change that. So only hosts count that no stranger's name can be:

    127.0.0.1:8471, [::1]:8471      an address, any one: what is asked by it was not looked up
    localhost, x.localhost          which browsers look up nowhere
    bills.internal                  a name that this server listens at; the machine's own, where others reach it

Ports do not matter: a tunnel's may be another one. What is no browser may send no `Host`, as HTTP/1.0 does. Over TLS
the certificate says which names are this server's, and with tokens a stranger's page has none: nothing is checked then.

Exposure: whether an address may be listened on, and the certificate that a server shows there.

What reaches other machines needs tokens, so that not everybody is an operator, and TLS, so that nobody reads the tokens
on their way. On the loopback interface both may be left out.

The headers that every answer carries, whatever it is: what a browser must not do with it.

Nothing is guessed (`nosniff`), stored, framed or told to other sites, and a document may load nothing and run nothing.
An answer that is a page brings a policy of its own, and what never changes says for how long it may be kept. A PDF has
no policy: a browser's own viewer would be bound by it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stateside.core.errors import AccessDenied, RequestInvalid, SetupError


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, with those between it and its authority, and its private key: two files in PEM."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None) -> Certificate | None:
        """Both or none; RequestInvalid for one without the other."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise RequestInvalid(
                "TLS needs a certificate and its key", next_step="Name both: --certificate FILE --key FILE"
            )
        return cls(certificate, key)

    def check(self) -> None:
        """SetupError if a server could not use them: told here, and not by workers that end at once."""
        for path in (self.certificate, self.key):
            if not path.is_file():
                raise SetupError("There is no such file", where=str(path), next_step="Name a file in PEM")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, _no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise SetupError(
                f"The certificate and its key cannot be used: {reason}",
                where=f"{self.certificate}, {self.key}",
                next_step="Give a certificate with its own key, both in PEM, the key without a password",
            ) from None


def check_exposure(address: str, *, tokens: bool, tls: bool, insecure: bool = False) -> None:
    """SetupError for an address that others can reach without tokens or without TLS, unless that is wanted."""
    if insecure or (tokens and tls) or is_loopback(address):
        return
    if not tokens:
        raise SetupError(
            f"Without tokens everybody who reaches {address} could read everything",
            next_step="Make one with `stateside token create NAME --dir FOLDER`, or listen on 127.0.0.1",
        )
    raise SetupError(
        f"Without TLS everybody on the way to {address} could read the tokens",
        next_step="Give --certificate FILE --key FILE, or listen on 127.0.0.1 behind a proxy with TLS",
    )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _no_password() -> str:
    """Asked for if the key has one: nobody is at a server's terminal."""
    raise ValueError("the key has a password")


_LOCAL: Final = "localhost"
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::[0-9]{0,5})?", re.ASCII)
_SHOWN_CHARS: Final = 80


class Hosts:
    """Those of one server, which has these names beside its addresses."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(map(_plain, names))
        self._last: str | None = None  # that was let in: most often the next one is the same

    def check(self, host: str | None) -> None:
        """AccessDenied if a request with this header may come from a stranger's page."""
        if host is None or host == self._last:
            return
        if not self._has(host):
            raise AccessDenied(
                f"Without tokens this server does not answer as {host[:_SHOWN_CHARS]!r}: any website can have such a"
                " name, and lead it here",
                next_step="Ask at localhost or an address, like 127.0.0.1; a proxy must send such a Host too. Or make"
                " tokens: `stateside token create NAME --role operator --dir FOLDER`",
            )
        self._last = host

    def _has(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        bracketed, name = found[1], _plain(found[2] or "")
        if bracketed is not None:
            return _is_address(bracketed)
        return name == _LOCAL or name.endswith(f".{_LOCAL}") or name in self._names or _is_address(name)


def names_at(address: str) -> frozenset[str]:
    """The names of who listens there: that one, and the machine's own if others reach it."""
    return frozenset({address} if is_loopback(address) else {address, socket.gethostname(), socket.getfqdn()})


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    """As names are compared: in small letters, without the dot that may end them."""
    return name.lower().removesuffix(".")


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
