"""The live demo: a system that goes on until stopped, to watch, and to break by a key or by a button of its pages.

Months of events pass, some seconds each. Whoever watches kills a part, or takes the invoice store away; the story tells
what happened and how long answers were old. At the end of each month the auditor recomputes everything from the
journal, in a process of its own, and the scoreboard shows its verdict.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import termios
import threading
import time
import tty
import webbrowser
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stateside.billing.generator import EVEN_MICROS
from stateside.billing.invoicing.documents import documents_table
from stateside.core.clock import age_text
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.core.ports import LOOPBACK
from stateside.core.processes import SAFE_PATH, free_port
from stateside.testbed import faults
from stateside.testbed.component import Interrupts
from stateside.testbed.feeder import Load
from stateside.testbed.live_desk import LiveDesk
from stateside.testbed.producer import ProducerLoad
from stateside.testbed.run_folder import ReportFile, StageFolder
from stateside.testbed.system import START_S_MAX, JournalKind, System, SystemShape
from stateside.testbed.witness import FRESH_MS_MAX, Seen, Witness, whole_bill

MONTHS: Final = 480  # forty years: at 30 s a month, four hours
STORY_LINES: Final = 12
LOOK_S: Final = 0.25
LINE_S: Final = 5.0
AUDIT_S_MIN: Final = 5.0  # between two audits
QUIT: Final = "q"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings(Load):
    """The settings of a live demo. It ends after `end_s`, or when stopped."""

    customers: int = 300
    periods: int = MONTHS
    month_s: float = 30.0
    journal: JournalKind = "files"
    cluster: bool = False
    servers: int = 2
    port: int | None = None
    browser: bool = True
    end_s: float | None = None

    def shape(self) -> SystemShape:
        servers = tuple(f"replica-{number}" for number in range(1, self.servers + 1))
        return SystemShape(self.journal, self.cluster, servers=servers)


@dataclass(frozen=True, slots=True)
class Score:
    """The auditor's last verdict, and the bills of finished months that are not the generator's even sum."""

    events: int = 0
    lost: int = 0
    doubled: int = 0
    uneven: int = 0
    bills: int = 0
    periods: int = 0  # with a document
    broken: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.uneven or self.broken)

    def text(self) -> str:
        if not self.periods:
            return "no month has ended yet"
        told = f"{self.events:,} events / {self.lost} lost / {self.doubled} doubled / {self.uneven} uneven bills"
        return f"{told} of {self.bills:,}" + ("" if self.ok else "; IT DOES NOT ADD UP")


class Scoreboard:
    """Audits the folder in the background, once for every month that ends."""

    def __init__(self, layout: Layout) -> None:
        self.score = Score()
        self._layout, self._stop = layout, threading.Event()
        self._thread = threading.Thread(target=self._run, name="scoreboard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(AUDIT_S_MIN):
            with suppress(StatesideError, OSError):  # the store is away: its verdict comes later
                documents = documents_table(self._layout).read()
                if len(pc.unique(documents["period"])) > self.score.periods:
                    self._audit(documents)

    def _audit(self, documents: pa.Table) -> None:
        command = [sys.executable, "-m", "stateside", "audit", str(self._layout.root), "--json"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **SAFE_PATH}
        )
        while child.poll() is None and not self._stop.wait(LOOK_S):
            pass
        if child.poll() is None:
            child.kill()
        said = child.communicate()[0]
        with suppress(ValueError):  # it was stopped, or could not read what is away: the next month is audited again
            self.score = _score(json.loads(said), documents)


def _score(audited: Mapping[str, Any], documents: pa.Table) -> Score:
    found, amounts = audited["balance"], finished_bills(documents)
    broken = [sentence for verdict in audited["verdicts"] for sentence in verdict["sentences"]]
    return Score(
        events=audited["counts"]["events"],
        lost=found["events_lost"],
        doubled=found["events_doubled"] + found["invoices_doubled"],
        uneven=sum(amount != EVEN_MICROS for amount in amounts),
        bills=len(amounts),
        periods=len(pc.unique(documents["period"])),
        broken=tuple(broken[:3]),
    )


def finished_bills(documents: pa.Table) -> list[int]:
    """The amounts of all bills of finished periods, with their corrections.

    Late events come during the period after, so a customer's last period is not finished.
    """
    amounts = documents.group_by(["customer", "period_end"]).aggregate([("amount_micros", "sum")])
    last = documents.group_by("customer").aggregate([("period_end", "max")])
    joined = amounts.join(last, "customer")
    finished = joined.filter(pc.less(joined["period_end"], joined["period_end_max"]))
    return [int(amount) for amount in finished["amount_micros_sum"].to_pylist()]


@dataclass(slots=True)
class Action:
    """Something to do to the system: once, or there and back again (`back` is the label of the way back)."""

    key: str
    name: str
    label: str
    do: Callable[[], Callable[[], None] | None]  # returns the way back
    back: str = ""
    heal_s: float | None = None  # healed by itself after this time
    undo: Callable[[], None] | None = None

    def as_dict(self) -> dict[str, Any]:
        label = self.back if self.undo and self.back else self.label
        return {"key": self.key, "name": self.name, "label": label, "broken": self.undo is not None}


class Breaker:
    """The actions that the system's shape allows, and the story of what was done."""

    def __init__(self, system: System, tell: Callable[[str], None]) -> None:
        self._system, self._tell = system, tell
        self.actions = {each.name: each for each in self._fitting()}

    def _fitting(self) -> Iterator[Action]:
        system, shape, away_s = self._system, self._system.shape, faults.AWAY_S
        yield Action("d", "driver", "Kill Spark's driver", lambda: system.driver().kill())
        if shape.cluster:
            yield Action("w", "worker", "Kill a worker", lambda: faults.kill_worker(system).heal, heal_s=away_s)
            yield Action("m", "master", "Kill the master", lambda: faults.kill_master(system).heal, heal_s=away_s)
        if len(shape.servers) > 1:
            yield Action("r", "replica", "Kill a replica", lambda: system.parts[shape.servers[-1]].kill())
        if shape.journal == "kafka":
            yield Action("b", "broker", "Kill the broker", lambda: faults.kill_broker(system).heal, heal_s=away_s)
        store = "Take the invoice store away", "Bring the invoice store back"
        yield Action("i", "store", store[0], lambda: faults.move_tables(system).heal, store[1])
        yield Action("p", "pause", "Pause Spark", self._pause, "Wake Spark up")

    def _pause(self) -> Callable[[], None]:
        driver = self._system.driver()
        driver.pause()
        return driver.resume

    def act(self, name: str) -> None:
        """Carry an action out, or take it back; what is healed by itself is left alone until then."""
        action = self.actions.get(name)
        if action is None:
            return
        if action.undo is None:
            self._tell(action.label)
            action.undo = action.do()
            if action.undo is not None and action.heal_s is not None:
                threading.Timer(action.heal_s, self._take_back, [action]).start()
        elif action.heal_s is None:
            self._take_back(action)

    def _take_back(self, action: Action) -> None:
        undo = action.undo
        if undo is not None:
            with suppress(StatesideError):  # told by the part's own log; the next start heals it
                undo()
            action.undo = None
            self._tell(action.back or f"{action.name} is back")

    def mend_all(self) -> None:
        """Bring everything back that is away, before the system stops."""
        for action in self.actions.values():
            if action.heal_s is None:
                self._take_back(action)

    def by_key(self, key: str) -> str | None:
        return next((each.name for each in self.actions.values() if each.key == key), None)


