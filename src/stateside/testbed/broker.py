"""A local Kafka broker for development and tests: one node, without ZooKeeper, as a child process.

    with Broker(folder) as broker:
        broker.create_topic("orders", partitions=2)
        sources.kafka(broker.address, "orders", fields="…")

The broker listens on the loopback interface only. Files:

    FOLDER/server.properties    written again at each start
    FOLDER/data/                its log; a later start on the same folder continues it
    FOLDER/broker.log           its output

Topics are never created automatically.
"""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from stateside.core.errors import SetupError
from stateside.core.ports import LOOPBACK, listener, refusal
from stateside.core.processes import free_port
from stateside.core.wait import retry, wait_until
from stateside.pipeline.jars import fetch
from stateside.pipeline.java import find_java
from stateside.testbed.component import Component

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

HEAP_MB_MAX = 256
START_S_MAX = 90.0  # 4 s on two idle cores
FORMAT_S_MAX = 60.0
ANSWER_S_MAX = 20.0
_LOOK_S = 0.2

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # One node: a single copy of everything, and small internal topics.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a SIGKILL the controller readmits the broker only when its old session has expired: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class Broker(Component):
    """One broker on one folder. Its ports are drawn once: a restart keeps the address.

    After a `kill`, `start` brings the broker back with all acknowledged messages.
    """

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        super().__init__("broker", (), folder / "broker.log", os.environ)
        self._folder = folder
        self._port, self._controller_port = port or free_port(), free_port()

    @property
    def address(self) -> str:
        """The clients' `bootstrap.servers`."""
        return f"{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Start the broker and wait for an answer; SetupError on failure. A machine's first start fetches the jars."""
        self._check_ports()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(self._settings())
        java = self._java()
        if not (self._data / "meta.properties").exists():
            self._format(java)
        self._command = [*java, "kafka.Kafka", str(self._properties)]
        super().start()
        self._await_answer()

    def create_topic(self, name: str, *, partitions: int = 1) -> None:
        """Create a topic; on return every client sees it."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(ANSWER_S_MAX)
        self._wait_for_topic(admin, name)

    def _wait_for_topic(self, admin: AdminClient, name: str) -> None:
        """The controller creates a topic shortly before the broker learns of it."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        retry(
            lambda: admin.describe_topics(TopicCollection([name]))[name].result(ANSWER_S_MAX),
            KafkaException,
            ANSWER_S_MAX,
            _LOOK_S,
            passes=lambda error: bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART),
        )

    def _check_ports(self) -> None:
        """Another broker on the port would answer in this one's place."""
        for port in (self._port, self._controller_port):
            if (reason := refusal(port)) is not None:
                raise SetupError(
                    f"Port {port} of {LOOPBACK}, on which the Kafka broker was to listen, is taken",
                    where=listener(port) or str(reason),
                    next_step="Try again: another one is drawn, unless you name it",
                )

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _settings(self) -> str:
        places = {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{LOOPBACK}:{self._controller_port}",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "log.dirs": str(self._data),
        }
        return "".join(f"{name}={value}\n" for name, value in (_SETTINGS | places).items())

    def _java(self) -> list[str]:
        jars = os.pathsep.join(str(jar) for jar in fetch("broker"))
        quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # fast start, not long-term speed
        options = [f"-Xmx{HEAP_MB_MAX}m", *quick, "-Djava.awt.headless=true", "-Dlog4j2.level=WARN"]
        return [str(find_java().executable), *options, "-cp", jars]

    def _format(self, java: list[str]) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=FORMAT_S_MAX)
        if done.returncode != 0:
            raise SetupError(
                f"Kafka cannot prepare its folder: {(done.stdout + done.stderr).strip()[-400:]}",
                where=str(self._folder),
                next_step="Give it an empty folder on a disk with space",
            )

    def _await_answer(self) -> None:
        if wait_until(lambda: not self.runs() or self._answers(), START_S_MAX, _LOOK_S) and self.runs():
            return
        self.stop()
        raise SetupError(
            f"The Kafka broker does not answer; its last words: {self.last_words()}",
            where=str(self.log),
            next_step="Read that log, mend the cause, and start it again",
        )

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        quiet = {"log_level": 0}  # refused connections are expected during a start
        try:
            AdminClient({"bootstrap.servers": self.address, **quiet}).list_topics(timeout=1)
        except KafkaException:
            return False
        return True
