"""A broker that speaks TLS and wants a password: whatever a client of Kafka can be told, a topic is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from stateside.billing.answers.letters import DeadLetterReader
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.core.processes import free_port
from stateside.journal import Event
from stateside.journal.backends.kafka import KafkaJournal, KafkaWriter, Topic, create_topic
from stateside.journal.backends.kafka.topic_folder import place
from stateside.journal.location import open_journal
from stateside.testbed.broker import Broker
from tests.journal.kafka.topics import real
from tests.sizes import in_full

pytestmark = real

PASSWORD = "correct horse"
_BILL = """
import sys
from pathlib import Path
from stateside.billing.pipeline.on_kafka import app
from stateside.core.layout import Layout
from stateside.pipeline.runner import Runner

with Runner(app, Layout(Path(sys.argv[1]))) as runner:
    runner.run_to_end()
"""
_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_emma"


class SecuredBroker(Broker):
    """With a second listener, for clients who trust its authority and have the password."""

    def __init__(self, folder: Path, certificate: Path) -> None:
        super().__init__(folder)
        self.secure, self._certificate = f"127.0.0.1:{free_port()}", certificate

    def _settings(self) -> str:
        lines = super()._settings().splitlines()
        listeners = next(line for line in lines if line.startswith("listeners="))
        name = "listener.name.secure"
        added = {
            "listeners": f"{listeners.removeprefix('listeners=')},SECURE://{self.secure}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            f"{name}.sasl.enabled.mechanisms": "PLAIN",
            f"{name}.plain.sasl.jaas.config": f'{_JAAS}="{PASSWORD}";',
            f"{name}.ssl.keystore.type": "PEM",
            f"{name}.ssl.keystore.location": str(self._certificate),
        }
        kept = [line for line in lines if line != listeners]
        return "\n".join([*kept, *(f"{name}={value}" for name, value in added.items()), ""])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("secured")
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)  # Kafka reads keys in PKCS 8 only
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = folder / "server.pem"
    certificate.write_bytes(pem + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    broker = SecuredBroker(folder / "broker", certificate)
    with broker:
        yield broker


def options(authority: trustme.CA, folder: Path, password: str = "env:KAFKA_PASSWORD") -> dict[str, str]:
    trusted = folder / "ca.pem"
    trusted.write_bytes(authority.cert_pem.bytes())
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(trusted),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "emma",
        "sasl.password": password,
    }


def test_events_go_in_and_out_over_tls_with_a_password_from_the_environment(
    broker: SecuredBroker, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    topic = Topic(broker.secure, "orders", options(authority, tmp_path))
    create_topic(topic, partitions=2)
    events = [Event(f"e{number}", f"c{number % 3}", "call", number, {"n": number}) for number in range(9)]
    with KafkaWriter(topic, tmp_path / "index") as writer:
        writer.append(events)
    assert sorted(event.id for event in KafkaJournal(topic).events()) == [event.id for event in events]
    assert PASSWORD not in repr(topic)


@pytest.mark.spark
@in_full("the test before has events in and out over TLS; Spark gets the same settings")
def test_billing_reads_its_topic_over_tls_with_the_same_password(
    broker: SecuredBroker, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    given, layout = options(authority, tmp_path), Layout(tmp_path / "billing")
    topic = place(layout.journal, f"kafka://{broker.secure}/billing?{urlencode(given)}")
    create_topic(topic, partitions=1)
    with open_journal(layout.journal).writer() as writer:
        writer.append([Event("m", "nobody", "message", 1_768_000_000_000_000, {"quantity": 1})])
    done = subprocess.run([sys.executable, "-c", _BILL, str(layout.root)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    letters = DeadLetterReader.of(layout).page(limit=9)
    assert [(letter.id, letter.reason) for letter in letters] == [("m", "unknown-customer")]
    assert not [path for path in layout.root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@pytest.mark.parametrize("wrong", ["password", "authority", "no security at all"])
def test_who_is_not_let_in_is_told_so_in_time_and_without_a_secret(
    broker: SecuredBroker, authority: trustme.CA, tmp_path: Path, wrong: str
) -> None:
    given = options(trustme.CA() if wrong == "authority" else authority, tmp_path, PASSWORD)
    given |= {"sasl.password": "guessed"} if wrong == "password" else {}
    topic = Topic(broker.secure, "orders", {} if wrong == "no security at all" else given, answer_s_max=5)
    with pytest.raises(StatesideError) as caught:
        KafkaJournal(topic).end()
    assert "guessed" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
