"""What may be listened on, and which certificates can be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from stateside.core.errors import RequestInvalid, SetupError
from stateside.serving.access.hosts import Certificate, check_exposure, security_headers

HERE = ("127.0.0.1", "127.9.9.9", "::1", "localhost")
BEYOND = ("0.0.0.0", "::", "10.0.0.7", "example.org", "")


@pytest.mark.parametrize("address", HERE)
def test_on_loopback_nothing_is_needed(address: str) -> None:
    check_exposure(address, tokens=False, tls=False)


@pytest.mark.parametrize("address", BEYOND)
def test_beyond_loopback_tokens_and_tls_are_both_needed_unless_told_otherwise(address: str) -> None:
    for tls in (False, True):
        with pytest.raises(SetupError, match="token create"):
            check_exposure(address, tokens=False, tls=tls)
    with pytest.raises(SetupError, match="--certificate"):
        check_exposure(address, tokens=True, tls=False)
    check_exposure(address, tokens=True, tls=True)
    check_exposure(address, tokens=False, tls=False, insecure=True)


def test_a_certificate_needs_its_key() -> None:
    assert Certificate.of(None, None) is None
    for certificate, key in ((Path("a"), None), (None, Path("a"))):
        with pytest.raises(RequestInvalid, match="TLS needs"):
            Certificate.of(certificate, key)


def test_files_that_are_no_certificate_with_its_key_are_told_at_the_start(tmp_path: Path) -> None:
    good, other = tmp_path / "good", tmp_path / "other"
    for path in (good, other):
        issued = trustme.CA().issue_cert("localhost")
        path.with_suffix(".pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        path.with_suffix(".key").write_bytes(issued.private_key_pem.bytes())
    Certificate(good.with_suffix(".pem"), good.with_suffix(".key")).check()
    (tmp_path / "empty").touch()
    for certificate, key in (
        (good.with_suffix(".pem"), other.with_suffix(".key")),
        (good.with_suffix(".key"), good.with_suffix(".key")),
        (tmp_path / "empty", good.with_suffix(".key")),
        (tmp_path / "missing", good.with_suffix(".key")),
        (good.with_suffix(".pem"), tmp_path),
    ):
        with pytest.raises(SetupError):
            Certificate(certificate, key).check()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    issued = trustme.CA().issue_cert("localhost")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    (tmp_path / "key").write_bytes(locked)
    issued.cert_chain_pems[0].write_to_path(tmp_path / "pem")
    with pytest.raises(SetupError, match="password"):
        Certificate(tmp_path / "pem", tmp_path / "key").check()


def test_a_page_brings_its_own_policy_and_everything_else_has_the_strictest() -> None:
    assert dict(security_headers("application/json"))["content-security-policy"].startswith("default-src 'none'")
    own = [("content-security-policy", "default-src 'self'")]
    assert "content-security-policy" not in dict(security_headers("text/html", own))
    assert "content-security-policy" in dict(security_headers("text/html"))
    for kind in ("application/json", "text/html", "application/pdf", "text/event-stream"):
        assert dict(security_headers(kind, own))["x-content-type-options"] == "nosniff"
