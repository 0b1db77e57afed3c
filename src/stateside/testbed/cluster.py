"""A local Spark cluster for development and tests: standalone, with standby masters, as child processes.

    with Cluster(folder) as cluster:
        RunSettings(master=cluster.address)      # spark://127.0.0.1:40001,127.0.0.1:40002
        cluster.kill("master-1")                 # the other one takes over
        cluster.remove_worker("worker-2")

All parts come with PySpark, and listen on the loopback interface only. Files:

    FOLDER/zookeeper/           ZooKeeper's settings and data: the leading master, and the cluster's state
    FOLDER/master/              the cluster's state where there is one master, and so no ZooKeeper
    FOLDER/logs/PART.log        the log of each part: zookeeper, master-1, master-2, …, worker-1, …
    FOLDER/worker-N/work/       the logs of executors, a folder for each application
    FOLDER/worker-N/local/      scratch files of executors

A killed master is missed when its ZooKeeper session expires, at most SESSION_S_MAX later; then another master leads,
and workers and drivers connect to the new leader by themselves. Queries go on meanwhile, but nothing can join.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from stateside.core.errors import SettingInvalid, SetupError
from stateside.core.ports import LOOPBACK
from stateside.core.processes import free_port
from stateside.pipeline.java import java_environment
from stateside.pipeline.master import python_path
from stateside.testbed.component import Component, Startable, wait_until

HEAP_MB_MAX = 256  # of ZooKeeper, a master and a worker; executors have their own
WORKER_MEMORY = "1g"  # for executors: one of Spark's default size
WORKER_MEMORY_MB_MIN = 512  # Spark's executors do not start with less
SESSION_S_MAX = 6.0
START_S_MAX = 90.0  # of a part, on a busy machine
ANSWER_S_MAX = 5.0
ZOOKEEPER = "zookeeper"
_TICK_MS = 1_000
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # fast start, not long-term speed
_MEMORY = re.compile(r"(\d+)([mg])")


class Cluster(Startable):
    """Masters and workers on one folder. Ports are drawn once: a restarted part keeps its address."""

    def __init__(
        self,
        folder: Path,
        *,
        masters: int = 2,
        workers: int = 2,
        worker_cores: int = 1,
        worker_memory: str = WORKER_MEMORY,
    ) -> None:
        if masters < 1 or workers < 0 or worker_cores < 1:
            raise SettingInvalid("A cluster without masters or cores", next_step="Give it one of each at least")
        check_worker_memory(worker_memory)
        self._folder = folder.absolute()
        self._masters = {f"master-{n}": (free_port(), free_port()) for n in range(1, masters + 1)}  # RPC, page
        self._zookeeper_port = free_port()
        self._workers_wanted, self._cores, self._memory = workers, worker_cores, worker_memory
        self._ports: dict[str, int] = {}  # of the workers; masters identify workers by port
        self._environment: dict[str, str] = {}
        self._parts: dict[str, Component] = {}

    @property
    def address(self) -> str:
        """All masters, for `--master`."""
        return "spark://" + ",".join(f"{LOOPBACK}:{port}" for port, _ in self._masters.values())

    @property
    def parts(self) -> list[str]:
        """The names of the parts that were started and not removed, in start order."""
        return list(self._parts)

    def pid(self, name: str) -> int:
        return self._part(name).pid

    def runs(self, name: str) -> bool:
        return self._part(name).runs()

    def ended(self) -> list[str]:
        """The parts that were started and no longer run, such as killed ones."""
        return [name for name, part in self._parts.items() if not part.runs()]

    def log(self, name: str) -> Path:
        return self._part(name).log

    def last_words(self, name: str) -> str:
        """The last line of a part's log."""
        return self._part(name).last_words()

    def start(self) -> None:
        """Start all parts, and wait until a master leads and knows all workers; SetupError on failure."""
        assert not self._parts, "it runs already"
        self._environment = _environment()
        if len(self._masters) > 1:
            self._start_zookeeper()
        for name in self._masters:
            self._start(self._master(name))
        self.await_leader()
        names = [self._start_worker() for _ in range(self._workers_wanted)]
        self._await_workers(names)

    def stop(self) -> None:
        """Stop all parts in order, workers first, and leave nothing running. Does nothing if nothing runs."""
        while self._parts:
            self._parts.popitem()[1].stop()

    def kill(self, name: str) -> None:
        """End a part, a worker with its executors, by SIGKILL, as a machine's crash would."""
        self._part(name).kill()

    def restart(self, name: str) -> None:
        """Restart an ended or killed part at the same address, and wait until it is up."""
        part = self._part(name)
        part.stop()  # end leftovers of the old process
        part.start()
        if name == ZOOKEEPER:
            self._await_zookeeper()
        elif name in self._masters:
            wait_until(f"An answer of {name}", lambda: self._page(name) is not None, [part], START_S_MAX)
        else:
            self._await_workers([name])

    def add_worker(self) -> str:
        """Start one more worker, and return its name once the leading master knows it."""
        name = self._start_worker()
        self._await_workers([name])
        return name

    def remove_worker(self, name: str) -> None:
        """Stop a worker in order, with its executors; queries go on with the others."""
        assert name.startswith("worker-"), f"{name} is no worker"
        self._part(name).stop()
        del self._parts[name]

    def leader(self) -> str | None:
        """The name of the leading master; None while none leads."""
        return next((name for name in self._masters if (self._page(name) or {}).get("status") == "ALIVE"), None)

    def await_leader(self, wait_s: float = START_S_MAX) -> str:
        """The name of the leading master, once one leads; SetupError after `wait_s`."""
        running = [self._parts[name] for name in self._masters if self._parts[name].runs()]
        wait_until("A leading master", lambda: self.leader() is not None, running, wait_s)
        name = self.leader()
        return self.await_leader(wait_s) if name is None else name

    def workers_known(self) -> int:
        """The number of alive workers of the leading master; 0 while none leads."""
        return len(self._alive(self.leader()))

    def cores_taken(self) -> int:
        """The number of cores that the leading master has given to executors."""
        return sum(int(worker["coresused"]) for worker in self._alive(self.leader()))

    def _part(self, name: str) -> Component:
        if name not in self._parts:
            raise SettingInvalid(
                f"The cluster has no part {name!r}", next_step=f"It has {', '.join(self._parts) or 'none: start it'}"
            )
        return self._parts[name]

    def _start(self, part: Component) -> None:
        self._parts[part.name] = part
        part.start()

    def _start_zookeeper(self) -> None:
        folder = self._folder / ZOOKEEPER
        (folder / "data").mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": folder / "data",
            "clientPort": self._zookeeper_port,
            "clientPortAddress": LOOPBACK,
            "tickTime": _TICK_MS,
            "maxSessionTimeout": int(SESSION_S_MAX * 1_000),  # Spark asks for a minute; ZooKeeper caps it
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        file = folder / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java, jars = self._environment["JAVA_HOME"] + "/bin/java", f"{self._environment['SPARK_HOME']}/jars/*"
        options = [f"-Xmx{HEAP_MB_MAX}m", *_QUICK.split(), "-Dzookeeper.jmx.log4j.disable=true", "-cp", jars]
        command = [java, *options, "org.apache.zookeeper.server.ZooKeeperServerMain", str(file)]
        self._start(Component(ZOOKEEPER, command, self._log_of(ZOOKEEPER), self._environment))
        self._await_zookeeper()

    def _await_zookeeper(self) -> None:
        answers = lambda: _says_its_version(self._zookeeper_port)  # noqa: E731
        wait_until("An answer of ZooKeeper", answers, [self._part(ZOOKEEPER)], START_S_MAX)

    def _master(self, name: str) -> Component:
        port, page_port = self._masters[name]
        places = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(page_port)]
        options = {
            "spark.master.rest.enabled": "false",
            "spark.worker.timeout": "15",  # seconds; a killed worker is missed at once
            **self._recovery(),
        }
        command = [self._spark_class, "org.apache.spark.deploy.master.Master", *places]
        return Component(name, command, self._log_of(name), self._with_options(options))

    def _recovery(self) -> dict[str, str]:
        if len(self._masters) == 1:
            folder = self._folder / "master"
            folder.mkdir(parents=True, exist_ok=True)
            return {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": str(folder)}
        url = f"{LOOPBACK}:{self._zookeeper_port}"
        return {"spark.deploy.recoveryMode": "ZOOKEEPER", "spark.deploy.zookeeper.url": url}

    def _start_worker(self) -> str:
        name, port = f"worker-{len(self._ports) + 1}", free_port()  # names of removed workers are not reused
        folder = self._folder / name
        places = ["--host", LOOPBACK, "--port", str(port), "--webui-port", "0", "--work-dir", str(folder / "work")]
        size = ["--cores", str(self._cores), "--memory", self._memory]
        command = [self._spark_class, "org.apache.spark.deploy.worker.Worker", *places, *size, self.address]
        environment = self._with_options({}) | {"SPARK_LOCAL_DIRS": str(folder / "local")}
        (folder / "local").mkdir(parents=True, exist_ok=True)
        self._ports[name] = port
        self._start(Component(name, command, self._log_of(name), environment))
        return name

    def _await_workers(self, names: Iterable[str]) -> None:
        wanted = {self._ports[name]: self._parts[name] for name in names}

        def known() -> bool:
            return wanted.keys() <= {int(worker["port"]) for worker in self._alive(self.leader())}

        if wanted:
            wait_until("A cluster that knows its workers", known, wanted.values(), START_S_MAX)

    def _alive(self, master: str | None) -> list[dict[str, Any]]:
        page = self._page(master) if master else None
        return [worker for worker in (page or {}).get("workers", []) if worker["state"] == "ALIVE"]

    def _page(self, master: str) -> dict[str, Any] | None:
        """The status of a master; None while it does not answer."""
        direct = build_opener(ProxyHandler({}))
        try:
            with direct.open(f"http://{LOOPBACK}:{self._masters[master][1]}/json/", timeout=ANSWER_S_MAX) as answer:
                return dict(json.load(answer))
        except (URLError, OSError, ValueError):
            return None

    @property
    def _spark_class(self) -> str:
        return self._environment["SPARK_HOME"] + "/bin/spark-class"

    def _with_options(self, options: dict[str, str]) -> dict[str, str]:
        """The environment of a master or worker with these Spark settings."""
        fixed = {"spark.port.maxRetries": "0"}  # a taken port is an error; Spark must not try the next one
        texts = [f"-D{name}={value}" for name, value in (fixed | options).items()]
        return self._environment | {"SPARK_DAEMON_JAVA_OPTS": " ".join([_QUICK, *texts])}

    def _log_of(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"


def check_worker_memory(text: str) -> None:
    """SettingInvalid for an invalid amount of memory, or too little for an executor."""
    found = _MEMORY.fullmatch(text)
    mb = int(found[1]) * (1_024 if found[2] == "g" else 1) if found else 0
    if mb < WORKER_MEMORY_MB_MIN:
        raise SettingInvalid(
            f"A worker with a memory of {text!r} has no room for an executor",
            next_step=f"Give it {WORKER_MEMORY_MB_MIN}m or more, like {WORKER_MEMORY}",
        )


def spark_home() -> Path:
    """The folder of PySpark, which contains Spark."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise SetupError("PySpark is not installed", next_step="Run `make setup`, or pip install 'stateside[spark]'")
    return Path(package.origin).parent


def _environment() -> dict[str, str]:
    """The environment of the cluster's parts: this process's, without foreign Spark settings.

    Executors inherit the environment from their worker, and Python workers from their executor, so all find the same
    packages.
    """
    foreign = ("SPARK_", "PYSPARK_", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) or name == "SPARK_LAUNCHER_OPTS"
    }
    return {
        **kept,
        **java_environment(),
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": f"{HEAP_MB_MAX}m",
        "PYTHONPATH": python_path(),
    }


def _says_its_version(port: int) -> bool:
    """Whether a ZooKeeper answers on this port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=ANSWER_S_MAX) as connection:
            connection.sendall(b"srvr")
            return connection.recv(100).startswith(b"Zookeeper version")
    except OSError:
        return False
