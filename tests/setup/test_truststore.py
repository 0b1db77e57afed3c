from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stateside.pipeline.jars import PASSWORD, find_bundle, write_truststore
from stateside.pipeline.java import find_java

# A self-signed authority that was made for this test, good until 2126.
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBnTCCAUOgAwIBAgIUM9tfeW3wiS9IlHdoUH0SkzPwFQ0wCgYIKoZIzj0EAwIw
IzEhMB8GA1UEAwwYU3RhdGVzaWRlIHRlc3QgYXV0aG9yaXR5MCAXDTI2MTExNTA1
MTYxM1oYDzIxMjYxMDIyMDUxNjEzWjAjMSEwHwYDVQQDDBhTdGF0ZXNpZGUgdGVz
dCBhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASfawJJqexF+KKS
5ErCiMpmkgsZs5s1r/sZpqPcNgh257Ub/PZdp91x6V+npyzMGmHXMX65gIripZnL
OL9aqWY5o1MwUTAdBgNVHQ4EFgQUFjVJU42pyF02Syid90evLOqdaZMwHwYDVR0j
BBgwFoAUFjVJU42pyF02Syid90evLOqdaZMwDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNIADBFAiAOu0XKHA8l/pyVMWX2oomHhU9CF/2P9s8o5kPZ5iGmTgIh
AIHbYvW2t1dsxkWJZxc1l+pFqdWMIyTfIUpTcCECovlW
-----END CERTIFICATE-----
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    file = tmp_path / "bundle.pem"
    file.write_text(f"# Two authorities, with words around them\n{AUTHORITY}\nsecond:\n{AUTHORITY}\n")
    return file


def test_the_bundle_that_the_variable_names_comes_first(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.touch()
    assert find_bundle({"SSL_CERT_FILE": str(bundle)}, [other]) == bundle
    assert find_bundle({"SSL_CERT_FILE": str(tmp_path / "gone")}, [other]) == other
    assert find_bundle({}, [tmp_path / "gone"]) is None


def test_a_bundle_without_authorities_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    assert write_truststore(tmp_path / "store.jks", {"SSL_CERT_FILE": str(tmp_path / "empty.pem")}) is None
    assert not (tmp_path / "store.jks").exists()


@pytest.mark.spark
def test_java_itself_reads_the_store_and_finds_every_authority_in_it(bundle: Path, tmp_path: Path) -> None:
    store = write_truststore(tmp_path / "store.jks", {"SSL_CERT_FILE": str(bundle)})
    keytool = find_java().home / "bin" / "keytool"
    if not keytool.exists():
        pytest.skip("this Java has no keytool")
    command = [str(keytool), "-list", "-keystore", str(store), "-storepass", PASSWORD]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listed.stdout.count("trustedCertEntry") == 2
