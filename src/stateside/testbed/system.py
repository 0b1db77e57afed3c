"""The system of a demo or a chaos scenario: billing with its journal, Spark and replicas, as supervised processes.

    FOLDER/logs/PART.log            the log of each part
    FOLDER/kafka/, FOLDER/cluster/  where the shape has them
    FOLDER/second/                  a second server's folder: links to the application's, and a replica of its own
    FOLDER/                         files that steer a producer (`producer`)

The application's folder is FOLDER itself in a demo, and FOLDER/application in a chaos scenario. An ended part is
restarted at once, as by a service manager; a part of the cluster unless a fault holds it down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stateside.billing.model import VIEW
from stateside.core.errors import PipelineFailed, StatesideError
from stateside.core.layout import Layout
from stateside.core.ports import LOOPBACK
from stateside.core.positions import Position
from stateside.core.processes import free_port
from stateside.journal import open_journal
from stateside.journal.backends.kafka import KafkaJournal, create_topic
from stateside.journal.backends.kafka.topic_folder import place
from stateside.leadership import standing
from stateside.serving.clients import Client
from stateside.serving.stamp import Stamp
from stateside.testbed.broker import Broker
from stateside.testbed.cluster import Cluster
from stateside.testbed.component import Interrupts, Supervised
from stateside.testbed.disk import mounted
from stateside.testbed.producer import Desk, ProducerLoad
from stateside.testbed.witness import FRESH_MS_MAX
from stateside.views.heartbeat import Heartbeat

Guarantee = Literal["exactly-once", "at-least-once"]
JournalKind = Literal["files", "kafka"]
Span = tuple[float, float]  # of time.monotonic()

START_S_MAX = 180.0
LOOK_S = 0.1
LEASE_S = 4.0  # short, to keep scenarios short
PROBE_S_MAX = 2.0
TOPIC = "billing"
VIEW_FAILED = f"view {VIEW} failed"  # a driver logs this before it restarts the query
CRASHES = ("Traceback (most recent call last)", "was ended by SIG", "Fatal Python error")  # in a server's log
_ON_FILES = "stateside.billing.pipeline:app"
_ON_KAFKA = "stateside.billing.pipeline.on_kafka:app"
_WEAK = "stateside.billing.pipeline.at_least_once:app"
_SHARED = ("journal", "tables", "lease", "keys.json")
_SHARED_OF_VIEW = (
    "checkpoint",
    "catalogue.json",
    "steps.json",
    "plans.json",
    "book",
    "reports",
    "plan.txt",
    "heartbeat.json",
    "progress.jsonl",
    "totals.json",
    "marks",
)


@dataclass(frozen=True, slots=True)
class SystemShape:
    """The composition of a system: its journal, a Spark cluster or a local Spark, its drivers and servers by name.

    All drivers but one stand by. `small_disk`: the application's folder is a disk of its own.
    """

    journal: JournalKind = "files"
    cluster: bool = False
    drivers: tuple[str, ...] = ("driver-1",)
    servers: tuple[str, ...] = ("replica-1", "replica-2")
    small_disk: bool = False

    @property
    def standby(self) -> bool:
        return len(self.drivers) > 1


class Ground:
    """The application to run and its flags; the broker and the cluster, where there are any."""

    def __init__(self, application: str, cluster: Cluster | None, broker: Broker | None = None) -> None:
        self.application = application
        self.flags = ("--master", cluster.address) if cluster else ()
        self.restarts = 0
        self.cluster, self.broker = cluster, broker

    def supervise(self, held: Collection[str] = ()) -> None:
        """Restart ended parts of the cluster, except parts that a fault holds down."""
        if self.cluster is None:
            return
        for name in (each for each in self.cluster.ended() if each not in held):
            self.cluster.restart(name)
            self.restarts += 1

    def unexplained(self, held: Collection[str] = ()) -> list[str]:
        """Parts that ended without a fault."""
        told = [f"Parts of the cluster ended {self.restarts} times by themselves"] if self.restarts else []
        ended = [] if self.cluster is None else [name for name in self.cluster.ended() if name not in held]
        ended += ["the broker"] if self.broker is not None and not self.broker.runs() else []
        return told + [f"{name} is not running at the end" for name in ended]


class System:
    """The running system, supervised during all waits."""

    def __init__(
        self,
        shape: SystemShape,
        folder: Path,
        layout: Layout,
        interrupts: Interrupts,
        *,
        guarantee: Guarantee = "exactly-once",
        tell: Callable[[str], None] = lambda text: None,
        live_port: int | None = None,
    ) -> None:
        """With `live_port` the first server listens there, and has the page of a live demo."""
        self._live_port = live_port
        self.shape, self.desk, self.layout, self.interrupts = shape, Desk(folder), layout, interrupts
        self.replicas = (layout, Layout(folder / "second"))[: len(shape.servers)]  # one folder per server
        self.urls: tuple[str, ...] = ()  # of the servers
        self.parts: dict[str, Supervised] = {}
        self.held: set[str] = set()  # parts of the cluster not to be restarted for now
        self._guarantee, self._tell = guarantee, tell
        self._cleanup = ExitStack()

    def __enter__(self) -> System:
        """Prepare the journal and Spark's cluster; `start` starts the other parts."""
        shape, layout = self.shape, self.layout
        with ExitStack() as stack:
            if shape.small_disk:
                stack.enter_context(mounted(layout.root))
            layout.root.mkdir(parents=True, exist_ok=True)
            with self.interrupts.at_once():  # a broker's jars may have to be fetched first
                ground = prepared(
                    layout, shape.journal, cluster=shape.cluster, tell=self._tell, folder=self.desk.folder
                )
                self.ground = stack.enter_context(ground)
            open_journal(layout.journal).writer().close()  # a driver does not begin without a journal
            self.journal = open_journal(layout.journal).log()
            stack.callback(self._stop_parts)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def start(self) -> None:
        """Start the drivers and the servers, without waiting."""
        self._heartbeat_before = self.heartbeat()
        self._start_drivers()
        self._start_servers()

    def start_writer(self, load: ProducerLoad) -> None:
        """Start the producer, and wait until every replica has some of its events."""
        self.desk.lay(load)
        self._start("writer", [str(self.desk.folder)], module="stateside.testbed.producer", finite=True)
        self.wait("a first batch in every replica", lambda: self.answers_cover(Position.of({})), START_S_MAX)

    def supervise(self) -> None:
        """Restart ended parts."""
        self.ground.supervise(self.held)
        for part in self.parts.values():
            part.supervise()

    def pause(self, seconds: float) -> None:
        """Sleep for a moment, unsupervised; KeyboardInterrupt after a signal."""
        self.interrupts.pause(seconds)

    def let_pass(self, seconds: float) -> None:
        """Let time pass, supervised."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.supervise()
            self.pause(min(LOOK_S, left_s))

    def wait(
        self,
        what: str,
        done: Callable[[], bool],
        seconds_max: float,
        *,
        progress: Callable[[], object] = lambda: None,
        show: Callable[[], None] = lambda: None,
        look_s: float = LOOK_S,
    ) -> None:
        """Wait until `done()`; PipelineFailed after `seconds_max` without a change of `progress()`."""
        standstill = Standstill(time.monotonic())
        while not done():
            self.supervise()
            show()
            if standstill.lasted_s(progress(), time.monotonic()) >= seconds_max:
                words = "; ".join(f"{name}: {self.parts[name].child.tail(3) or 'none'}" for name in self.shape.drivers)
                raise PipelineFailed(
                    f"After {seconds_max:.0f} s there is not {what}",
                    where=str(self.desk.folder / "logs"),
                    next_step=f"The last words of {words}",
                )
            self.pause(look_s)

    def query_runs(self) -> bool:
        """Whether Spark runs the view."""
        return runs(self.heartbeat(), self._heartbeat_before)

    def driver(self) -> Supervised:
        """The driver that runs the view; PipelineFailed between two leaders."""
        driver = self.leader() if self.shape.standby else self.parts[self.shape.drivers[0]]
        if driver is None:
            logs = str(self.desk.folder / "logs")
            raise PipelineFailed(
                "None of the drivers leads", where=logs, next_step="Read the logs of the drivers there"
            )
        return driver

    def leader(self) -> Supervised | None:
        """The leading one of several drivers; None between two leaders."""
        leader = (standing(self.layout.root, 0) or {"leader": None})["leader"]
        return None if leader is None else self.parts[leader["identity"]]

    def unexplained(
        self, unreached: Mapping[str, Sequence[float]], faults: Sequence[Span], *, fails_view: bool
    ) -> list[str]:
        """Failures of parts that no fault explains: ends, missing replies, crashes inside.

        `unreached` has the times at which a server did not reply, by URL; a time is explained inside one of the
        `faults`, from its start to the recovery, in which the server was killed. `fails_view`: one of the faults may
        make the view fail, while its driver continues.
        """
        told = [
            f"{name} ended {part.restarts - part.caused} times by itself: {part.last_error()}"
            for name, part in self.parts.items()
            if part.restarts > part.caused
        ]
        ended = (part for part in self.parts.values() if part.gone())
        told += [f"{part.name} is not running at the end: {part.last_error()}" for part in ended]
        told += self.ground.unexplained(self.held)
        for name, url in zip(self.shape.servers, self.urls, strict=True):
            told += _failures_of(self.parts[name], unreached.get(url, ()), faults)
        for part in [] if fails_view else [self.parts[name] for name in self.shape.drivers]:
            if times := part.log_text().count(VIEW_FAILED):
                told.append(f"The view failed {times} times in {part.name}, and nothing was done to it: {part.log}")
        return told

    def heartbeat(self) -> Heartbeat | None:
        return Heartbeat.load(self.layout.view(VIEW).heartbeat)

    def answers_cover(self, floor: Position, watermark_us: int = 0) -> bool:
        """Whether every replica answers freshly and covers this position and watermark."""
        return all(
            stamp is not None and stamp.age_ms <= FRESH_MS_MAX and stamp.watermark_us >= watermark_us
            for stamp in (covering_stamp(url, floor) for url in self.urls)
        )

    def _start_drivers(self) -> None:
        application = self.ground.application if self._guarantee == "exactly-once" else _WEAK
        for name in self.shape.drivers:
            flags = list(self.ground.flags)
            if self.shape.standby:
                flags += ["--standby", "--standby-scope", "machine", "--identity", name, "--lease-s", f"{LEASE_S:g}"]
            self._start(name, ["run", application, *flags, "--dir", str(self.layout.root)])

    def _start_servers(self) -> None:
        names = self.shape.servers
        for second in self.replicas[1:]:
            _link(self.layout, second)
        ports = [free_port() for _ in names]  # drawn last: earlier parts have drawn theirs
        ports[0] = self._live_port or ports[0]
        self.urls = tuple(f"http://{LOOPBACK}:{port}" for port in ports)
        for name, replica, port in zip(names, self.replicas, ports, strict=True):
            told = ["--announce", str(self.desk.folder / "announced"), "--name", name] if len(names) > 1 else []
            told += ["--live"] if port == self._live_port else []
            self._start(name, ["serve", "--dir", str(replica.root), "--port", str(port), *told])

    def _start(self, name: str, arguments: list[str], *, module: str = "stateside", finite: bool = False) -> None:
        log = self.desk.folder / "logs" / f"{name}.log"
        self.parts[name] = Supervised(name, arguments, log, module=module, finite=finite)

    def _stop_parts(self) -> None:
        while self.parts:
            self.parts.popitem()[1].stop()


class Standstill:
    """Measures how long an observed value has been unchanged."""

    def __init__(self, now_s: float) -> None:
        self._value: object = None
        self._since_s = now_s

    def lasted_s(self, value: object, now_s: float) -> float:
        """The time since the last change, given the present value."""
        if value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s


def runs(heartbeat: Heartbeat | None, before: Heartbeat | None) -> bool:
    """Whether a pipeline runs, by its heartbeat; `before` is the last heartbeat of an earlier, perhaps killed, run."""
    return heartbeat is not None and heartbeat.state in ("running", "idle") and heartbeat != before


def covering_stamp(url: str, floor: Position) -> Stamp | None:
    """The stamp of a server's answer that covers a position; None if the server gives no such answer soon."""
    try:
        with Client(url, direct=True, deadline_s=PROBE_S_MAX) as client:
            asked = client.rows(VIEW, "c0", source="live", min_position=floor if floor.parts else None, wait_ms=200)
            return asked.stamp
    except StatesideError:
        return None


