"""Journals on Kafka at the command line, and `stateside dev kafka` as people run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner, Result

from stateside.cli import main
from stateside.cli.dev import _watch_broker
from stateside.core.errors import SettingInvalid, SetupError
from stateside.core.layout import Layout
from stateside.core.processes import free_port
from stateside.journal import Event, open_journal
from stateside.journal.backends.kafka import KafkaJournal
from stateside.journal.backends.kafka.topic import topic_at
from stateside.testbed.broker import Broker
from stateside.testing import append
from tests.journal.kafka.topics import delete_before, new_topic, real, send, stored_value
from tests.sizes import in_full

LINES = "".join(
    json.dumps({"id": f"c-{n}", "entity": name, "type": "call", "tags": ["night"], "payload": {"n": n}}) + "\n"
    for n, name in enumerate(["emma", "ben", "emma"])
)


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["journal", *arguments], input=given)


@pytest.mark.parametrize("command", ["stat", "verify", "tags", "ids", "read"])
def test_an_address_without_its_scheme_is_no_folder(command: str) -> None:
    told = run(command, "--kafka", "localhost:9092/orders")
    assert told.exit_code == 1
    assert "That is no address of a journal on Kafka" in told.output


class TestJournal:
    pytestmark = real

    def test_it_is_created_appended_to_and_read(self, broker: Broker, tmp_path: Path) -> None:
        address, folder = f"kafka://{broker.address}/cli-{os.getpid()}", str(tmp_path)
        assert "2 partitions" in run("create", address, "--partitions", "2").stdout
        assert "There is a topic" in run("create", address, "--partitions", "2").output
        appended = run("append", "--kafka", address, "--dir", folder, "--json", given=LINES)
        assert json.loads(appended.stdout)["stored"] == 3
        found = [json.loads(line) for line in run("read", "--kafka", address, "--json").stdout.splitlines()]
        assert {(each["id"], each["sequence"]) for each in found} == {("c-0", 1), ("c-1", 1), ("c-2", 2)}
        assert run("views", "--kafka", address, "--dir", folder).exit_code == 0
        mine = run("read", "--kafka", address, "--dir", folder, "--entity", "emma", "--from", "start", "--json")
        assert [json.loads(line)["id"] for line in mine.stdout.splitlines()] == ["c-0", "c-2"]
        assert run("ids", "--kafka", address).stdout.split() == ["ben", "emma"]
        told = json.loads(run("stat", "--kafka", address, "--json").stdout)
        assert told["journal"] == KafkaJournal(topic_at(address)).id()
        assert (told["partitions"], told["begin"]) == (2, "start")

    def test_who_follows_it_gets_each_event_once_and_each_entity_s_in_order(
        self, broker: Broker, layout: Layout
    ) -> None:
        address = f"kafka://{broker.address}/followed-{os.getpid()}"
        assert run("create", address, "--partitions", "1", "--dir", str(layout.root)).exit_code == 0
        events = [Event(f"e-{n}", f"c-{n % 7}", "call", n, {"n": n}) for n in range(400)]

        def produce() -> None:
            with open_journal(layout.journal).writer() as writer:
                for first in range(100, 400, 30):
                    writer.append(events[first : first + 30])

        append(layout, events[:100])
        producer = threading.Thread(target=produce)
        producer.start()
        found = run("read", "--dir", str(layout.root), "--follow", "--limit", "400", "--json")
        producer.join()
        lines = [json.loads(line) for line in found.stdout.splitlines()]
        assert {each["id"] for each in lines} == {event.id for event in events}
        for entity in {event.entity for event in events}:
            sequences = [each["sequence"] for each in lines if each["entity"] == entity]
            assert sequences == list(range(1, len(sequences) + 1))

    def test_its_tags_are_counted_its_events_exported_and_all_of_it_verified(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        topic = new_topic(broker, partitions=2)
        address, folder, out = f"kafka://{broker.address}/{topic.name}", str(tmp_path), tmp_path / "out.jsonl"
        assert run("append", "--kafka", address, "--dir", folder, given=LINES).exit_code == 0
        for flags in ([], ["--dir", folder]):  # by the topic alone, and by the views
            assert run("tags", "--kafka", address, *flags).stdout.split() == ["3", "night"]
            run("views", "--kafka", address, "--dir", folder)
        told = run("export", "--kafka", address, "--out", str(out), "--entity", "emma", "--json")
        assert json.loads(told.stdout)["events"] == 2
        assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["c-0", "c-2"]
        verdict = run("verify", "--kafka", address)
        assert (verdict.exit_code, verdict.stdout) == (0, "3 events of 2 entities\nNothing is wrong.\n")

    def test_verifying_finds_what_is_no_event_and_a_gap_and_says_where(self, broker: Broker) -> None:
        topic = new_topic(broker, partitions=2)
        for sequence in (1, 3):
            send(topic, stored_value(f"s-{sequence}", sequence))
        send(topic, b"no event", partition=1)
        verdict = run("verify", "--kafka", f"kafka://{broker.address}/{topic.name}", "--json")
        assert verdict.exit_code == 1
        found = json.loads(verdict.stdout)
        assert found["counts"] == {"gap": 1, "damage": 1}
        assert "partition 0: The event at offset 1 of 'emma' has the sequence 3 after 1" in verdict.stdout

    def test_people_are_told_that_events_are_gone(self, broker: Broker, tmp_path: Path) -> None:
        topic = new_topic(broker)
        address = f"kafka://{broker.address}/{topic.name}"
        for line in LINES.splitlines():
            assert run("append", "--kafka", address, "--dir", str(tmp_path), given=line).exit_code == 0
        delete_before(topic, 2)
        found = run("read", "--kafka", address, "--json")
        assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == ["c-1", "c-2"]
        assert "The events before 0:2 are gone" in found.stderr
        assert "The events at 0:0 to 0:1 are gone" in run("read", "--kafka", address, "--from", "0:0").output

    def test_a_missing_topic_is_one_sentence(self, broker: Broker) -> None:
        for command in ("stat", "read"):
            found = run(command, "--kafka", f"kafka://{broker.address}/nowhere")
            assert found.exit_code == 1
            assert "There is no topic 'nowhere'" in found.output
            assert "Traceback" not in found.output


def test_some_journal_must_be_named() -> None:
    for command in ("stat", "read", "ids", "tags", "verify", "export --out x.jsonl"):
        assert "Missing option '--dir', or '--kafka'" in run(*command.split()).output


@pytest.mark.parametrize(
    "address",
    ["localhost:9092/orders", "kafka:///orders", "kafka://here:1", "kafka://u:hunter2@here:1/t", "kafka://here:1/t?x"],
)
def test_what_is_no_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(SettingInvalid) as refusal:
        topic_at(address)
    assert "hunter2" not in str(refusal.value)


def test_an_address_has_servers_a_topic_and_options() -> None:
    topic = topic_at("kafka://a:1,b:2/orders?sasl.username=me&sasl.password=env:SECRET")
    assert (topic.servers, topic.name) == ("a:1,b:2", "orders")
    assert topic.options == {"sasl.username": "me", "sasl.password": "env:SECRET"}


@pytest.mark.parametrize(
    "ending",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=in_full("Ctrl-C shows the same"))],
)
@pytest.mark.e2e
@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_broker_for_people_says_where_it_is_and_ends_when_told(tmp_path: Path, ending: signal.Signals) -> None:
    port = free_port()
    flags = ["--folder", str(tmp_path / "kafka"), "--port", str(port), "--topic", "shop", "--partitions", "2"]
    command = [sys.executable, "-m", "stateside", "dev", "kafka", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if f"Kafka listens at 127.0.0.1:{port}" in line:
                break
        topic = topic_at(process.stdout.readline().split(" --kafka ")[1].split()[0])
        assert (topic.name, len(KafkaJournal(topic).partitions())) == ("shop", 2)
        process.send_signal(ending)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Stopped." in told
    finally:
        process.kill()
        process.wait()


def test_a_broker_for_people_that_has_ended_is_told_with_its_last_words() -> None:
    said = ["INFO started", "ERROR the disk is full"]
    broker = SimpleNamespace(runs=iter([True, False]).__next__, last_words=lambda: said[-1])
    with pytest.raises(SetupError, match="The Kafka broker has ended; its last words: ERROR the disk is full"):
        _watch_broker(cast(Broker, broker))
