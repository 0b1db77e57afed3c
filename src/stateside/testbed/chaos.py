"""Chaos: a system under load, faults one after the other, the way back to rest, and the verdict.

A *scenario* (`scenarios`) is a system of some shape and the faults (`faults`) injected into it. A scenario has no
influence on the verdict: the auditor's laws and the generator's even sums decide (`proof`), as in the demo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from stateside.core.errors import PipelineFailed, RequestInvalid, StatesideError
from stateside.core.layout import Layout
from stateside.testbed import disk
from stateside.testbed.chaos_report import Result
from stateside.testbed.component import Interrupts
from stateside.testbed.faults import Fault
from stateside.testbed.producer import ProducerLoad
from stateside.testbed.proof import SystemProof
from stateside.testbed.run_folder import StageFolder
from stateside.testbed.scenarios import ChaosScenario
from stateside.testbed.system import START_S_MAX, Guarantee, System
from stateside.testbed.witness import AnswerLog, Seen, Witness, running_bill, whole_bill

LEAD_S = 3.0  # time without a fault before each one
RECOVERY_S_MAX = 180.0
DRAIN_S_MAX = 180.0


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """The settings of scenarios. `seconds` is the duration of the events for each fault."""

    seconds: float = 30.0
    customers: int = 60
    seed: int = 1
    guarantee: Guarantee = "exactly-once"


def run_scenarios(
    scenarios: Sequence[ChaosScenario],
    settings: ChaosSettings,
    folder: Path | None,
    console: Console,
    so_far: Callable[[Sequence[Result]], None] = lambda results: None,
) -> list[Result]:
    """Run the scenarios one after the other, each in a folder of its own below this one, or in a temporary one.

    A failed scenario does not stop the others. `so_far` is called after each, with all results up to then. No process
    is left running in any case. RequestInvalid, with nothing run, if one of the folders already exists.
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


def _check_new(root: Path, scenarios: Sequence[ChaosScenario]) -> None:
    for folder in (root / each.name for each in scenarios):
        if folder.exists():
            raise RequestInvalid(
                "This folder has the outcome of an earlier run", where=str(folder), next_step="Use a new --dir"
            )


def _tried(
    scenario: ChaosScenario, settings: ChaosSettings, folder: Path, console: Console, interrupts: Interrupts
) -> Result:
    began_s = time.monotonic()
    without = disk.refusal() if scenario.shape.small_disk else None
    if without:
        return Result(scenario.name, scenario.part, scenario.happening, 0.0, skipped=without)
    try:
        return ScenarioRun(scenario, settings, folder, console, interrupts).play()
    except Exception as error:  # any error: results of other scenarios must not be lost
        seconds = time.monotonic() - began_s
        problem = f"It was not carried out: {error if isinstance(error, StatesideError | OSError) else repr(error)}"
        return Result(scenario.name, scenario.part, scenario.happening, seconds, problems=(problem,))


