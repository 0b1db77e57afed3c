"""The demo's run: starts the parts as processes, replays the months, waits for the end, and audits everything."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from stateside.billing.audit import audit, live_rows
from stateside.billing.generator import Generator, Shares
from stateside.billing.invoicing.documents import dead_letters_table, documents_table
from stateside.billing.model import GRACE_US, VIEW
from stateside.core.errors import PipelineFailed, StatesideError
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import free_port
from stateside.core.storage import write_atomically
from stateside.journal import open_journal
from stateside.serving.clients import Client
from stateside.serving.stamp import parse_time
from stateside.testbed.component import Interrupts, Supervised
from stateside.testbed.demo.bill_client import BillClient, bill_path
from stateside.testbed.demo.demo_report import NAME, DemoReport, snapshot
from stateside.testbed.demo.display import Display, DisplayState, DocumentCounts
from stateside.testbed.demo_folder import ReportFile, StageFolder
from stateside.testbed.feeder import Feeder
from stateside.testbed.proof import DemoOutcome, differences
from stateside.testbed.system import JournalKind, prepared
from stateside.views.heartbeat import Heartbeat


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


START_S_MAX = 900.0  # Spark takes 10 s on a quiet machine, and minutes on a busy one
STANDSTILL_S_MAX = 240.0  # without a new batch
LOOK_S = 0.25
BILLS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings of a demo. A folder's first demo decides; later ones must agree on all `fixed` settings."""

    seconds: float = 45.0
    customers: int = 1_000
    events_per_period: int = 20
    periods: int = 3
    seed: int = 1
    late_share: float = 0.03
    duplicate_share: float = 0.01
    bad_share: float = 0.01
    journal: JournalKind = "files"
    cluster: bool = False

    def generator(self) -> Generator:
        shares = Shares(late=self.late_share, duplicate=self.duplicate_share, bad=self.bad_share)
        return Generator(self.seed, self.customers, self.events_per_period, self.periods, shares)

    def fixed(self) -> dict[str, Any]:
        """All settings but `seconds` and `cluster`. `journal` is left out for files, which older folders imply."""
        free = {"seconds", "cluster", *(("journal",) if self.journal == "files" else ())}
        return {name: value for name, value in asdict(self).items() if name not in free}


def run_demo(
    settings: DemoSettings,
    folder: Path | None,
    console: Console,
    *,
    report_file: ReportFile | None = None,
    keep: bool = False,
) -> DemoReport:
    """Run the whole system in a folder (by default a temporary one) and report, also to a file if given.

    `keep` continues serving after the report, until Ctrl-C. No process is left running in any case. A temporary folder
    is removed, unless an error occurred.
    """
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        if report_file:
            report_file.clear()
        place = stack.enter_context(StageFolder(folder, console))
        place.claim(settings.fixed())
        console.print(_opening(settings, place), highlight=False, soft_wrap=True)
        demo = stack.enter_context(Demo(settings, Layout(place.root), console, interrupts))
        report = demo.play()
        place.kept = not report.ok
        console.print("\n".join(report.lines()), highlight=False, soft_wrap=True)
        snapshot_file = _beside_others() if place.temporary else place.root / NAME
        demo.write_snapshot(report, snapshot_file)
        console.print(f"To look at: {snapshot_file.as_uri()}", highlight=False, soft_wrap=True)
        if report_file:
            report_file.write(report)
        if keep:
            demo.keep_serving()
        return report


def _beside_others() -> Path:
    """The snapshot's file in the system's temporary folder, per user: it must outlive a temporary demo folder."""
    name = Path(NAME)
    return Path(tempfile.gettempdir()) / f"{name.stem}.{os.getuid()}{name.suffix}"


def _opening(settings: DemoSettings, place: StageFolder) -> str:
    until = " until the end" if place.temporary else ""
    return (
        f"Demo: {settings.customers:,} customers telephone through compressed months for {settings.seconds:g} s, are "
        f"billed live, and then every sum is checked. Everything is in {place.root}{until}."
    )