def _failures_of(server: Supervised, unreached: Sequence[float], faults: Sequence[Span]) -> list[str]:
    down = [(first, last) for first, last in faults if any(first <= killed <= last for killed in server.killed_s)]
    silent = [at for at in unreached if not any(first <= at <= last for first, last in down)]
    told = [f"{server.name} did not reply {len(silent)} times while nobody had killed it"] if silent else []
    counts = {crash: server.log_text().count(crash) for crash in CRASHES}
    told += [f"The log of {server.name} has {what!r} {n} times: {server.log}" for what, n in counts.items() if n]
    return told


def _link(layout: Layout, second: Layout) -> None:
    """Make a folder that shows a server the same application, with a replica of its own.

    Links may point to missing files at first.
    """
    view = second.view(VIEW)
    view.root.mkdir(parents=True)
    for name in _SHARED:
        (second.root / name).symlink_to(layout.root / name)
    for name in _SHARED_OF_VIEW:
        (view.root / name).symlink_to(layout.view(VIEW).root / name)


@contextmanager
def prepared(
    layout: Layout, journal: JournalKind, *, cluster: bool, tell: Callable[[str], None], folder: Path
) -> Iterator[Ground]:
    """Start the broker and cluster in a folder, which may have those of an earlier demo, and stop them at the end."""
    with ExitStack() as stack:
        broker = None
        if journal == "kafka":
            tell("Starting a Kafka broker …")
            broker = stack.enter_context(Broker(folder / "kafka"))
            _have_topic(layout, broker)
            tell(f"The journal is the topic {TOPIC} at {broker.address}.")
        running = stack.enter_context(_cluster(folder / "cluster", tell)) if cluster else None
        yield Ground(_ON_KAFKA if journal == "kafka" else _ON_FILES, running, broker)


@contextmanager
def _cluster(folder: Path, tell: Callable[[str], None]) -> Iterator[Cluster]:
    tell("Starting a Spark cluster …")
    with Cluster(folder) as running:
        masters, workers = (sum(name.startswith(kind) for name in running.parts) for kind in ("master", "worker"))
        tell(f"Spark runs on {workers} workers with {masters} masters, of which one leads: {running.address}.")
        yield running


def _have_topic(layout: Layout, broker: Broker) -> None:
    """Make the topic the folder's journal, at the broker's present address."""
    topic = place(layout.journal, f"kafka://{broker.address}/{TOPIC}")
    with KafkaJournal(topic) as found:
        if found.id() is None:
            create_topic(topic, partitions=1)
