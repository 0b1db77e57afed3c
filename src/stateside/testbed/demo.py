"""The demo: a system without a fault, through compressed months for about a minute, and its proof."""

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

from stateside.billing.invoicing.documents import dead_letters_table, documents_table
from stateside.billing.model import GRACE_US, VIEW
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import write_atomically
from stateside.serving.clients import Client
from stateside.serving.stamp import parse_time
from stateside.testbed.component import Interrupts, Supervised
from stateside.testbed.demo_report import NAME, DemoReport, Display, DisplayState, DocumentCounts, snapshot
from stateside.testbed.feeder import Feeder, Load
from stateside.testbed.proof import ReplicaProof
from stateside.testbed.run_folder import ReportFile, StageFolder
from stateside.testbed.system import JournalKind, System, SystemShape, covering_stamp
from stateside.testbed.witness import Document, Witness, bill_path, whole_bill

PIPELINE = "pipeline"  # the driver, in logs and messages
DEADLINE_S = 15.0  # a request without an answer by then has failed
PAUSE_S = 0.01  # between two requests
START_S_MAX = 900.0  # Spark takes 10 s on a quiet machine, and minutes on a busy one
STANDSTILL_S_MAX = 240.0  # without a new batch
LOOK_S = 0.25
BILLS_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings(Load):
    """The settings of a demo. A folder's first demo decides; later ones must agree on all `fixed` settings."""

    journal: JournalKind = "files"
    cluster: bool = False

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
        shape = SystemShape(settings.journal, settings.cluster, drivers=(PIPELINE,), servers=("server",))
        self._settings, self._layout, self._console, self._interrupts = settings, layout, console, interrupts
        self._system = System(shape, layout.root, layout, interrupts, tell=self._tell)
        self._cleanup = ExitStack()
        self._generator = settings.generator()
        self._documents = DocumentCounts(documents_table(layout))
        self._dead_letters = dead_letters_table(layout)

    def __enter__(self) -> Demo:
        settings = self._settings
        with ExitStack() as stack:
            system = stack.enter_context(self._system)
            with self._interrupts.at_once():  # reads an earlier demo's journal, which may take long
                self._feeder = Feeder(self._generator, self._layout, settings.seconds, self._watermark_us)
            stack.callback(self._feeder.close)
            system.start()
            whom = system.urls, settings.customers, settings.seed
            self._witness = Witness(*whom, [whole_bill], deadline_s=DEADLINE_S, pause_s=PAUSE_S)
            stack.callback(self._witness.stop)
            self._client = stack.enter_context(Client(system.urls[0]))
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def play(self) -> DemoReport:
        """Replay the months, wait until all events are processed, and audit."""
        began_s, system, feeder = time.monotonic(), self._system, self._feeder
        with Display(self._console) as display:
            self._wait("starting Spark", display, system.query_runs, START_S_MAX)
            receipt, (url,) = feeder.nudge(), system.urls
            self._wait("first batch", display, lambda: covering_stamp(url, receipt) is not None, START_S_MAX)
            self._witness.start()
            feeder.start()
            self._let_pass(display)
            feeder.stop()
            self._restarts_before_draining = self._pipeline.restarts
            self._wait("draining", display, self._drained, STANDSTILL_S_MAX, share=lambda: 1.0)
            self._witness.stop()
            return self._report(began_s, display)

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
        (url,) = self._system.urls
        shown = "\n".join(f"{title:<13} {url}{address}" for title, address in pages.items())
        self._console.print(shown, highlight=False, soft_wrap=True)
        self._console.print(f"Serving {url}{bill_path('c0')} until Ctrl-C", highlight=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            while True:
                self._interrupts.pause(LOOK_S)
                self._system.supervise()

    def _tell(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    @property
    def _pipeline(self) -> Supervised:
        return self._system.parts[PIPELINE]

    @property
    def _stamp(self) -> Document | None:
        """The stamp of the last answer."""
        return self._witness.seen.stamp

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
        self._system.wait(
            f"an end of {phase!r}",
            done,
            standstill_s_max,
            progress=lambda: (self._stamp or {}).get("batch"),
            show=lambda: display.show(self._moment(phase, share())),
            look_s=LOOK_S,
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
        stamp = self._stamp
        if stamp is None:
            return False
        covers = Position.parse(stamp["position"]).covers(self._system.journal.end())
        return covers and self._watermark_us() >= watermark_us

    def _watermark_us(self) -> int:
        """The watermark of the last answer."""
        stamp = self._stamp
        return parse_time(stamp["watermark"]) if stamp else 0

    def _moment(self, phase: str, share_done: float) -> DisplayState:
        stamp = self._stamp
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
            requests=self._witness.seen.answered,
            failed=self._witness.seen.failed,
            restarts=self._pipeline.restarts,
            bills=bills,
        )

    def _some_bills(self) -> list[dict[str, Any]]:
        try:
            return [self._client.get(bill_path(f"c{number}")) for number in range(BILLS_SHOWN)]
        except StatesideError:  # the witness counts failures; the display shows what is available
            return []

    def _report(self, began_s: float, display: Display) -> DemoReport:
        seconds, customers, shown_s = time.monotonic() - began_s, self._settings.customers, float("-inf")

        def tick(customer: int) -> None:  # many customers take a while
            nonlocal shown_s
            self._interrupts.check()
            if customer == customers:
                display.show(self._moment("recomputing every bill from the journal", 1.0))
            elif time.monotonic() - shown_s >= LOOK_S:
                display.show(self._moment("asking for every bill", customer / customers))
                shown_s = time.monotonic()

        return DemoReport(
            seconds=seconds,
            customers=customers,
            expected=self._generator.report(),
            proof=ReplicaProof.of(self._system, 0, self._generator, self._feeder.nudges, tick),
            seen=self._witness.seen,
            pipeline_restarts=self._pipeline.restarts,
            cluster_restarts=self._system.ground.restarts,
        )