class Story:
    """The last lines of what happened, and how long answers were old."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.lines: deque[str] = deque(maxlen=STORY_LINES)
        self._say, self._old_since_s = say, 0.0

    def tell(self, text: str) -> None:
        line = f"{datetime.now():%H:%M:%S}  {text}"
        self.lines.append(line)
        self._say(line)

    def look(self, age_ms: int | None) -> None:
        """Tell when answers become old, and when they are fresh again."""
        fresh = age_ms is not None and age_ms <= FRESH_MS_MAX
        if age_ms is not None and not fresh and not self._old_since_s:
            self._old_since_s = time.monotonic() - age_ms / 1_000
            self.tell("answers are getting old: they say so, and reads go on")
        elif fresh and self._old_since_s:
            self.tell(f"answers are fresh again, after {time.monotonic() - self._old_since_s:.0f} s")
            self._old_since_s = 0.0


class Keyboard:
    """Keys as they are pressed, if standard input is a terminal."""

    @contextmanager
    def listening(self) -> Iterator[Keyboard]:
        if not sys.stdin.isatty():
            yield self
            return
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        try:
            yield self
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def pressed(self) -> str:
        """The keys pressed since the last look."""
        found = ""
        while sys.stdin.isatty() and select.select([sys.stdin], [], [], 0)[0]:
            found += os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
        return found


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The outcome of a live demo that was stopped."""

    seconds: float
    score: Score
    requests: int
    failed: int
    story: Sequence[str]

    @property
    def ok(self) -> bool:
        return self.score.ok and not self.failed

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def text(self) -> str:
        return f"After {self.seconds:.0f} s: {self.score.text()}; {self.requests:,} requests, {self.failed} failed."


def run_live(
    settings: LiveSettings, folder: Path | None, console: Console, report_file: ReportFile | None = None
) -> LiveReport:
    """Run the live demo in a folder (by default a temporary one) until Ctrl-C, `q`, or its end.

    No process is left running in any case. A temporary folder is removed, unless an error occurred.
    """
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        if report_file:
            report_file.clear()
        url = f"http://{LOOPBACK}:{settings.port or free_port()}"
        console.print(f"{url}/demo", highlight=False, soft_wrap=True)
        place = stack.enter_context(StageFolder(folder, console))
        place.claim({"live": True, "customers": settings.customers, "seed": settings.seed})
        report = LiveDemo(settings, Layout(place.root), console, interrupts, url).play()
        place.kept = not report.ok
    console.print(report.text(), highlight=False, soft_wrap=True)
    if report_file:
        report_file.write(report)
    return report


