"""Results of chaos scenarios, for people and for machines, and the crash matrix of the docs.

The matrix has parts as rows and kinds of faults as columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.console import Console
from rich.table import Table

from stateside.testbed.witness import FRESH_MS_MAX

PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario: its input, the auditor's findings, the client's experience, and durations.

    `events_meanwhile` counts the events appended while faults lasted. `recovery_s` is the time from the fault's end
    (from the kill or the pause, where the system recovers by itself) until every replica answers freshly, with the
    whole journal of that moment; of several faults the longest. A scenario that could not be carried out has the reason
    in `problems`, and counts as wrong; so does a `skipped` one, for which the machine lacks the means: nothing is
    proved. `answers_compared` counts the answers compared with the journal, each at its own stamp.
    """

    scenario: str
    part: str
    happening: str
    seconds: float
    events: int = 0
    events_meanwhile: int = 0
    events_lost: int = 0
    events_doubled: int = 0
    invoices: int = 0
    invoices_missing: int = 0
    invoices_doubled: int = 0
    sums_off: int = 0
    requests_answered: int = 0
    requests_failed: int = 0
    answers_compared: int = 0
    answers_wrong: int = 0
    no_answer_s: float = 0.0
    no_fresh_answer_s: float = 0.0
    recovery_s: float = 0.0
    faults: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def ok(self) -> bool:
        """Whether the scenario ran, nothing is lost, doubled or off, and every request was answered correctly."""
        wrong = (
            *(self.events_lost, self.events_doubled, self.invoices_missing, self.invoices_doubled, self.sums_off),
            *(self.requests_failed, self.answers_wrong),
        )
        return not self.problems and not self.skipped and not any(wrong)

    @property
    def doubled(self) -> int:
        """Events and invoices that exist twice."""
        return self.events_doubled + self.invoices_doubled

    def verdict(self) -> str:
        """The result in a sentence."""
        if self.skipped:
            return "not tried"
        if not self.ok:
            return f"wrong: {self.problems[0] if self.problems else 'a number that must be 0 is not'}"
        return f"nothing lost, nothing doubled, back after {self.recovery_s:.1f} s"

    def as_dict(self) -> dict[str, Any]:
        """The form for machines; `of` reads it."""
        return {"ok": self.ok, **asdict(self)}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Result:
        """Read the output of `as_dict`, perhaps of an older version with fewer fields."""
        values = {field.name: document[field.name] for field in fields(cls) if field.name in document}
        return cls(**values | {name: tuple(values.get(name, ())) for name in ("faults", "problems")})


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """All scenarios of one command. `to_come` are the requested ones without a result yet."""

    guarantee: str
    seed: int
    seconds: float
    date: str
    results: tuple[Result, ...]
    to_come: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all scenarios ran and succeeded."""
        return not self.to_come and all(result.ok for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """The form for machines."""
        return {
            "ok": self.ok,
            "guarantee": self.guarantee,
            "seed": self.seed,
            "seconds": self.seconds,
            "date": self.date,
            "to_come": list(self.to_come),
            "scenarios": [result.as_dict() for result in self.results],
        }

    def show(self, console: Console) -> None:
        """Print the report for people."""
        console.print(_table(self.results))
        for result in self.results:
            skipped = [f"not tried: {result.skipped}"] if result.skipped else []
            for problem in (*skipped, *result.problems[:PROBLEMS_SHOWN]):
                console.print(f"{result.scenario}: {problem}", highlight=False, soft_wrap=True)
        console.print(self.verdict(), highlight=False, soft_wrap=True)

    def verdict(self) -> str:
        """The last sentence."""
        if self.guarantee != "exactly-once":
            doubled = sum(result.doubled for result in self.results)
            if doubled:
                return f"The control doubled {doubled:,} events and documents, and the auditor found it, as it must."
            return "The control doubled nothing: this run proves nothing, as no batch was repeated after it was stored."
        return "Everything adds up." if self.ok else "It does NOT add up."


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("scenario")
    names = ("events", "meanwhile", "lost", "doubled", "invoices", "missing", "doubled", "uneven", "requests", "failed")
    for name in (*names, "wrong", "no answer s", "no fresh s", "recovery s", "in all s"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(result.scenario, *_cells(result), style=None if result.ok else "red")
    return table


def _cells(result: Result) -> list[str]:
    numbers = (
        result.events,
        result.events_meanwhile,
        result.events_lost,
        result.events_doubled,
        result.invoices,
        result.invoices_missing,
        result.invoices_doubled,
        result.sums_off,
        result.requests_answered,
        result.requests_failed,
        result.answers_wrong,
    )
    times = (result.no_answer_s, result.no_fresh_answer_s, result.recovery_s, result.seconds)
    return [*(f"{number:,}" for number in numbers), *(f"{seconds:.1f}" for seconds in times)]


COLUMNS = ("killed", "paused", "away", "full", "restored", "at random")
_HEAD = """# The crash matrix

