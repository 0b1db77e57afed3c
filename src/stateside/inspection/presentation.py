"""An inspection for people: sections of tables, series for plots, and one self-contained HTML page of both.

The terminal shows the same sections (`cli.inspection`). The page has inline styles and SVG, no script, and loads
nothing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Final

from stateside.core.clock import age_text
from stateside.inspection.batch_reports import PART_NAMES, PARTS, BatchReport
from stateside.inspection.examination import Inspection, ViewInspection, skew
from stateside.inspection.rules import Finding, size_text

PARTITIONS_SHOWN: Final = 8  # the largest ones
_WITH_SINK: Final = ", and the sink"
_UNKNOWN: Final = "–"


@dataclass(frozen=True, slots=True)
class Section:
    """A table. `sides` has l or r for each column."""

    title: str
    head: tuple[str, ...]
    sides: str
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Values over batches or times, oldest first; None where unknown."""

    name: str
    values: tuple[float | None, ...]
    text: Callable[[float], str]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]


def sections(view: ViewInspection, *, brief: bool = False) -> list[Section]:
    """All tables of a view, `brief` without partitions and disk; tables without a row are left out."""
    found = [_facts(view), _parts(view), _operators(view), *([] if brief else [_partitions(view), _disk(view)])]
    return [section for section in found if section.rows]


def series(view: ViewInspection) -> list[Series]:
    """The plots of a view; those without two known values are left out."""
    batches = view.batches
    found = [
        _over(batches, "duration of a batch", lambda batch: batch.duration_ms, age_text),
        _over(batches, "input rows of a batch", lambda batch: batch.rows, _count),
        _over(batches, "events left after a batch", lambda batch: batch.left, _count),
        _over(batches, "rows in the state", lambda batch: batch.state_rows, _count),
        _over(batches, "changelogs of a batch", lambda batch: batch.changelog_bytes, size_text),
        _over(batches, "late rows of a batch", lambda batch: batch.late if batch.operators else None, _count),
        Series("size of the state", tuple(each.bytes for each in view.files.sizes), size_text),
    ]
    return [each for each in found if len(each.known) > 1 and any(each.known)]


def _over(
    batches: Sequence[BatchReport],
    name: str,
    of: Callable[[BatchReport], float | None],
    text: Callable[[float], str],
) -> Series:
    return Series(name, tuple(of(batch) for batch in batches), text)


def headline(view: ViewInspection) -> str:
    """The view, its newest batch and its job in a line."""
    newest = view.files.newest_batch if not view.batches else view.batches[-1].batch
    batch = "no batch yet" if newest is None else f"batch {newest:,}"
    ended = "" if view.last_batch_ms is None else f", ended {age_text(view.last_batch_ms)} ago"
    job = "a query of others" if view.job is None else f"job {view.job.state}"
    return f"{view.view}: {batch}{ended}; {job}"


def notes(view: ViewInspection) -> list[str]:
    """What a reader of the figures must know."""
    if view.estimates:
        return [f"Without progress reports, estimated from the times and sizes of files: {', '.join(view.estimates)}."]
    return [] if view.batches else ["No batch has been reported so far."]


def _facts(view: ViewInspection) -> Section:
    files = view.files
    kept = (
        None
        if files.oldest_batch is None or files.newest_batch is None
        else files.newest_batch - files.oldest_batch + 1
    )
    rows = [
        ("batches", _batches_text(view)),
        ("trigger", _trigger_text(view)),
        ("watermark", _time_text(view.watermark_us)),
        ("watermark's lag", _maybe(view.watermark_lag_ms, age_text)),
        ("late rows", _maybe(view.late_rows if view.ours else None, _count, "0" if view.ours else _UNKNOWN)),
        ("dead letters", _maybe(view.dead_letters if view.ours else None, _count, "0" if view.ours else _UNKNOWN)),
        ("size of the state", _maybe(view.state_bytes, size_text)),
        ("growth of the state", _growth_text(view)),
        ("oldest snapshot", _maybe(view.snapshot_age_ms, lambda age: f"{age_text(age)} old")),
        ("recovery, estimated", _maybe(view.recovery_ms, age_text)),
        ("batches kept", _maybe(kept, _count) + ("" if not files.kept_ms else f", {age_text(files.kept_ms)}")),
        *([("savepoints", f"{view.savepoints:,}")] if view.ours else []),
    ]
    return Section("Facts", ("figure", "value"), "ll", tuple(rows))


def _batches_text(view: ViewInspection) -> str:
    took = [batch.duration_ms for batch in view.batches if batch.duration_ms is not None]
    if not took:
        return f"{len(view.batches):,}"
    return f"{len(view.batches):,}: {age_text(median(took))} in the median, {age_text(max(took))} the longest"