class ScenarioRun:
    """One scenario from its start to its verdict."""

    def __init__(
        self,
        scenario: ChaosScenario,
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
        self._folder.mkdir(parents=True)
        self._tell("starting the system")
        with self._system() as system:
            system.start()
            load = self._load(system)
            system.wait("a running query", lambda: _runs_undisturbed(system), START_S_MAX)
            system.start_writer(load)
            record = AnswerLog(self._folder / "answers.jsonl")
            witness = self._witness(system, record)
            witness.start()
            try:
                suffered = self._suffer_all(system)
                self._come_to_rest(system)
            finally:
                witness.stop()
            self._tell("auditing")
            proof = SystemProof.of(system, load.generator(), record)
            spans = [(each.began_s, each.ended_s) for each in suffered]
            fails_view = any(each.fault.fails_view for each in suffered)
            unexplained = system.unexplained(witness.seen.unreached, spans, fails_view=fails_view)
        return self._result(proof, witness.seen, suffered, unexplained)

    def _system(self) -> System:
        return System(
            self._scenario.shape,
            self._folder,
            Layout(self._folder / "application"),
            self._interrupts,
            guarantee=self._settings.guarantee,
            tell=self._tell,
        )

    def _load(self, system: System) -> ProducerLoad:
        settings = self._settings
        load = ProducerLoad(
            folder=str(system.layout.root),
            urls=system.urls,
            seconds=settings.seconds * len(self._scenario.faults),
            customers=settings.customers,
            seed=settings.seed,
        )
        if settings.guarantee == "exactly-once":
            return load
        return replace(load, late_share=0.0, duplicate_share=0.0)  # a note corrects one invoice; the control makes two

    def _witness(self, system: System, record: AnswerLog) -> Witness:
        questions = [running_bill, whole_bill]
        return Witness(system.urls, self._settings.customers, self._settings.seed, questions, record)

    def _suffer_all(self, system: System) -> list[Suffered]:
        """All faults, one after the other, with events left for each of them."""
        faults = self._scenario.faults
        return [self.suffer(system, fault, len(faults) - number) for number, fault in enumerate(faults)]

    def suffer(self, system: System, fault: Fault, left: int) -> Suffered:
        """Inject a fault during appends, heal it, and wait for recovery. `left` faults remain, including this one."""
        self._lead(system, left)
        self._tell(f"{fault.part} {fault.happening}")
        began, began_s = system.journal.end(), time.monotonic()
        broken = fault.inject(system)
        system.desk.go_on(left + 1)  # also if the fault let all of the time pass
        system.let_pass(fault.away_s)
        since_s = time.monotonic() if broken.since_s is None else broken.since_s
        end = None if fault.stops_producer else system.journal.end()
        with self._interrupts.at_once():  # restarting a part of a cluster may take long
            broken.heal()
        floor = system.journal.end()
        system.wait("fresh answers of every replica", lambda: system.answers_cover(floor), RECOVERY_S_MAX)
        ended_s = time.monotonic()
        over = (end or floor) if broken.since_s is None else system.journal.end()
        appended = sum(
            1 for _ in system.journal.events(broken.began or began, over)
        )  # on Kafka not every offset has an event
        broken.settle()
        return Suffered(fault, ended_s - since_s, appended, broken.missed, began_s, ended_s)

    def _lead(self, system: System, left: int) -> None:
        """Run without a fault for a while, up to a moment between the producer's appends."""
        system.desk.go_on(left + 1)
        system.let_pass(LEAD_S)
        system.desk.go_on(left + 1)
        end, desk = system.journal.end(), system.desk
        system.wait("a producer that appends", lambda: desk.drained() or system.journal.end() != end, RECOVERY_S_MAX)

    def _come_to_rest(self, system: System) -> None:
        """Wait until every replica has everything: the producer asks only one of them."""
        self._tell("coming to rest")
        system.desk.hurry()
        system.wait("an end", system.desk.drained, DRAIN_S_MAX + self._settings.seconds)
        end, watermark_us = system.journal.end(), system.desk.watermark_us()
        system.wait("an end in every replica", lambda: system.answers_cover(end, watermark_us), DRAIN_S_MAX)

    def _result(
        self, proof: SystemProof, seen: Seen, suffered: Sequence[Suffered], unexplained: Sequence[str]
    ) -> Result:
        scenario, found = self._scenario, proof.audit.balance
        return Result(
            scenario=scenario.name,
            part=scenario.part,
            happening=scenario.happening,
            seconds=round(time.monotonic() - self._began_s, 1),
            events=proof.audit.counts["events"],
            events_meanwhile=sum(each.appended for each in suffered),
            events_lost=found.events_lost + proof.never_journalled,
            events_doubled=found.events_doubled + proof.journalled_twice,
            invoices=proof.outcome.invoices,
            invoices_missing=found.invoices_missing,
            invoices_doubled=found.invoices_doubled,
            sums_off=len(proof.differences),
            requests_answered=seen.answered,
            requests_failed=seen.failed,
            answers_compared=proof.answers,
            answers_wrong=len(proof.wrong_answers),
            no_answer_s=round(seen.no_answer_s, 2),
            no_fresh_answer_s=round(seen.no_fresh_answer_s, 2),
            recovery_s=round(max(each.recovery_s for each in suffered), 1),
            faults=tuple(each.name for each in suffered),
            problems=(
                *proof.audit.differences(),
                *proof.differences,
                *proof.wrong_answers,
                *_failed(seen),
                *_idle(suffered),
                *(each.missed for each in suffered if each.missed),
                *unexplained,
            ),
        )

    def _tell(self, what: str) -> None:
        passed_s = time.monotonic() - self._began_s
        self._console.print(f"{self._scenario.name}: {passed_s:5.1f} s: {what}", highlight=False, soft_wrap=True)


def _runs_undisturbed(system: System) -> bool:
    """Whether Spark runs the view; PipelineFailed if a part ended before."""
    ended = [part for part in system.parts.values() if part.restarts]
    if ended:
        raise PipelineFailed(
            f"The {ended[0].name} ended before anything was done to it: {ended[0].last_error()}",
            where=str(ended[0].log),
        )
    return system.query_runs()


@dataclass(frozen=True, slots=True)
class Suffered:
    """A fault that is over: the recovery time, and the events appended meanwhile.

    `began_s` and `ended_s`, of time.monotonic(), bound the time of the disturbance.
    """

    fault: Fault
    recovery_s: float
    appended: int
    missed: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.fault.part} {self.fault.happening}"


def _idle(suffered: Sequence[Suffered]) -> list[str]:
    """Faults during which nothing was appended; they prove nothing."""
    idle = (each for each in suffered if not each.appended and not each.fault.stops_producer)
    return [f"No event was appended while this lasted: {each.name}" for each in idle]


def _failed(seen: Seen) -> list[str]:
    failed = seen.failed or not seen.answered
    told = [f"{seen.failed} requests failed: {'; '.join(seen.failures) or 'none was answered'}"] if failed else []
    hidden = seen.server_errors.items()
    return told + [f"A server failed {count} times, whether a retry helped or not: {what}" for what, count in hidden]