What became of the whole system, under load, when a part of it was killed, paused, taken away, filled up, or put back
to an earlier savepoint. Measured by `stateside chaos` ([chaos.md](chaos.md)) on {date}, with seed {seed}; `make chaos`
does it again and writes this page.

A cell has: events that were lost or doubled; invoices that are missing or double; requests that failed, of those that a
client made all the while, and answers that are not what the journal says at their own stamp; the longest time without
an answer; the longest one without a fresh answer, which is no older than {fresh_s:g} s; and how long it took, after
what was away was back, or after the kill or the pause where the system helps itself, until every replica answered
freshly, with all events. Two replicas run in all of them except one, and the client knows both; where a savepoint is
restored, a single replica goes back with it. The auditor judges, not the scenario. Times are those of a machine with 2
cores that had other things to do, too.

"""
_TAIL = """
A driver is killed, or paused, at the worst moment: when the documents of a batch are stored, and the batch is not
committed. Every fault comes in the middle of the producer's appends. *At random* is several of the others, one after
the other, drawn by the seed, on Kafka and a cluster. `stateside chaos --list` says what each system consists of.

That the auditor would find doubles is shown by the control, `stateside chaos driver-killed --guarantee at-least-once`:
the same without billing's guard. It has to report doubles, and `tests/e2e/test_chaos.py` sees to that.

| scenario | events | of them while it was broken | invoices | requests | answers compared | in all |
|---|---|---|---|---|---|---|
"""


def matrix(report: Mapping[str, Any]) -> str:
    """The page of the docs, from the output of `ChaosReport.as_dict`."""
    results = [Result.of(document) for document in report["scenarios"]]
    head = _HEAD.format(date=report["date"], seed=report["seed"], fresh_s=FRESH_MS_MAX / 1_000)
    return head + _matrix_table(results) + _TAIL + "\n".join(map(_sizes, results)) + "\n"


def _matrix_table(results: Sequence[Result]) -> str:
    columns = [column for column in COLUMNS if any(result.happening == column for result in results)]
    cells = {(result.part, result.happening): _cell(result) for result in results}
    head = f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    parts = dict.fromkeys(result.part for result in results)
    rows = (f"| {part} | {' | '.join(cells.get((part, column), '') for column in columns)} |\n" for part in parts)
    return head + "".join(rows)


def _cell(result: Result) -> str:
    if result.skipped:
        return "not measured here"
    if result.events == 0:
        return "**WRONG** it did not come back"
    counts = (
        f"{result.events_lost} events lost, {result.events_doubled} doubled<br>"
        f"{result.invoices_missing} invoices missing, {result.invoices_doubled} doubled<br>"
        f"{result.requests_failed} requests failed, {result.answers_wrong} answers wrong"
    )
    times = (
        f"no answer {result.no_answer_s:.1f} s<br>none fresh {result.no_fresh_answer_s:.1f} s<br>"
        f"back after {result.recovery_s:.1f} s"
    )
    return f"{'' if result.ok else '**WRONG** '}{counts}<br>{times}"


def _sizes(result: Result) -> str:
    faults = "" if len(result.faults) < 2 else f" ({', '.join(result.faults)})"
    return (
        f"| {result.scenario}{faults} | {result.events:,} | {result.events_meanwhile:,} | {result.invoices:,} "
        f"| {result.requests_answered:,} | {result.answers_compared:,} | {result.seconds:.0f} s |"
    )
