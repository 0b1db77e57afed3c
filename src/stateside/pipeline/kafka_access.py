"""How Spark's Kafka client is let in, where a topic's options say it in librdkafka's words (`journal.kafka.topic`).

    security.protocol, sasl.mechanism,              the same
    ssl.key.password
    ssl.endpoint.identification.algorithm           the same, but that `none` is nothing
    sasl.username, sasl.password                    sasl.jaas.config, for PLAIN and SCRAM
    ssl.ca.location, ssl.ca.pem                     a trust store in PEM
    ssl.certificate.location, ssl.certificate.pem,  a key store in PEM
    ssl.key.location, ssl.key.pem

What else concerns access is refused: nobody is to find out later that less was asked for than was written. All other
options tune Stateside's own clients; Spark's has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateside.errors import SettingInvalid
from stateside.secret_options import with_secrets

_ACCESS = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
_ALIASES = {"sasl.mechanisms": "sasl.mechanism"}  # librdkafka takes both
_SAME = ("security.protocol", "sasl.mechanism", "ssl.key.password")
_VERIFIED = "ssl.endpoint.identification.algorithm"
_TRUSTED = {"ssl.ca.location": "ssl.truststore.location", "ssl.ca.pem": "ssl.truststore.certificates"}
_OWN = {"ssl.certificate.pem": "ssl.keystore.certificate.chain", "ssl.key.pem": "ssl.keystore.key"}
_OWN_FILES = {"ssl.certificate.location": "ssl.certificate.pem", "ssl.key.location": "ssl.key.pem"}
_USER, _PASSWORD = "sasl.username", "sasl.password"
_KNOWN = (*_SAME, _VERIFIED, *_TRUSTED, *_OWN, *_OWN_FILES, _USER, _PASSWORD)
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def spark_options(options: Mapping[str, str]) -> dict[str, str]:
    """What Spark's connector is told, with the secrets in it. SettingInvalid names an option that it cannot be told."""
    given = with_secrets({_ALIASES.get(name, name): value for name, value in options.items()})
    found: dict[str, str] = {}
    for name, value in given.items():
        if name in _KNOWN:
            found |= _said(name, value)
        elif name.startswith(_ACCESS):
            raise _unsaid(name)
    if _USER in given or _PASSWORD in given:
        found["sasl.jaas.config"] = _login(given)
    return {f"kafka.{name}": value for name, value in found.items()}


def _said(name: str, value: str) -> dict[str, str]:
    """One option in the words of Java's client."""
    if name in _OWN_FILES:  # Java wants certificate and key in one file: so it gets the text of both
        return _said(_OWN_FILES[name], _text(name, value))
    if name in _OWN:
        return {"ssl.keystore.type": "PEM", _OWN[name]: value}
    if name in _TRUSTED:
        return {"ssl.truststore.type": "PEM", _TRUSTED[name]: value}
    if name == _VERIFIED:
        return {name: "" if value == "none" else value}
    return {name: value} if name in _SAME else {}


def _login(given: Mapping[str, str]) -> str:
    """User and password as Java's client wants them."""
    mechanism = given.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MODULES:
        raise SettingInvalid(
            f"A user and a password do not go with sasl.mechanism={mechanism}",
            next_step=f"Set it to one of {', '.join(_MODULES)}",
        )
    user, password = (_quoted(given.get(name, "")) for name in (_USER, _PASSWORD))
    return f"{_MODULES[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError) as error:
        raise SettingInvalid(
            f"The file that {name} names cannot be read: {error}",
            next_step="Name one in the format PEM, which this process may read",
        ) from error


def _unsaid(name: str) -> SettingInvalid:
    return SettingInvalid(
        f"Stateside cannot tell Spark's Kafka client {name!r}",
        next_step=f"Use {', '.join(_KNOWN)}; a view of your own can tell it in its own words: "
        "source=stateside.sources.kafka_journal(…, options={…})",
    )
