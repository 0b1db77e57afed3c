"""The closing report of a demo: what went in, what came out, and whether it adds up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateside.billing.generator import PERIOD_SUM_MICROS
from stateside.billing.model import CURRENCY, format_micros
from stateside.errors import RequestInvalid
from stateside.ops.demo.recount import Audit
from stateside.storage import write_atomically

DIFFERENCES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything that was measured and proved; `as_dict` is the form for machines, `lines` the one for people."""

    seconds: float
    customers: int
    generated: int
    late_within_grace: int
    audit: Audit
    latencies_ms: Sequence[float]
    ages_ms: Sequence[int]
    requests_failed: int
    failures: Sequence[str]
    pipeline_restarts: int

    @property
    def uneven(self) -> list[str]:
        """Invoices that are not the even sum that the generator made."""
        sums = self.audit.invoiced.micros
        return [
            f"{customer} in {period}: invoiced {format_micros(micros)}, expected {format_micros(PERIOD_SUM_MICROS)}"
            for (customer, period), micros in sorted(sums.items())
            if micros != PERIOD_SUM_MICROS
        ]

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it must be, a sentence each."""
        found = self.audit.differences() + self.uneven
        if self.generated != self.audit.journal.events_total:
            found.append(f"{self.generated} events were generated, the journal has {self.audit.journal.events_total}")
        if not self.audit.invoiced.events:
            found.append("no period was sealed: the run was too short to prove anything")
        if self.requests_failed or not self.latencies_ms:
            found.append(f"{self.requests_failed} requests failed: {'; '.join(self.failures) or 'none was answered'}")
        return found

    @property
    def ok(self) -> bool:
        """Whether everything adds up."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The report for machines."""
        audit, problems = self.audit, self.problems
        accounted = audit.invoiced.events_total + audit.open.events_total
        return {
            "ok": not problems,
            "problems": problems[:DIFFERENCES_SHOWN],
            "seconds": round(self.seconds, 1),
            "customers": self.customers,
            "events": {
                "generated": self.generated,
                "journalled": audit.journal.events_total,
                "invoiced": audit.invoiced.events_total,
                "open": audit.open.events_total,
                "late_within_grace": self.late_within_grace,
                "too_late": audit.journal.events_total - accounted,
            },
            "invoices": {"count": len(audit.invoiced.events), "periods": sorted({p for _, p in audit.invoiced.events})},
            "sums": {
                "expected_micros": audit.journal.micros.total(),
                "found_micros": audit.invoiced.micros.total() + audit.open.micros.total(),
                "accounts": len(audit.accounts),
                "off": len(audit.differences()) + len(self.uneven),
            },
            "requests": {"answered": len(self.latencies_ms), "failed": self.requests_failed},
            "latency_ms": _quantiles(self.latencies_ms),
            "age_ms": _quantiles(self.ages_ms),
            "pipeline": {"restarts": self.pipeline_restarts},
        }

    def lines(self) -> list[str]:
        """The report for people."""
        d = self.as_dict()
        events, sums, latency, age = d["events"], d["sums"], d["latency_ms"], d["age_ms"]
        expected, found = format_micros(sums["expected_micros"]), format_micros(sums["found_micros"])
        return [
            f"events     {events['generated']:,} generated, {events['journalled']:,} journalled: "
            f"{events['invoiced']:,} invoiced + {events['open']:,} in open periods + {events['too_late']:,} too late",
            f"           {events['late_within_grace']:,} came in after their period's end, within the grace time",
            f"invoices   {d['invoices']['count']:,} for the periods {', '.join(d['invoices']['periods']) or 'none'}, "
            f"{len(self.uneven)} of them not {format_micros(PERIOD_SUM_MICROS)} {CURRENCY}",
            f"sums       {expected} {CURRENCY} expected, {found} {CURRENCY} found, "
            f"{sums['off']} of {sums['accounts']:,} customers' periods off",
            f"requests   {d['requests']['answered']:,} answered, {d['requests']['failed']} failed; "
            f"latency p50 {latency['p50']} ms, p99 {latency['p99']} ms",
            f"freshness  age of answers p50 {age['p50']} ms, p99 {age['p99']} ms, at most {age['max']} ms; "
            f"pipeline restarts {self.pipeline_restarts}",
            *(f"problem    {problem}" for problem in d["problems"]),
            "Everything adds up." if d["ok"] else "It does NOT add up.",
        ]


class ReportFile:
    """The file that the report for machines goes to. It never holds the report of another run than the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def clear(self) -> None:
        """At the start: remove the report of an earlier run. If none can be written here, that is an error now.

        What a link leads to is emptied, and what is no file (a pipe, a terminal) left alone.
        """
        if not self._path.parent.is_dir():
            raise RequestInvalid(
                f"There is no folder {self._path.parent} for the report", next_step="Make it, or choose another --json"
            )
        if self._is_plain():
            self._path.touch()
            self._path.unlink()
        elif self._path.is_file():
            self._path.write_text("")

    def write(self, report: DemoReport) -> None:
        """At the end: the report, as JSON; whoever waits for the file to appear finds it whole."""
        content = json.dumps(report.as_dict(), indent=2).encode() + b"\n"
        if self._is_plain():
            write_atomically(self._path, content)
        else:
            self._path.write_bytes(content)

    def _is_plain(self) -> bool:
        """Whether it is an ordinary file, or nothing yet."""
        return not self._path.is_symlink() and (self._path.is_file() or not self._path.exists())


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [0]
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": len(ordered) - 1}
    return {name: round(ordered[place], 2) for name, place in places.items()}
