"""Host and address checks: DNS rebinding, exposure without TLS, and the security headers of answers.

**Host names.** A website can point its own name to 127.0.0.1 once its page is loaded (DNS rebinding). The browser then
takes page and server for one site: the request names no other origin, and the page may read all answers. But the header
`Host` has the name that the browser looked up, and no script can change the header. So a server without tokens answers
only to hosts that cannot be another site's name:

    127.0.0.1:8471, [::1]:8471      any address: no name was looked up
    localhost, x.localhost          browsers do not look these names up
    bills.internal                  the name that this server listens at; the machine's own, where others reach it

Ports do not matter: a tunnel may have another one. Clients other than browsers may send no `Host`, as in HTTP/1.0.
Nothing is checked under TLS, where the certificate names the server, nor with tokens, which another site's page does
not have.

**Exposure.** An address that other machines reach needs tokens, because otherwise everybody is an operator, and TLS,
because otherwise the network can read the tokens. On the loopback interface both may be left out.

**Security headers.** Every answer forbids a browser to guess its type (`nosniff`), to store, to frame and to refer, and
a document may load and run nothing. Pages have a content security policy of their own; immutable assets have a cache
lifetime. A PDF has no policy, which would also bind the browser's PDF viewer.
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
    """A certificate with its chain, and its private key: two files in PEM."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None) -> Certificate | None:
        """Both files or None; RequestInvalid for one without the other."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise RequestInvalid(
                "TLS needs a certificate and its key", next_step="Name both: --certificate FILE --key FILE"
            )
        return cls(certificate, key)

    def check(self) -> None:
        """Raise SetupError for unusable files: here, and not in workers that end at once."""
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
    """Raise SetupError for an address that other machines reach without tokens or TLS, unless `insecure`."""
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
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _no_password() -> str:
    """The password callback of the key file: a server has nobody at its terminal."""
    raise ValueError("the key has a password")


_LOCAL: Final = "localhost"
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::[0-9]{0,5})?", re.ASCII)
_SHOWN_CHARS: Final = 80


class Hosts:
    """The hosts that a server without tokens answers to: addresses, localhost, and these names."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(map(_plain, names))
        self._last: str | None = None  # the last accepted host: usually the next one is the same

    def check(self, host: str | None) -> None:
        """Raise AccessDenied if the header's host may be a name of another site."""
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
    """The host names of a server at this address: the address, and the machine's names unless on loopback."""
    return frozenset({address} if is_loopback(address) else {address, socket.gethostname(), socket.getfqdn()})


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    """The name in lower case, without a final dot, for comparison."""
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
    """The security headers for an answer of this content type with these headers of its own."""
    brought = {name for name, _ in own}
    if _CACHE in brought:
        return _KEPT
    return _ALWAYS if _POLICY in brought or kind == "application/pdf" else _STRICT
