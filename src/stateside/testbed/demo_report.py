"""The output of a demo: its display, its closing report, and its snapshot as one HTML file.

The display is a live table on a terminal; elsewhere a line per phase or every few seconds. The report has the input,
the outcome, and whether everything adds up. The snapshot has the figures of the pages at the demo's end, in the same
look, without a server, script, other file or other host.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Final

import pyarrow.compute as pc
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stateside.archive import ArchiveTable
from stateside.billing.generator import EVEN_MICROS, ExpectedTotals
from stateside.billing.money import format_micros
from stateside.core.clock import age_text
from stateside.testbed.proof import ReplicaProof
from stateside.testbed.witness import Seen

DIFFERENCES_SHOWN = 10
LINE_S = 5.0
PERIODS_SHOWN = 2  # of a customer, the newest
NAME: Final = "stateside-demo.html"
_BAR_PX_MAX: Final = 120
_STYLE: Final = """
main { max-width: 62rem }
.card { padding: 1.25rem }
.card h2 { margin-bottom: .75rem }
.verdict { font-size: 1.75rem; font-weight: 640; letter-spacing: -.03em }
.ok { color: var(--good) }
.off { color: var(--bad) }
.facts { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin-top: 1rem }
.facts dt { color: var(--ink-3); font-size: .75rem }
.facts dd { font-weight: 570 }
.batches { display: flex; align-items: flex-end; gap: 2px; height: 130px }
.batches i { flex: 1; min-width: 2px; background: var(--c1); border-radius: 2px 2px 0 0 }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
.table-wrap { margin: 0 -1.25rem }
"""


@dataclass(frozen=True, slots=True)
class DisplayState:
    """The figures at one moment."""

    phase: str
    share_done: float
    events: int
    stamp: Mapping[str, Any] | None
    lag_events: int
    open_periods: Sequence[str]
    sealed_periods: Sequence[str]
    invoices: int
    notes: int
    dead_letters: int
    duplicates: int
    requests: int
    failed: int
    restarts: int
    bills: Sequence[dict[str, Any]]


class Display:
    """Shows states as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._last_line_s = float("-inf")
        self._last_phase = ""

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, moment: DisplayState) -> None:
        if self._live:
            self._live.update(_picture(moment), refresh=True)
        elif moment.phase != self._last_phase or time.monotonic() - self._last_line_s >= LINE_S:
            self._last_phase, self._last_line_s = moment.phase, time.monotonic()
            self._console.print(_line(moment), highlight=False, soft_wrap=True)


def _line(moment: DisplayState) -> str:
    phase = f"{moment.phase} {moment.share_done:.0%}" if 0 < moment.share_done < 1 else moment.phase
    parts = [phase, f"{moment.events:,} events in", f"lag {moment.lag_events:,}"]
    if moment.stamp:
        parts.insert(1, f"batch {moment.stamp['batch']}, age {age_text(moment.stamp['age_ms'])}")
    parts.append(f"open {', '.join(moment.open_periods) or 'none'}, {_sealed(moment)}")
    parts.append(f"{moment.requests:,} requests, {moment.failed} failed")
    return "  ".join(parts)


def _sealed(moment: DisplayState) -> str:
    return f"{moment.invoices:,} invoices, {moment.notes:,} notes"


def _picture(moment: DisplayState) -> Group:
    facts = Table.grid(padding=(0, 2))
    stamp = moment.stamp or {}
    for name, value in (
        ("events in", f"{moment.events:,}"),
        (
            "batch",
            f"{stamp.get('batch', '–')}   at position {stamp.get('position', '–')}, lag {moment.lag_events:,} events",
        ),
        ("watermark", str(stamp.get("watermark", "–"))),
        (
            "periods",
            f"open {', '.join(moment.open_periods) or 'none'}   sealed {', '.join(moment.sealed_periods) or 'none'}",
        ),
        ("sealed", _sealed(moment)),
        ("refused", f"{moment.dead_letters:,} dead letters, {moment.duplicates:,} duplicates came in"),
        ("answers", f"{moment.requests:,}, {moment.failed} failed, newest {_age(stamp)} old"),
        ("restarts", str(moment.restarts)),
    ):
        facts.add_row(Text(name, style="dim"), value)
    title = Text(f"stateside demo: {moment.phase}", style="bold")
    bar = Columns([ProgressBar(total=1.0, completed=moment.share_done, width=60)])
    return Group(title, bar, facts, _bills_shown(moment.bills))


