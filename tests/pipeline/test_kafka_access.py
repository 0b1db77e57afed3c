"""A topic's options in the words of Spark's client; that they let it in, tests/journal/kafka/test_secured.py shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateside.core.errors import SettingInvalid, SetupError
from stateside.pipeline.kafka_source import spark_options

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, {}),
        ({"linger.ms": "5", "client.id": "shop"}, {}),
        ({"security.protocol": "SSL"}, {"kafka.security.protocol": "SSL"}),
        (
            {"ssl.ca.location": "/ca.pem"},
            {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem"},
        ),
        (
            {"ssl.certificate.pem": "C", "ssl.key.pem": "K", "ssl.key.password": "p"},
            {
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.certificate.chain": "C",
                "kafka.ssl.keystore.key": "K",
                "kafka.ssl.key.password": "p",
            },
        ),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            {"kafka.ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {"sasl.mechanisms": "PLAIN", "sasl.username": "emma", "sasl.password": 'say "\\"'},
            {
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f'{PLAIN} required username="emma" password="say \\"\\\\\\"";',
            },
        ),
    ],
)
def test_each_option_is_told_in_the_other_clients_words(options: dict[str, str], told: dict[str, str]) -> None:
    assert spark_options(options) == told


def test_certificate_and_key_are_read_from_their_files(tmp_path: Path) -> None:
    for name in ("certificate", "key"):
        (tmp_path / f"{name}.pem").write_text(name)
    told = spark_options({f"ssl.{name}.location": str(tmp_path / f"{name}.pem") for name in ("certificate", "key")})
    assert told == spark_options({"ssl.certificate.pem": "certificate", "ssl.key.pem": "key"})
    with pytest.raises(SettingInvalid, match=r"The file that ssl\.key\.location names cannot be read"):
        spark_options({"ssl.key.location": str(tmp_path / "none.pem")})


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "emma", "sasl.password": "env:KAFKA_PASSWORD"}
    with pytest.raises(SetupError, match="'KAFKA_PASSWORD', which is not set"):
        spark_options(options)
    monkeypatch.setenv("KAFKA_PASSWORD", "correct horse")
    assert 'password="correct horse"' in spark_options(options)["kafka.sasl.jaas.config"]


@pytest.mark.parametrize(
    "option",
    ["enable.ssl.certificate.verification", "sasl.kerberos.keytab", "ssl.crl.location", "sasl.oauthbearer.scope"],
)
def test_what_spark_cannot_be_told_is_refused_by_name(option: str) -> None:
    with pytest.raises(SettingInvalid, match=option):
        spark_options({option: "x"})


def test_a_password_without_a_mechanism_that_takes_one_is_refused_and_not_told() -> None:
    with pytest.raises(SettingInvalid, match="GSSAPI") as refused:
        spark_options({"sasl.username": "emma", "sasl.password": "correct horse"})
    assert "correct horse" not in str(refused.value)