def _trigger_text(view: ViewInspection) -> str:
    interval = view.batches[-1].trigger_ms if view.batches else None
    if interval is None:
        return _UNKNOWN
    delays = [batch.delay_ms for batch in view.batches if batch.delay_ms is not None]
    late = f"; batches start {age_text(median(delays))} late in the median" if delays else ""
    return f"each {age_text(interval)}{late}" if interval else "as soon as there are events"


def _growth_text(view: ViewInspection) -> str:
    bytes_, rows = view.growth_bytes_per_h, view.growth_rows_per_h
    told = [f"{size_text(bytes_)} an hour"] if bytes_ is not None else []
    return ", ".join(told + ([f"{rows:,.0f} rows an hour"] if rows is not None else [])) or _UNKNOWN


def _parts(view: ViewInspection) -> Section:
    batches = [batch for batch in view.batches if batch.parts_ms]
    whole = sum(batch.duration_ms or 0 for batch in batches) or 1
    timed = any("sink" in batch.parts_ms for batch in batches)
    rows = []
    for part in PARTS:
        took = [batch.parts_ms[part] for batch in batches if part in batch.parts_ms]
        if took:
            share = f"{sum(took) / whole:.0%}"
            name = f"{PART_NAMES[part]}{_WITH_SINK if part == 'compute' and not timed else ''}"
            rows.append((name, age_text(median(took)), age_text(max(took)), share, sparkline(took)))
    note = "Durations of the state are sums over tasks, divided by the tasks that run at the same time."
    head = ("part of a batch", "median", "longest", "share", "newest batches")
    return Section("Parts of a batch", head, "lrrrl", tuple(rows), "" if view.estimates else note)


def _operators(view: ViewInspection) -> Section:
    reported = {number: each for batch in view.batches[-1:] for number, each in enumerate(batch.operators)}
    rows = []
    for operator, some in view.operators().items():
        told = reported.get(operator)
        keys = [each.keys for each in some if each.keys is not None]
        counted = told.rows if told is not None and told.rows is not None else sum(keys) if keys else None
        factor = skew(some)
        rows.append(
            (
                f"{operator}" if told is None else f"{operator} {told.name}",
                f"{len({each.partition for each in some}):,}",
                _maybe(counted, _count, "not counted"),
                _maybe(None if told is None else told.updated, _count),
                _maybe(None if told is None else told.removed, _count),
                _maybe(None if told is None else told.late, _count),
                size_text(sum(each.bytes for each in some)),
                _maybe(factor, lambda value: f"{value:.1f}"),
            )
        )
    head = ("operator", "partitions", "rows", "updated", "removed", "late", "on disk", "skew")
    note = "Updated, removed and late: in the newest batch. Skew: the largest partition over the mean of the others."
    return Section("State by operator", head, "lrrrrrrr", tuple(rows), note)


def _partitions(view: ViewInspection) -> Section:
    largest = sorted(view.partitions, key=lambda each: -each.bytes)[:PARTITIONS_SHOWN]
    rows = [
        (
            f"{each.operator}/{each.partition}{f'/{each.store}' if each.store else ''}",
            f"{each.files:,}",
            size_text(each.bytes),
            _maybe(each.snapshot_bytes, size_text, "none"),
            _maybe(each.snapshot_us, lambda at: age_text((view.time_us - at) / 1_000)),
            f"{each.changes:,}",
            size_text(each.change_bytes),
            size_text(each.change_bytes_last),
        )
        for each in largest
    ]
    head = ("partition", "files", "on disk", "snapshot", "its age", "changelogs since", "their size", "the last one")
    more = len(view.partitions) - len(largest)
    return Section(
        "Largest partitions", head, "lrrrrrrr", tuple(rows), f"{more:,} smaller ones are not shown." if more else ""
    )


def _disk(view: ViewInspection) -> Section:
    rows = [(use.kind, f"{use.files:,}", size_text(use.bytes), use.trimmed_by) for use in view.disk]
    return Section("On disk", ("kind", "files", "bytes", "trimmed by"), "lrrl", tuple(rows))


def application_disk(inspection: Inspection) -> Section:
    """The files of the application besides those of its views."""
    rows = [(use.kind, f"{use.files:,}", size_text(use.bytes), use.trimmed_by) for use in inspection.disk]
    return Section("The application on disk", ("kind", "files", "bytes", "trimmed by"), "lrrl", tuple(rows))


def _maybe(value: float | None, text: Callable[[float], str], unknown: str = _UNKNOWN) -> str:
    return unknown if value is None else text(value)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _time_text(time_us: int | None) -> str:
    return _UNKNOWN if time_us is None else f"{datetime.fromtimestamp(time_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


_BARS: Final = "▁▂▃▄▅▆▇█"
SPARKS: Final = 30  # so that tables fit into 80 columns


def sparkline(values: Sequence[float | None]) -> str:
    """The newest values as bars from 0 to the largest one; a space where unknown."""
    shown = values[-SPARKS:]
    most = max((value for value in shown if value is not None), default=0) or 1
    return "".join(" " if value is None else _BARS[min(7, int(8 * max(value, 0) / most))] for value in shown)