class LiveDemo:
    """One live demo on one folder."""

    def __init__(
        self, settings: LiveSettings, layout: Layout, console: Console, interrupts: Interrupts, url: str
    ) -> None:
        self._settings, self._console, self._interrupts, self._url = settings, console, interrupts, url
        port = int(url.rpartition(":")[2])
        self._system = System(settings.shape(), layout.root, layout, interrupts, tell=self._tell, live_port=port)
        self._layout, self._desk = layout, LiveDesk.of(layout)
        self._story, self._scoreboard = Story(self._said), Scoreboard(layout)
        self._actions: list[dict[str, Any]] = []
        self._seen = Seen(time.monotonic())
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._began_s, self._line_s = time.monotonic(), 0.0

    def play(self) -> LiveReport:
        with ExitStack() as stack:
            system = stack.enter_context(self._system)
            self._seen = stack.enter_context(self._started(system)).seen
            breaker = Breaker(system, self._story.tell)
            keyboard = stack.enter_context(Keyboard().listening())
            if self._live:
                stack.enter_context(self._live)
            with suppress(KeyboardInterrupt):
                self._go_on(breaker, keyboard)
            breaker.mend_all()
            self._scoreboard.stop()
            return LiveReport(
                round(time.monotonic() - self._began_s, 1),
                self._scoreboard.score,
                self._seen.answered,
                self._seen.failed,
                list(self._story.lines),
            )

    @contextmanager
    def _started(self, system: System) -> Iterator[Witness]:
        """Start everything, and tell of it as it comes."""
        settings, tell = self._settings, self._story.tell
        tell(f"starting: a month takes {settings.month_s:g} s, {settings.customers:,} customers")
        system.start()
        if settings.browser and self._console.is_terminal and (os.environ.get("DISPLAY") or sys.platform == "darwin"):
            webbrowser.open(f"{self._url}/demo")
        system.wait("a running query", system.query_runs, START_S_MAX)
        tell("Spark runs")
        seconds = settings.month_s * settings.periods
        load = ProducerLoad(
            folder=str(self._layout.root),
            urls=system.urls,
            seconds=seconds,
            customers=settings.customers,
            periods=settings.periods,
            seed=settings.seed,
        )
        system.start_writer(load)
        system.desk.allow(1.0)
        tell(f"first bill, {time.monotonic() - self._began_s:.0f} s after the start: {self._url}/bill/c0")
        witness = Witness(system.urls, settings.customers, settings.seed, [whole_bill])
        witness.start()
        self._scoreboard.start()
        try:
            yield witness
        finally:
            witness.stop()
            self._scoreboard.stop()

    def _go_on(self, breaker: Breaker, keyboard: Keyboard) -> None:
        """Supervise, do what is asked for, and show everything, until the end."""
        end_s = None if self._settings.end_s is None else time.monotonic() + self._settings.end_s
        while end_s is None or time.monotonic() < end_s:
            self._system.supervise()
            pressed = keyboard.pressed()
            for name in [*(breaker.by_key(key) for key in pressed), *self._desk.taken()]:
                if name is not None:
                    breaker.act(name)
            if QUIT in pressed:
                return
            self._show(breaker)
            self._interrupts.pause(LOOK_S)

    def _show(self, breaker: Breaker) -> None:
        stamp, score = self._seen.stamp, self._scoreboard.score
        self._actions = [each.as_dict() for each in breaker.actions.values()]
        self._story.look(stamp["age_ms"] if stamp else None)
        self._publish()
        if self._live:
            self._live.update(self._picture(stamp), refresh=True)
        elif time.monotonic() - self._line_s >= LINE_S:
            self._line_s = time.monotonic()
            age = age_text(stamp["age_ms"]) if stamp else "–"
            self._tell(f"age {age}; {self._seen.answered:,} requests, {self._seen.failed} failed; {score.text()}")

    def _publish(self) -> None:
        """Show the pages the present state."""
        score = self._scoreboard.score
        self._desk.show(
            {
                "actions": self._actions,
                "score": {**asdict(score), "ok": score.ok, "text": score.text()},
                "requests": self._seen.answered,
                "failed": self._seen.failed,
                "story": list(self._story.lines),
            }
        )

    def _picture(self, stamp: Mapping[str, Any] | None) -> Group:
        seen, facts = self._seen, Table.grid(padding=(0, 2))
        age = age_text(stamp["age_ms"]) if stamp else "–"
        for name, value in (
            ("pages", f"{self._url}/demo"),
            ("answers", f"{seen.answered:,}, {seen.failed} failed, newest {age} old"),
            ("watermark", str(stamp["watermark"] if stamp else "–")),
            ("scoreboard", self._scoreboard.score.text()),
        ):
            facts.add_row(Text(name, style="dim"), value)
        menu = "   ".join(f"[{each['key']}] {each['label']}" for each in self._actions)
        told = Text("\n".join(self._story.lines), style="dim")
        return Group(Text("stateside demo --live", style="bold"), facts, Text(f"{menu}   [q] quit", style="cyan"), told)

    def _said(self, line: str) -> None:
        self._tell(line)
        self._publish()

    def _tell(self, text: str) -> None:
        if not (self._live and self._live.is_started):
            self._console.print(text, highlight=False, soft_wrap=True)
