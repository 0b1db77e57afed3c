"""The crash matrix of the docs, made of a report: rows are parts, columns what happened to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateside.ops.chaos.report import Result
from stateside.ops.chaos.witness import FRESH_MS_MAX

COLUMNS = ("killed", "paused", "away", "full", "at random")
_HEAD = """# The crash matrix

What became of the whole system, under load, when a part of it was killed, paused, taken away or filled up. Measured by
`stateside chaos` ([chaos.md](chaos.md)) on {date}, with seed {seed}; `make chaos` does it again and writes this page.

A cell has: events that were lost or doubled; invoices that are missing or double; requests that failed, of those that a
client made all the while, and answers that are not what the journal says at their own stamp; the longest time without
an answer; the longest one without a fresh answer, which is no older than {fresh_s:g} s; and how long it took, after
what was away was back, or after the kill or the pause where the system helps itself, until every replica answered
freshly, with all events. Two replicas run in all of them, and the client knows both. The auditor judges, not the
scenario. Times are those of a machine with 2 cores that had other things to do, too.

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
    """The page, of what `ChaosReport.as_dict` gave."""
    results = [Result.of(document) for document in report["scenarios"]]
    head = _HEAD.format(date=report["date"], seed=report["seed"], fresh_s=FRESH_MS_MAX / 1_000)
    return head + _table(results) + _TAIL + "\n".join(map(_sizes, results)) + "\n"


def _table(results: Sequence[Result]) -> str:
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
