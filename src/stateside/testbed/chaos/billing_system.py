"""The system of a scenario: billing with journal, Spark, two replicas and a producer, as processes.

    DESK/                       files between the parts of the scenario (`load`)
    DESK/logs/PART.log          the log of each part
    DESK/application/           the application's folder
    DESK/second/                the folder of the second server: links to the first, and a replica of its own
    DESK/kafka/, DESK/cluster/  where the shape has them

An ended part is restarted at once, as by a service manager; a part of the cluster unless a fault holds it down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from stateside.billing.model import VIEW
from stateside.core.errors import PipelineFailed, StatesideError
from stateside.core.layout import Layout
from stateside.core.ports import LOOPBACK
from stateside.core.positions import Position
from stateside.core.processes import free_port
from stateside.journal import open_journal
from stateside.leadership import standing
from stateside.serving.clients import Client
from stateside.testbed.chaos.disk import mounted
from stateside.testbed.chaos.load import ChaosLoad, Desk
from stateside.testbed.chaos.witness import FRESH_MS_MAX
from stateside.testbed.component import Interrupts, Supervised
from stateside.testbed.system import Ground, JournalKind, prepared
from stateside.views.heartbeat import Heartbeat

Guarantee = Literal["exactly-once", "at-least-once"]
Span = tuple[float, float]  # of time.monotonic()

START_S_MAX = 180.0
LOOK_S = 0.1
LEASE_S = 4.0  # short, to keep scenarios short
PROBE_S_MAX = 2.0
VIEW_FAILED = f"view {VIEW} failed"  # a driver logs this before it restarts the query
CRASHES = ("Traceback (most recent call last)", "was ended by SIG", "Fatal Python error")  # in a server's log
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
    "marks",
)


@dataclass(frozen=True, slots=True)
class SystemShape:
    """The composition of a system: its journal, and whether it has a Spark cluster, a standby driver, a small disk."""

    journal: JournalKind = "files"
    cluster: bool = False
    standby: bool = False
    small_disk: bool = False


class System:
    """The running system, open to faults, and supervised during all waits."""

    def __init__(
        self,
        shape: SystemShape,
        folder: Path,
        *,
        guarantee: Guarantee,
        interrupts: Interrupts,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.shape, self.desk = shape, Desk(folder)
        self.layout = Layout(folder / "application")
        self.replicas = (self.layout, Layout(folder / "second"))  # one folder per server
        self.urls: tuple[str, ...] = ()  # of the servers
        self.parts: dict[str, Supervised] = {}
        self.held: set[str] = set()  # parts of the cluster not to be restarted for now
        self._guarantee, self._interrupts, self._tell = guarantee, interrupts, tell
        self._cleanup = ExitStack()

    def __enter__(self) -> System:
        shape = self.shape
        with ExitStack() as stack:
            if shape.small_disk:
                stack.enter_context(mounted(self.layout.root))
            self.layout.root.mkdir(parents=True, exist_ok=True)
            with self._interrupts.at_once():  # a broker's jars may have to be fetched first
                self.ground = stack.enter_context(self._prepared())
            open_journal(self.layout.journal).writer().close()  # a driver does not begin without a journal
            self.journal = open_journal(self.layout.journal).log()
            stack.callback(self._stop_parts)
            self._start_drivers()
            self._start_servers()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cleanup.close()

    def await_driver(self) -> None:
        """Wait until Spark runs the view."""
        self.wait("a running query", self._query_runs, START_S_MAX)

    def start_writer(self, load: ChaosLoad) -> None:
        """Start the producer, and wait until every replica has some of its events."""
        self.desk.lay(load)
        self._start("writer", [str(self.desk.folder)], module="stateside.testbed.chaos.producer")
        self.wait("a first batch in every replica", lambda: self.answers_cover(Position.of({})), START_S_MAX)

    def supervise(self) -> None:
        """Restart ended parts. The writer ends by itself when everything is done."""
        self.ground.supervise(self.held)
        for name, part in self.parts.items():
            if not (name == "writer" and self.desk.drained()):
                part.supervise()

    def pause(self, seconds: float) -> None:
        """Sleep for a moment, unsupervised; KeyboardInterrupt after a signal."""
        self._interrupts.pause(seconds)

    def let_pass(self, seconds: float) -> None:
        """Let time pass, supervised."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.supervise()
            self.pause(min(LOOK_S, left_s))

    def wait(self, what: str, done: Callable[[], bool], seconds_max: float) -> None:
        """Wait until `done()`; PipelineFailed after `seconds_max`."""
        until_s = time.monotonic() + seconds_max
        while not done():
            self.supervise()
            if time.monotonic() >= until_s:
                raise PipelineFailed(
                    f"After {seconds_max:.0f} s there is not {what}",
                    where=str(self.desk.folder / "logs"),
                    next_step=f"The driver's last words: {self.driver().child.last_words()}",
                )
            self.pause(LOOK_S)

    def driver(self) -> Supervised:
        """The driver that runs the view: the leader, where there are standbys."""
        told = standing(self.layout.root, 0) if self.shape.standby else None
        leader = (told or {}).get("leader") or {}
        return self.parts.get(leader.get("identity", ""), self.parts["driver-1"])

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
        ended = (part for part in self.parts.values() if _gone(part))
        told += [f"{part.name} is not running at the end: {part.last_error()}" for part in ended]
        told += self.ground.unexplained(self.held)
        for number, url in enumerate(self.urls, 1):
            told += _failures_of(self.parts[f"replica-{number}"], unreached.get(url, ()), faults)
        for name, part in self.parts.items():
            if name.startswith("driver-") and not fails_view and (times := part.log_text().count(VIEW_FAILED)):
                told.append(f"The view failed {times} times in {name}, and nothing was done to it: {part.log}")
        return told

    def heartbeat(self) -> Heartbeat | None:
        return Heartbeat.load(self.layout.view(VIEW).heartbeat)

    def answers_cover(self, floor: Position, watermark_us: int = 0) -> bool:
        """Whether every replica answers freshly and covers this position and watermark."""
        return all(_answers(url, floor, watermark_us) for url in self.urls)

    def _prepared(self) -> AbstractContextManager[Ground]:
        shape = self.shape
        return prepared(self.layout, shape.journal, cluster=shape.cluster, tell=self._tell, folder=self.desk.folder)

    def _query_runs(self) -> bool:
        ended = [part for name, part in self.parts.items() if part.restarts]
        if ended:
            raise PipelineFailed(
                f"The {ended[0].name} ended before anything was done to it: {ended[0].last_error()}",
                where=str(ended[0].log),
            )
        heartbeat = self.heartbeat()
        return heartbeat is not None and heartbeat.state in ("running", "idle")

    def _start_drivers(self) -> None:
        for number in range(1, 3 if self.shape.standby else 2):
            name = f"driver-{number}"
            flags = list(self.ground.flags)
            if self.shape.standby:
                flags += ["--standby", "--standby-scope", "machine", "--identity", name, "--lease-s", f"{LEASE_S:g}"]
            self._start(name, ["run", _application(self.ground, self._guarantee), *flags, "--dir", self._root])

    def _start_servers(self) -> None:
        _link(self.layout, self.replicas[1])
        ports = [free_port() for _ in self.replicas]  # drawn last: earlier parts have drawn theirs
        self.urls = tuple(f"http://{LOOPBACK}:{port}" for port in ports)
        for number, (replica, port) in enumerate(zip(self.replicas, ports, strict=True), 1):
            told = ["--announce", str(self.desk.folder / "announced"), "--name", f"replica-{number}"]
            self._start(f"replica-{number}", ["serve", "--dir", str(replica.root), "--port", str(port), *told])

    @property
    def _root(self) -> str:
        return str(self.layout.root)

    def _start(self, name: str, arguments: list[str], *, module: str = "stateside") -> None:
        self.parts[name] = Supervised(name, arguments, self.desk.folder / "logs" / f"{name}.log", module=module)

    def _stop_parts(self) -> None:
        while self.parts:
            self.parts.popitem()[1].stop()


def _application(ground: Ground, guarantee: Guarantee) -> str:
    return ground.application if guarantee == "exactly-once" else _WEAK


def _gone(part: Supervised) -> bool:
    """Whether the part has ended; a writer ends normally when everything is done."""
    code = part.child.returncode()
    return code is not None and not (part.name == "writer" and code == 0)


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


def _answers(url: str, floor: Position, watermark_us: int) -> bool:
    try:
        with Client(url, direct=True, deadline_s=PROBE_S_MAX) as client:
            answer = client.rows(VIEW, "c0", source="live", min_position=floor if floor.parts else None, wait_ms=200)
    except StatesideError:
        return False
    return answer.stamp.age_ms <= FRESH_MS_MAX and answer.stamp.watermark_us >= watermark_us