class Demo:
    """One run of the demo on one folder."""

    def __init__(self, settings: DemoSettings, layout: Layout, console: Console, interrupts: Interrupts) -> None:
        self._settings = settings
        self._layout = layout
        self._console = console
        self._interrupts = interrupts
        self._cleanup = ExitStack()
        self._generator = settings.generator()
        self._documents = DocumentCounts(documents_table(layout))
        self._dead_letters = dead_letters_table(layout)
        self._heartbeat_before = self._heartbeat()

    def __enter__(self) -> Demo:
        with ExitStack() as stack:
            port = free_port()
            self._url = f"http://127.0.0.1:{port}"
            self._asker = BillClient(self._url, self._settings.customers, self._settings.seed)
            with self._interrupts.at_once():  # reads an earlier demo's journal, which may take long
                self._ground = stack.enter_context(
                    prepared(self._layout, self._settings.journal, cluster=self._settings.cluster, tell=self._tell)
                )
                self._journal = open_journal(self._layout.journal).log()
                self._feeder = Feeder(self._generator, self._layout, self._settings.seconds, self._watermark_us)
            stack.callback(self._feeder.close)
            self._pipeline = self._start(stack, "pipeline", "run", self._ground.application, *self._ground.flags)
            self._server = self._start(stack, "server", "serve", "--port", str(port))
            stack.callback(self._asker.stop)
            self._client = stack.enter_context(Client(self._url))
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def play(self) -> DemoReport:
        """Replay the months, wait until all events are processed, and audit."""
        began_s = time.monotonic()
        with Display(self._console) as display:
            self._wait("starting Spark", display, self._spark_runs, START_S_MAX)
            receipt = self._feeder.nudge()
            self._wait("first batch", display, lambda: self._asker.wait_until_ready(receipt, 0.2), START_S_MAX)
            self._asker.start()
            self._feeder.start()
            self._let_pass(display)
            self._feeder.stop()
            self._restarts_before_draining = self._pipeline.restarts
            self._wait("draining", display, self._drained, STANDSTILL_S_MAX, share=lambda: 1.0)
            self._asker.stop()
            return self._report(time.monotonic() - began_s, display)

    def write_snapshot(self, report: DemoReport, path: Path) -> None:
        """Write the present content of the pages to a file."""
        periods, status = self._client.get("/v1/periods"), self._client.get("/v1/status")
        batches = next(each["batches"] for each in status["views"] if each["view"] == VIEW)
        bill = self._client.get(bill_path("c0"))
        content = snapshot(report.as_dict(), report.lines(), periods["periods"], bill, batches)
        write_atomically(path, content.encode())

    def keep_serving(self) -> None:
        """Continue serving until Ctrl-C, the normal end here."""
        pages = {"My bill": "/bill/c0", "Business": "/business", "Control room": "/control", "Views": "/views"}
        shown = "\n".join(f"{title:<13} {self._url}{address}" for title, address in pages.items())
        self._console.print(shown, highlight=False, soft_wrap=True)
        self._console.print(f"Serving {self._url}{bill_path('c0')} until Ctrl-C", highlight=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            while True:
                self._interrupts.pause(LOOK_S)
                self._supervise()

    def _start(self, stack: ExitStack, name: str, *arguments: str) -> Supervised:
        log = self._layout.root / "logs" / f"{name}.log"
        part = Supervised(name, [*arguments, "--dir", str(self._layout.root)], log)
        stack.callback(part.stop)
        return part

    def _tell(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _supervise(self) -> None:
        self._ground.supervise()
        self._pipeline.supervise()
        self._server.supervise()

    def _spark_runs(self) -> bool:
        return runs(self._heartbeat(), self._heartbeat_before)

    def _heartbeat(self) -> Heartbeat | None:
        return Heartbeat.load(self._layout.view(VIEW).heartbeat)

    def _let_pass(self, display: Display) -> None:
        """Wait for the feeder. The feeder waits for the pipeline, which may restart again and again without success."""
        self._wait(
            "months pass", display, lambda: self._feeder.done, STANDSTILL_S_MAX, share=lambda: self._feeder.share_done
        )

    def _wait(
        self,
        phase: str,
        display: Display,
        done: Callable[[], bool],
        standstill_s_max: float,
        share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Wait until `done()`; PipelineFailed if no new batch comes for `standstill_s_max`."""
        standstill = Standstill(time.monotonic())
        while not done():
            self._supervise()
            display.show(self._moment(phase, share()))
            where = (self._asker.stamp or {}).get("batch")
            if standstill.lasted_s(where, time.monotonic()) >= standstill_s_max:
                raise self._stuck(phase, standstill_s_max)
            self._interrupts.pause(LOOK_S)

    def _stuck(self, phase: str, seconds: float) -> PipelineFailed:
        return PipelineFailed(
            f"The demo got stuck at {phase!r} for {seconds:.0f} s",
            where=str(self._layout.root / "logs"),
            next_step=f"The pipeline's last words: {self._pipeline.child.tail(3) or 'none'}",
        )

    def _drained(self) -> bool:
        """Whether the last batch has read the whole journal, under the resulting watermark.

        A restarted query does not run a due batch without data (pinned in `tests/semantics`): one more event makes it
        run.
        """
        if self._pipeline.restarts > self._restarts_before_draining:
            self._restarts_before_draining = self._pipeline.restarts
            self._feeder.nudge()
        watermark_us = self._feeder.event_time_us_max // 1_000 * 1_000 - GRACE_US
        stamp = self._asker.stamp
        if stamp is None:
            return False
        covers = Position.parse(stamp["position"]).covers(self._journal.end())
        return covers and self._watermark_us() >= watermark_us

    def _watermark_us(self) -> int:
        """The watermark of the last answer."""
        stamp = self._asker.stamp
        return parse_time(stamp["watermark"]) if stamp else 0

    def _moment(self, phase: str, share_done: float) -> DisplayState:
        stamp = self._asker.stamp
        bills = self._some_bills() if stamp else []
        documents = self._documents.look()
        return DisplayState(
            phase=phase,
            share_done=share_done,
            events=self._feeder.fed,
            stamp=stamp,
            lag_events=self._feeder.end.events() - (Position.parse(stamp["position"]).events() if stamp else 0),
            open_periods=sorted(
                {one["period"] for bill in bills for one in bill["periods"] if one["state"] == "draft"}
            ),
            sealed_periods=documents.periods,
            invoices=documents.invoices,
            notes=documents.notes,
            dead_letters=self._dead_letters.count(),
            duplicates=self._feeder.fates["duplicate"],
            requests=self._asker.latencies_ms.count,
            failed=self._asker.failed,
            restarts=self._pipeline.restarts,
            bills=bills,
        )

    def _some_bills(self) -> list[dict[str, Any]]:
        try:
            return [self._client.get(bill_path(f"c{number}")) for number in range(BILLS_SHOWN)]
        except StatesideError:  # the bill client counts failures; the display shows what is available
            return []

    def _report(self, seconds: float, display: Display) -> DemoReport:
        rows = self._all_rows(display)
        display.show(self._moment("recomputing every bill from the journal", 1.0))
        with self._interrupts.at_once():
            audited = audit(self._layout, live_rows(self._layout), ask=self._ask, get=self._get)
            outcome = DemoOutcome.of(documents_table(self._layout).read(), self._dead_letters.read(), rows)
            expected = self._generator.report()
            off = differences(self._generator, expected, outcome, audited.counts, self._feeder.nudges)
        return DemoReport(
            seconds=seconds,
            customers=self._settings.customers,
            expected=expected,
            outcome=outcome,
            differences=off,
            audit=audited,
            latencies_ms=self._asker.latencies_ms,
            ages_ms=self._asker.ages_ms,
            requests_failed=self._asker.failed,
            failures=self._asker.failures,
            pipeline_restarts=self._pipeline.restarts,
            cluster_restarts=self._ground.restarts,
        )

    def _ask(self, customer: str, floor: Position) -> dict[str, Any]:
        return dict(self._client.rows(VIEW, customer, min_position=floor).document)

    def _get(self, path: str, floor: Position) -> dict[str, Any]:
        return self._client.get(path, min_position=str(floor))

    def _all_rows(self, display: Display) -> list[dict[str, Any]]:
        """Every customer's open rows as of the journal's end, one request each: many customers take a while."""
        end, customers = self._journal.end(), self._settings.customers
        rows: list[dict[str, Any]] = []
        shown_s = float("-inf")
        for number in range(customers):
            self._interrupts.check()
            if time.monotonic() - shown_s >= LOOK_S:
                display.show(self._moment("asking for every bill", number / customers))
                shown_s = time.monotonic()
            rows += self._ask(f"c{number}", end)["rows"]
        return rows


def runs(heartbeat: Heartbeat | None, before: Heartbeat | None) -> bool:
    """Whether a pipeline runs, by its heartbeat; `before` is the last heartbeat of an earlier, perhaps killed, run."""
    return heartbeat is not None and heartbeat.state in ("running", "idle") and heartbeat != before
