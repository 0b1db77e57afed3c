"""Exposure: whether an address may be listened on, and the certificate that a server shows there.

What reaches other machines needs tokens, so that not everybody is an operator, and TLS, so that nobody reads the tokens
on their way. On the loopback interface both may be left out.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import RequestInvalid, SetupError


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