def _age(stamp: Mapping[str, Any]) -> str:
    return age_text(stamp["age_ms"]) if stamp else "–"


def _bills_shown(bills: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="bills", title_justify="left", box=None, header_style="dim", padding=(0, 2))
    for name in ("customer", "period", "state", "events"):
        table.add_column(name)
    table.add_column("so far", justify="right")
    for bill in bills:
        for period in bill["periods"][-PERIODS_SHOWN:]:
            facts = (bill["customer"], period["period"], period["state"], str(period["events"]))
            table.add_row(*facts, format_micros(period["charged_micros"], period["currency"]))
    return table


@dataclass(slots=True)
class DocumentCounts:
    """The number of documents and their periods; the table is read only when its count has changed."""

    table: ArchiveTable
    invoices: int = 0
    notes: int = 0
    periods: tuple[str, ...] = ()

    def look(self) -> DocumentCounts:
        """Update the counts."""
        if self.table.count() != self.invoices + self.notes:
            documents = self.table.read()
            self.invoices = pc.sum(pc.equal(documents["kind"], "invoice")).as_py() or 0
            self.notes = documents.num_rows - self.invoices
            self.periods = tuple(sorted(documents["period"].unique().to_pylist()))
        return self


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All measurements and proofs; `as_dict` is the form for machines, `lines` the form for people."""

    seconds: float
    customers: int
    expected: ExpectedTotals
    proof: ReplicaProof
    seen: Seen
    pipeline_restarts: int
    cluster_restarts: int

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = [*self.proof.audit.differences(), *self.proof.differences]
        if self.seen.failed or not self.seen.latencies_ms.count:
            found.append(f"{self.seen.failed} requests failed: {'; '.join(self.seen.failures) or 'none was answered'}")
        return found

    @property
    def ok(self) -> bool:
        return self.proof.audit.ok and not self.problems

    def as_dict(self) -> dict[str, Any]:
        outcome = self.proof.outcome
        return {
            "ok": self.ok,
            "problems": self.problems[:DIFFERENCES_SHOWN],
            "seconds": round(self.seconds, 1),
            "customers": self.customers,
            "events": self.proof.audit.counts,
            "expected": self.expected.as_dict(),
            "documents": {
                "invoices": outcome.invoices,
                "late_invoices": outcome.late_invoices,
                "notes": outcome.notes,
                "periods": list(outcome.sealed_periods),
                "corrected": len(outcome.corrected),
            },
            "dead_letters": dict(outcome.dead_letters),
            "sums": {
                "accounts": len(outcome.amounts),
                "even_micros": EVEN_MICROS,
                "found_micros": sum(outcome.amounts.values()),
                "off": len(self.proof.differences),
            },
            "laws": {verdict.law: verdict.broken for verdict in self.proof.audit.verdicts},
            "requests": {"answered": self.seen.latencies_ms.count, "failed": self.seen.failed},
            "latency_ms": self.seen.latencies_ms.quantiles(),
            "age_ms": self.seen.ages_ms.quantiles(),
            "pipeline": {"restarts": self.pipeline_restarts},
            "cluster": {"restarts": self.cluster_restarts},
        }

    def lines(self) -> list[str]:
        d, outcome, audit = self.as_dict(), self.proof.outcome, self.proof.audit
        counts, latency, age = audit.counts, d["latency_ms"], d["age_ms"]
        parts = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if name != "events")
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(outcome.dead_letters.items()))
        broken = [verdict.text for verdict in audit.verdicts if verdict.broken]
        return [
            f"events     {counts['events']:,} journalled = {parts}",
            f"documents  {outcome.invoices:,} invoices for the periods {', '.join(outcome.sealed_periods)}, "
            f"{outcome.late_invoices:,} of them for late events alone; {outcome.notes:,} notes",
            f"late       {self.expected.events.get('note', 0):,} events came too late, for {len(self.expected.late):,} "
            f"customers' periods; {len(outcome.corrected):,} were corrected",
            f"dead       {reasons or 'none'}",
            f"sums       {len(outcome.amounts):,} customers' periods of {format_micros(EVEN_MICROS)} each, "
            f"documents and open bills together; {len(self.proof.differences)} differences to what the generator made",
            f"audit      {len(audit.verdicts)} laws, {len(broken)} of them broken",
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


def snapshot(
    report: Mapping[str, Any],
    lines: Sequence[str],
    periods: Sequence[Mapping[str, Any]],
    bill: Mapping[str, Any],
    batches: Sequence[Mapping[str, Any]],
) -> str:
    """The file's content, from both forms of the report and the server's last answers."""
    verdict = ("ok", "Everything adds up.") if report["ok"] else ("off", "It does NOT add up.")
    parts = [
        _card("", f'<p class="verdict {verdict[0]}">{verdict[1]}</p>{_facts(report)}'),
        _card(
            "All customers, by period",
            _table(("Period", "Events", "Still open", "On invoices and notes", "Together"), _totals(periods)),
        ),
        _card(
            f"The bill of {bill['customer']}",
            _table(("Period", "State", "Documents", "Events", "Charged"), _bill(bill)),
        ),
        _card("Time of each batch", _bars(batches)),
        _card("The report", f"<pre>{escape(chr(10).join(lines))}</pre>"),
    ]
    return _page("".join(parts))


def _page(body: str) -> str:
    base = files("stateside.serving.pages").joinpath("static", "base.css").read_text()
    style = base[base.index(":root") :] + _STYLE  # without the fonts, which are separate files
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>A demo of Stateside</title><style>{style}</style></head>"
        f"<body><main><h1>A demo of Stateside</h1><p>&nbsp;</p>{body}</main></body></html>\n"
    )


def _facts(report: Mapping[str, Any]) -> str:
    documents, requests = report["documents"], report["requests"]
    facts = [
        ("Customers", f"{report['customers']:,}"),
        ("Events", f"{report['events']['events']:,}"),
        ("Invoices", f"{documents['invoices']:,}"),
        ("Notes", f"{documents['notes']:,}"),
        ("Dead letters", f"{sum(report['dead_letters'].values()):,}"),
        ("Answered", f"{requests['answered']:,}, {requests['failed']} failed"),
        ("Latency", _quantiles(report["latency_ms"])),
        ("Age of answers", _quantiles(report["age_ms"])),
    ]
    shown = (f'<div><dt>{name}</dt><dd class="num">{escape(value)}</dd></div>' for name, value in facts)
    return f'<dl class="facts">{"".join(shown)}</dl>'


def _quantiles(found: Mapping[str, Any]) -> str:
    return f"{age_text(found['p50'])}, 99 of 100 within {age_text(found['p99'])}"


def _totals(periods: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    for period in periods:
        for total in period["currencies"]:
            names = ("open_micros", "charged_micros", "total_micros")
            money = [_money(total[name], total["currency"]) for name in names]
            yield period["period"], f"{total['events']:,}", *money


def _bill(bill: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    for period in reversed(bill["periods"]):
        documents = ", ".join(document["number"] for document in period["documents"])
        charged = _money(period["charged_micros"], period["currency"])
        yield period["period"], period["state"], documents, f"{period['events']:,}", charged


def _bars(batches: Sequence[Mapping[str, Any]]) -> str:
    longest = max((batch["duration_ms"] for batch in batches), default=1)
    bars = (
        f'<i style="height:{max(2, _BAR_PX_MAX * batch["duration_ms"] // longest)}px" '
        f'title="batch {batch["batch"]}: {age_text(batch["duration_ms"])}, {batch["rows"]:,} events"></i>'
        for batch in batches
    )
    text = f"The last {len(batches)} batches; the longest took {age_text(longest)}."
    return f'<div class="batches" role="img" aria-label="{text}">{"".join(bars)}</div><p class="small muted">{text}</p>'


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col"{_right(index)}>{name}</th>' for index, name in enumerate(names))
    body = "".join(
        "<tr>" + "".join(f"<td{_right(index)}>{escape(value)}</td>" for index, value in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="table-wrap"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _right(index: int) -> str:
    return ' class="right"' if index else ""


def _card(title: str, content: str) -> str:
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return f'<section class="card">{heading}{content}</section>'


def _money(micros: int, currency: str) -> str:
    return format_micros(micros, currency)
