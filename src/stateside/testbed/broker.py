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
import signal
import subprocess
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from stateside.core.errors import SetupError
from stateside.core.ports import LOOPBACK, listener, refusal
from stateside.core.processes import Child, free_port
from stateside.core.wait import retry, wait_until
from stateside.pipeline.jars import fetch
from stateside.pipeline.java import find_java

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


class Broker:
    """One broker on one folder. Its ports are drawn once: a restart keeps the address."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self._folder = folder
        self._port, self._controller_port = port or free_port(), free_port()
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """The clients' `bootstrap.servers`."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._child is not None, "it runs"
        return self._child.pid

    def runs(self) -> bool:
        return self._child is not None and self._child.returncode() is None

    def last_words(self) -> str:
        """The last line of its log."""
        return self._child.last_words() if self._child else "none"

    def start(self) -> None:
        """Start the broker and wait for an answer; SetupError on failure. A machine's first start fetches the jars."""
        assert self._child is None, "it runs already"
        self._check_ports()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(self._settings())
        java = self._java()
        if not (self._data / "meta.properties").exists():
            self._format(java)
        self._child = Child([*java, "kafka.Kafka", str(self._properties)], self._folder / "broker.log")
        self._await_answer(self._child)

    def stop(self) -> None:
        """Stop the broker in order, if it runs."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """End the broker by SIGKILL, like a crash; `start` brings it back with all acknowledged messages."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

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

    def __enter__(self) -> Broker:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

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

    def _await_answer(self, child: Child) -> None:
        over = wait_until(lambda: child.returncode() is not None or self._answers(), START_S_MAX, _LOOK_S)
        if over and child.returncode() is None:
            return
        self.stop()
        raise SetupError(
            f"The Kafka broker does not answer; its last words: {child.last_words()}",
            where=str(child.log),
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
