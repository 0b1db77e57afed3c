"""The closing report of a demo: what went in, what came out, and whether it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateside.billing.audit import Audit
from stateside.billing.generator import EVEN_MICROS, Report
from stateside.billing.money import format_micros
from stateside.clock import age_text
from stateside.ops.demo.sample import Sample
from stateside.ops.stage.proof import Outcome

DIFFERENCES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything that was measured and proved; `as_dict` is the form for machines, `lines` the one for people."""

    seconds: float
    customers: int
    expected: Report
    outcome: Outcome
    differences: Sequence[str]  # between these two
    audit: Audit
    latencies_ms: Sample
    ages_ms: Sample
    requests_failed: int
    failures: Sequence[str]
    pipeline_restarts: int
    cluster_restarts: int

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it must be, a sentence each."""
        found = [*self.audit.differences(), *self.differences]
        if self.requests_failed or not self.latencies_ms.count:
            found.append(f"{self.requests_failed} requests failed: {'; '.join(self.failures) or 'none was answered'}")
        return found

    @property
    def ok(self) -> bool:
        """Whether everything adds up."""
        return self.audit.ok and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "ok": self.ok,
            "problems": self.problems[:DIFFERENCES_SHOWN],
            "seconds": round(self.seconds, 1),
            "customers": self.customers,
            "events": self.audit.counts,
            "expected": self.expected.as_dict(),
            "documents": {
                "invoices": self.outcome.invoices,
                "late_invoices": self.outcome.late_invoices,
                "notes": self.outcome.notes,
                "periods": list(self.outcome.sealed_periods),
                "corrected": len(self.outcome.corrected),
            },
            "dead_letters": dict(self.outcome.dead_letters),
            "sums": {
                "accounts": len(self.outcome.amounts),
                "even_micros": EVEN_MICROS,
                "found_micros": sum(self.outcome.amounts.values()),
                "off": len(self.differences),
            },
            "laws": {verdict.law: verdict.broken for verdict in self.audit.verdicts},
            "requests": {"answered": self.latencies_ms.count, "failed": self.requests_failed},
            "latency_ms": self.latencies_ms.quantiles(),
            "age_ms": self.ages_ms.quantiles(),
            "pipeline": {"restarts": self.pipeline_restarts},
            "cluster": {"restarts": self.cluster_restarts},
        }

    def lines(self) -> list[str]:
        """The report for people."""
        d = self.as_dict()
        counts, latency, age = self.audit.counts, d["latency_ms"], d["age_ms"]
        parts = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if name != "events")
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.outcome.dead_letters.items()))
        broken = [verdict.text for verdict in self.audit.verdicts if verdict.broken]
        return [
            f"events     {counts['events']:,} journalled = {parts}",
            f"documents  {self.outcome.invoices:,} invoices for the periods {', '.join(self.outcome.sealed_periods)}, "
            f"{self.outcome.late_invoices:,} of them for late events alone; {self.outcome.notes:,} notes",
            f"late       {self.expected.events.get('note', 0):,} events came too late, for {len(self.expected.late):,} "
            f"customers' periods; {len(self.outcome.corrected):,} were corrected",
            f"dead       {reasons or 'none'}",
            f"sums       {len(self.outcome.amounts):,} customers' periods of {format_micros(EVEN_MICROS)} each, "
            f"documents and open bills together; {len(self.differences)} differences to what the generator made",
            f"audit      {len(self.audit.verdicts)} laws, {len(broken)} of them broken",
            *(f"broken     {text}" for text in broken),
            f"requests   {d['requests']['answered']:,} answered, {d['requests']['failed']} failed; "
            f"latency p50 {age_text(latency['p50'])}, p99 {age_text(latency['p99'])}",
            f"freshness  age of answers p50 {age_text(age['p50'])}, p99 {age_text(age['p99'])}, "
            f"at most {age_text(age['max'])}; "
            f"pipeline restarts {self.pipeline_restarts}"
            + (f", parts of the cluster {self.cluster_restarts}" if self.cluster_restarts else ""),
            *(f"problem    {problem}" for problem in d["problems"]),
            "Everything adds up." if d["ok"] else "It does NOT add up.",
        ]
