"""Runs scenarios: the system under load, the faults one after the other, the way back to rest, and the judgement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from stateside.billing.audit import Audit, audit, live_rows
from stateside.billing.generator import Report
from stateside.billing.model import VIEW
from stateside.billing.sealing.dead_letters import dead_letters_table
from stateside.billing.sealing.documents import documents_table
from stateside.errors import RequestInvalid, StatesideError
from stateside.journal import Journal
from stateside.ops.chaos import disk
from stateside.ops.chaos.faults import Fault
from stateside.ops.chaos.load import Load
from stateside.ops.chaos.report import Result
from stateside.ops.chaos.scenarios import Scenario
from stateside.ops.chaos.system import Guarantee, System
from stateside.ops.chaos.witness import Seen, Witness, running_bill_age_ms, whole_bill_age_ms
from stateside.ops.stage.feeder import NUDGE
from stateside.ops.stage.folder import StageFolder
from stateside.ops.stage.interrupts import Interrupts
from stateside.ops.stage.proof import Outcome, differences
from stateside.serving.clients import Client

LEAD_S = 3.0  # how long all is well before a fault
RECOVERY_S_MAX = 180.0
DRAIN_S_MAX = 180.0


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """How scenarios are run. For each fault events are laid out over `seconds`."""

    seconds: float = 30.0
    customers: int = 60
    seed: int = 1
    guarantee: Guarantee = "exactly-once"


def run_scenarios(
    scenarios: Sequence[Scenario],
    settings: ChaosSettings,
    folder: Path | None,
    console: Console,
    so_far: Callable[[Sequence[Result]], None] = lambda results: None,
) -> list[Result]:
    """Run them one after the other, each in a folder of its own below this one, or in a temporary one.

    One that could not be carried out does not keep the others from being tried. `so_far` is called after each, with all
    results up to then. However it ends, no process is left. RequestInvalid, and nothing is run, if one of the folders
    is there already.
    """
    with Interrupts() as interrupts, StageFolder(folder, console, prefix="stateside-chaos-") as place:
        _check_new(place.root, scenarios)
        results: list[Result] = []
        for each in scenarios:
            interrupts.check()
            results.append(_tried(each, settings, place.root / each.name, console, interrupts))
            console.print(f"{each.name}: {results[-1].verdict()}", highlight=False, soft_wrap=True)
            so_far(results)
        place.kept = not all(result.ok for result in results)
        return results


def _check_new(root: Path, scenarios: Sequence[Scenario]) -> None:
    for folder in (root / each.name for each in scenarios):
        if folder.exists():
            raise RequestInvalid(
                "This folder has the outcome of an earlier run", where=str(folder), next_step="Use a new --dir"
            )


def _tried(
    scenario: Scenario, settings: ChaosSettings, folder: Path, console: Console, interrupts: Interrupts
) -> Result:
    began_s = time.monotonic()
    without = disk.refusal() if scenario.shape.small_disk else None
    if without:
        return Result(scenario.name, scenario.part, scenario.happening, 0.0, skipped=without)
    try:
        return Course(scenario, settings, folder, console, interrupts).play()
    except Exception as error:  # of a library, too: what the others came to is not lost by it
        seconds = time.monotonic() - began_s
        problem = f"It was not carried out: {error if isinstance(error, StatesideError | OSError) else repr(error)}"
        return Result(scenario.name, scenario.part, scenario.happening, seconds, problems=(problem,))


class Course:
    """One scenario from its start to its judgement."""

    def __init__(
        self,
        scenario: Scenario,
        settings: ChaosSettings,
        folder: Path,
        console: Console,
        interrupts: Interrupts,
    ) -> None:
        self._scenario, self._settings = scenario, settings
        self._folder, self._console = folder, console
        self._interrupts = interrupts
        self._began_s = time.monotonic()

    def play(self) -> Result:
        """Go through it."""
        self._folder.mkdir(parents=True)
        self._tell("starting the system")
        with self._system() as system:
            load = self._load(system)
            system.await_driver()
            system.start_writer(load)
            witness = self._witness(system)
            witness.start()
            try:
                recovery_s = self._suffer_all(system)
                self._tell("coming to rest")
                system.desk.hurry()
                system.wait("an end", system.desk.drained, DRAIN_S_MAX + self._settings.seconds)
            finally:
                witness.stop()
            self._tell("auditing")
            with self._interrupts.at_once():
                judged = Judged.of(system, load)
        return self._result(judged, witness.seen, recovery_s)

    def _system(self) -> System:
        return System(
            self._scenario.shape,
            self._folder,
            guarantee=self._settings.guarantee,
            interrupts=self._interrupts,
            tell=self._tell,
        )

    def _load(self, system: System) -> Load:
        settings = self._settings
        seconds = settings.seconds * len(self._scenario.faults)
        load = Load(str(system.layout.root), system.urls, seconds, settings.customers, settings.seed)
        if settings.guarantee == "exactly-once":
            return load
        return replace(load, late_share=0.0, duplicate_share=0.0)  # a note corrects one invoice, and here are two

    def _witness(self, system: System) -> Witness:
        questions = [running_bill_age_ms, *([] if self._scenario.hides_documents else [whole_bill_age_ms])]
        return Witness(system.urls, self._settings.customers, self._settings.seed, questions)

    def _suffer_all(self, system: System) -> float:
        """All faults, one after the other, with events left for each of them; the longest recovery."""
        recoveries_s = []
        for number, fault in enumerate(self._scenario.faults, 1):
            recoveries_s.append(self._suffer(system, fault, number / (len(self._scenario.faults) + 1)))
        return max(recoveries_s)

    def _suffer(self, system: System, fault: Fault, share: float) -> float:
        """Inject a fault, heal it, and wait until all is well again; for how long that was not so."""
        system.let_pass(LEAD_S)
        self._tell(f"{fault.part} {fault.happening}")
        system.desk.allow(share)
        broken = fault.inject(system)
        system.let_pass(fault.away_s)
        since_s = time.monotonic() if broken.since_s is None else broken.since_s
        with self._interrupts.at_once():  # a part of a cluster may take its time
            broken.heal()
        floor = system.journal.end()
        system.wait("fresh answers of every replica", lambda: system.answers_cover(floor), RECOVERY_S_MAX)
        return time.monotonic() - since_s

    def _result(self, judged: Judged, seen: Seen, recovery_s: float) -> Result:
        scenario, found = self._scenario, judged.audit.balance
        return Result(
            scenario=scenario.name,
            part=scenario.part,
            happening=scenario.happening,
            seconds=round(time.monotonic() - self._began_s, 1),
            events=judged.audit.counts["events"],
            events_lost=found.events_lost + judged.never_journalled,
            events_doubled=found.events_doubled + judged.journalled_twice,
            invoices=judged.outcome.invoices,
            invoices_missing=found.invoices_missing,
            invoices_doubled=found.invoices_doubled,
            sums_off=len(judged.differences),
            requests_answered=seen.answered,
            requests_failed=seen.failed,
            no_answer_s=round(seen.no_answer_s, 2),
            no_fresh_answer_s=round(seen.no_fresh_answer_s, 2),
            recovery_s=round(recovery_s, 1),
            faults=tuple(f"{fault.part} {fault.happening}" for fault in scenario.faults),
            problems=(*judged.audit.differences(), *judged.differences, *_failed(seen)),
        )

    def _tell(self, what: str) -> None:
        passed_s = time.monotonic() - self._began_s
        self._console.print(f"{self._scenario.name}: {passed_s:5.1f} s: {what}", highlight=False, soft_wrap=True)


def _failed(seen: Seen) -> list[str]:
    if seen.failed or not seen.answered:
        return [f"{seen.failed} requests failed: {'; '.join(seen.failures) or 'none was answered'}"]
    return []


@dataclass(frozen=True, slots=True)
class Judged:
    """What the auditor found, and what is not as the generator made it."""

    audit: Audit
    outcome: Outcome
    differences: tuple[str, ...]
    made: int

    @classmethod
    def of(cls, system: System, load: Load) -> Judged:
        """Judge a system that has come to rest and still serves."""
        layout, generator = system.layout, load.generator()
        with Client(system.urls) as client:

            def ask(customer: str, floor: Any) -> dict[str, Any]:
                return dict(client.rows(VIEW, customer, min_position=floor).document)

            end = system.journal.end()
            audited = audit(layout, live_rows(layout), ask=ask)
            rows = [row for number in range(load.customers) for row in ask(f"c{number}", end)["rows"]]
        outcome = Outcome.of(documents_table(layout).read(), dead_letters_table(layout).read(), rows)
        expected, nudges = generator.report(), _nudges(system.journal)
        off = differences(generator, expected, outcome, audited.counts, nudges)
        return cls(audited, outcome, tuple(off), _made(expected, nudges))

    @property
    def never_journalled(self) -> int:
        """Events that the producer made and the journal does not have."""
        return max(0, self.made - self.audit.counts["events"])

    @property
    def journalled_twice(self) -> int:
        """Events that the journal has more often than the producer made them."""
        return max(0, self.audit.counts["events"] - self.made)


def _nudges(journal: Journal) -> int:
    return sum(event.id.startswith(NUDGE) for event in journal.events())


def _made(expected: Report, nudges: int) -> int:
    return expected.journalled + nudges