def page(inspection: Inspection, found: Sequence[Finding]) -> str:
    """The whole inspection as an HTML page."""
    at = _time_text(inspection.time_us)
    body = [f"<h1>{_text(inspection.location)}</h1><p class=muted>Inspected at {at}</p>", _findings(found)]
    for view in inspection.views:
        body += [f"<h2>{_text(headline(view))}</h2>"]
        body += [f"<p class=problem>{_text(problem)}</p>" for problem in view.problems]
        body += [f"<p class=muted>{_text(note)}</p>" for note in notes(view)]
        body += ["<div class=plots>", *(_plot(each) for each in series(view)), "</div>"]
        body += [_table(section) for section in sections(view)]
    if inspection.disk:
        body.append(_table(application_disk(inspection)))
    title = f"Inspection of {html.escape(inspection.location)}"
    head = f"<meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}{''.join(body)}</html>\n"


def _findings(found: Sequence[Finding]) -> str:
    if not found:
        return "<p class=ok>No finding.</p>"
    items = (
        f"<li class={each.severity}><b>{_text(each.evidence)}</b><br>{_text(each.meaning)}<br>"
        f"<span class=next>{_text(each.next_step)}</span> <code>{each.code}</code></li>"
        for each in found
    )
    return f"<ul class=findings>{''.join(items)}</ul>"


def _table(section: Section) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        sided = zip(values, section.sides, strict=True)
        return "".join(f"<{tag} class={side}>{_text(value)}</{tag}>" for value, side in sided)

    rows = "".join(f"<tr>{cells('td', row)}</tr>" for row in section.rows)
    note = f"<p class=muted>{_text(section.note)}</p>" if section.note else ""
    return f"<h3>{section.title}</h3><table><tr>{cells('th', section.head)}</tr>{rows}</table>{note}"


_WIDTH, _HEIGHT, _TOP = 420, 120, 17


def _plot(shown: Series) -> str:
    most, newest = max(shown.known) or 1, shown.known[-1]
    points = " ".join(_points(shown.values, most))
    label = f"{shown.name}: at most {shown.text(max(shown.known))}, {shown.text(newest)} at last"
    return (
        f"<figure><figcaption>{_text(shown.name)} <b>{_text(shown.text(newest))}</b></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="{html.escape(label)}">'
        f"<line x1=0 y1={_HEIGHT - 1} x2={_WIDTH} y2={_HEIGHT - 1} class=axis />"
        f"<line x1=0 y1={_TOP} x2={_WIDTH} y2={_TOP} class=grid />"
        f'<text x=2 y=12>{_text(shown.text(max(shown.known)))}</text><polyline points="{points}" /></svg></figure>'
    )


def _points(values: Sequence[float | None], most: float) -> Iterator[str]:
    step = _WIDTH / max(1, len(values) - 1)
    for place, value in enumerate(values):
        if value is not None:
            yield f"{place * step:.1f},{_HEIGHT - 2 - (_HEIGHT - 2 - _TOP) * max(value, 0) / most:.1f}"


def _text(value: str) -> str:
    """Escaped; what stands in backquotes as code, and bars as bars."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(value))
    return re.sub(rf"([{_BARS} ]{{2,}})", r"<span class=bars>\1</span>", marked) if _BARS[0] in marked else marked


_STYLE: Final = (
    ":root{color-scheme:light dark;--line:#8884;--accent:#3949ab;--muted:#777}"
    "@media(prefers-color-scheme:dark){:root{--accent:#9fa8da;--muted:#999}}"
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin-top:2.2rem}"
    "h3{font-size:1rem;margin:1.6rem 0 .3rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}"
    "td,th{padding:.2rem .9rem .2rem 0;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}"
    "td.r,th.r{text-align:right}.muted{color:var(--muted);font-size:.9em}"
    ".problem{border-left:4px solid #c62828;padding-left:.6rem}.findings{list-style:none;padding:0}"
    ".findings li{border-left:4px solid var(--line);padding:.3rem .8rem;margin:.6rem 0}"
    ".findings .critical{border-color:#c62828}.findings .warning{border-color:#f9a825}"
    ".findings .notice{border-color:var(--accent)}.next{font-style:italic}"
    ".ok{border-left:4px solid #2e7d32;padding-left:.6rem}code{font-size:.9em}li>code:last-child{color:var(--muted)}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(280px,1fr));gap:1rem}figure{margin:0}"
    "figcaption{font-size:.9em}svg{width:100%;height:auto}polyline{fill:none;stroke:var(--accent);stroke-width:2}"
    ".axis{stroke:var(--line)}.grid{stroke:var(--line);stroke-dasharray:3 4}text{font-size:13px;fill:var(--muted)}"
    ".bars{color:var(--accent);font-size:.7em}"
)
