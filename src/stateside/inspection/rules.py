"""Findings: what an operator should look at, each with evidence, meaning and next step.

One implementation for `stateside inspect --explain`, the control room, `/v1/findings` and `/metrics`. A rule decides
from an `Inspection` alone. A wrong finding is worse than none: a rule without enough evidence finds nothing, and each
limit stands above what a healthy job shows (`tests/inspection/test_rules.py` has a near miss for each).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from stateside.core.clock import age_text
from stateside.inspection.batch_reports import PART_NAMES, PARTS, BatchReport
from stateside.inspection.examination import Inspection, ReplicaStanding, ViewInspection, skew

Severity = Literal["critical", "warning", "notice"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "notice")

RECENT: Final = 20  # batches that a rule looks at
FEW: Final = 5  # batches without which nothing can be said about a typical one
BACKLOG_BATCHES: Final = 10  # batches after each of which events were left
BACKLOG_GROWTH: Final = 1.2  # of the events left over these batches
STORAGE_MS: Final = 1_000  # of log writes and state commits in a batch
STORAGE_PART: Final = 0.25  # …and so much of the batch's duration
GROWTH_H: Final = 1.0  # observed at least so long
GROWTH_BYTES: Final = 64 << 20
GROWTH_FACTOR: Final = 1.25
SKEW: Final = 3.0  # the largest partition over the mean of the others
SKEW_BYTES: Final = 8 << 20
LATE_PART: Final = 0.01  # of the input rows: a warning instead of a notice
STUCK_MS: Final = 300_000
STUCK_BATCHES: Final = 10
SMALL_FILES: Final = 64  # changelogs of one batch
SMALL_BYTES: Final = 4 << 10  # in the mean
FILES: Final = 200_000  # of a checkpoint
FILE_BYTES: Final = 64 << 10  # in the mean
OVER_TRIGGER_PART: Final = 0.8  # of the batches take longer than the trigger's interval
RECOVERY_MS: Final = 30_000
NO_SNAPSHOT_BATCHES: Final = 200
NO_SNAPSHOT_MS: Final = 600_000
ABSENT_PART: Final = 0.5  # of the kept batches
GC_PART: Final = 0.15  # of the tasks' time
GC_MS: Final = 2_000  # …and so much of it: a JVM that has just started collects more than it works
STALL_PART: Final = 0.1  # of the batches' duration
LETTER_BATCHES: Final = 3
LAG_BATCHES: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a view (`view` is None for the whole application), by which numbers, and what to do."""

    code: str
    severity: Severity
    view: str | None
    evidence: str
    meaning: str
    next_step: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def findings(inspection: Inspection) -> list[Finding]:
    """All findings, the most severe first."""
    found = [*_leaders(inspection.leadership)]
    for view in inspection.views:
        found += [finding for rule in RULES.values() for finding in rule(view)]
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def _job(view: ViewInspection) -> Iterator[Finding]:
    job = view.job
    if job is None:
        return
    name, why, heard = view.view, f" {job.why}." if job.why else "", age_text(job.heard_ms)
    again = "Start it again with `stateside run`."
    match job.state:
        case "down":
            evidence = f"The job of {name} is down: its last heartbeat came {heard} ago."
            meaning = "It was killed, or its machine is gone. Answers go on, and get older."
            yield Finding("job-down", "critical", name, evidence, meaning, again)
        case "failed":
            evidence = f"The job of {name} has failed, {heard} ago.{why}"
            yield Finding(
                "job-failed", "critical", name, evidence, "Answers go on, and get older.", f"Mend it. {again}"
            )
        case "stopped":
            evidence = f"The job of {name} is stopped, for {heard} now."
            yield Finding("job-stopped", "warning", name, evidence, "Answers go on, and get older.", again)
        case "holding":
            meaning = "The batch is held, uncommitted, and repeated: nothing is lost."
            yield Finding(
                "job-holding",
                "warning",
                name,
                f"The job of {name} waits.{why}",
                meaning,
                "Mend the cause: it then goes on by itself.",
            )
        case "removed":
            evidence = f"{name} is not declared any more; its last rows are {heard} old."
            next_step = "Declare it again, or delete it with `stateside drop-generation`."
            yield Finding("view-removed", "notice", name, evidence, "Its last rows are served.", next_step)


def _replica(view: ViewInspection) -> Iterator[Finding]:
    for each in view.replicas:
        if each.server is not None:
            continue  # another server's
        name = each.view
        if each.trouble:
            meaning = "Answers stay at the replica's batch."
            yield Finding(
                "replica-stuck",
                "critical",
                name,
                f"The replica of {name} does not move on: {each.trouble}",
                meaning,
                "The server's log has the cause; it tries again by itself.",
            )
        if each.batch is None:
            yield Finding(
                "not-answered",
                "warning",
                name,
                f"{name} cannot be answered yet.",
                "Its replica is being loaded, or it has no batch.",
                "Wait for the first batch; `stateside views` shows the job's state.",
            )
        elif (each.lag_batches or 0) > LAG_BATCHES:
            evidence = f"The replica of {name} lacks {each.lag_batches:,} batches."
            yield Finding(
                "replica-lags",
                "warning",
                name,
                evidence,
                "It applies them as fast as it can; if this stays so, the server's machine is too busy.",
                "Give the server more of the machine, or a --share of the keys.",
            )


def _leaders(told: Mapping[str, Any] | None) -> Iterator[Finding]:
    if not told:
        return
    leader, lease_ms = told["leader"], told["lease_ms"]
    ready = any(standby["heard_ms"] <= lease_ms for standby in told["standbys"])
    meaning = "A standby takes over in a moment." if ready else "No standby takes over."
    start = "Wait for it." if ready else "Start one with `stateside run --standby`."
    if not leader:
        yield Finding("no-leader", "critical", None, "Nobody leads: the last leader has stopped.", meaning, start)
    elif leader["heard_ms"] is None or leader["heard_ms"] > lease_ms:
        heard = (
            ""
            if leader["heard_ms"] is None
            else f" for {age_text(leader['heard_ms'])}, with a lease of {age_text(lease_ms)}"
        )
        evidence = f"The leader {leader['identity']} is not heard{heard}: it was killed, paused or cut off."
        yield Finding("leader-silent", "critical", None, evidence, meaning, start)
    elif not ready:
        evidence = f"Nobody stands by: {leader['identity']} leads alone."
        yield Finding(
            "no-standby",
            "notice",
            None,
            evidence,
            "If the leader ends, nobody takes over.",
            "Start another one with `stateside run --standby`.",
        )


def _unreadable(view: ViewInspection) -> Iterator[Finding]:
    for problem in view.problems:
        meaning = "A part of the view's files is missing or damaged: figures lack it, and a restart may fail."
        next_step = "Bring the file back from a copy" + (
            ", or go back with `stateside savepoint restore`." if view.savepoints else "."
        )
        yield Finding("unreadable", "warning", view.view, problem, meaning, next_step)


def _back_pressure(view: ViewInspection) -> Iterator[Finding]:
    recent = [batch for batch in view.batches[-BACKLOG_BATCHES:] if batch.left]
    if len(recent) < BACKLOG_BATCHES:
        return
    first, last = recent[0], recent[-1]
    before, after = first.left or 0, last.left or 0
    in_batches = sum(batch.rows or 0 for batch in recent[1:])
    elapsed_s = (last.start_us - first.start_us) / 1_000_000
    growing = sum((b.left or 0) > (a.left or 0) for a, b in pairwise(recent)) >= len(recent) // 2
    if elapsed_s <= 0 or after < BACKLOG_GROWTH * before or not growing or after <= (last.rows or 0):
        return
    done, come = in_batches / elapsed_s, (in_batches + after - before) / elapsed_s
    more = (come - done) * 3_600
    evidence = (
        f"{after:,} events wait, {before:,} did {age_text(elapsed_s * 1_000)} ago: {come:,.0f} a second come in, and"
        f" batches take {done:,.0f} a second."
    )
    meaning = (
        f"The job of {view.view} cannot keep up: answers get older and older, by {more:,.0f} events an hour."
        f"{_largest_part(recent)}"
    )
    next_step = (
        'Larger batches cost less per event: raise `events_per_batch_max`, or set `profile = "throughput"`; more'
        " cores: `--master local[N]` or a cluster, and `stateside rescale`."
    )
    yield Finding("back-pressure", "critical", view.view, evidence, meaning, next_step)


def _largest_part(batches: Sequence[BatchReport]) -> str:
    """The part that takes most of the batches' time, in a sentence."""
    spent = {part: sum(batch.parts_ms.get(part, 0) for batch in batches) for part in PARTS}
    part, whole = max(PARTS, key=lambda part: spent[part]), sum(batch.duration_ms or 0 for batch in batches)
    return f" {spent[part] / whole:.0%} of a batch's time go to: {PART_NAMES[part]}." if spent[part] and whole else ""


def _slow_storage(view: ViewInspection) -> Iterator[Finding]:
    recent = [batch for batch in _recent(view) if "state_commit" in batch.parts_ms]
    if len(recent) < FEW:
        return
    spent = statistics.median(_storage_ms(batch) for batch in recent)
    took = statistics.median(batch.duration_ms or 0 for batch in recent)
    if spent < STORAGE_MS or spent < STORAGE_PART * took:
        return
    log = statistics.median(batch.parts_ms.get("log", 0) for batch in recent)
    evidence = (
        f"A batch of {view.view} spends {age_text(spent)} of its {age_text(took)} on writing to the checkpoint:"
        f" {age_text(log)} for its logs, the rest for the state's commit (median of {len(recent)} batches)."
    )
    meaning = "The storage of the checkpoint is slow, or far away; no batch can be shorter than that."
    next_step = "Put the checkpoint on a local or faster disk; or make fewer, larger batches: `batch_interval_ms`."
    yield Finding("slow-checkpoint-storage", "warning", view.view, evidence, meaning, next_step)


def _storage_ms(batch: BatchReport) -> float:
    return batch.parts_ms.get("log", 0) + batch.parts_ms.get("state_commit", 0)


def _unbounded(view: ViewInspection) -> Iterator[Finding]:
    sizes = view.files.sizes
    if len(sizes) < 3 or any(each.removed for batch in view.batches for each in batch.operators):
        return
    hours = (sizes[-1].time_us - sizes[0].time_us) / 3_600_000_000
    steps = [after.bytes - before.bytes for before, after in pairwise(sizes)]
    before, after = sizes[0].bytes, sizes[-1].bytes
    steady = min(steps) > 0 and steps[-1] >= 0.5 * statistics.mean(steps)
    if hours < GROWTH_H or after < GROWTH_BYTES or after < GROWTH_FACTOR * before or not steady:
        return
    per_h = (after - before) / hours
    evidence = (
        f"The state of {view.view} grew from {size_text(before)} to {size_text(after)} in {hours:.1f} hours,"
        f" {size_text(per_h)} an hour, without slowing down, and no row was removed."
    )
    doubles = age_text(after / per_h * 3_600_000)
    meaning = f"The state keeps every key that ever came; at this rate it doubles in {doubles}."
    next_step = (
        "If keys are meant to leave, group by a time window or a period with `withWatermark`, which removes closed"
        " rows; if not, plan the disk for it, and "
        + ('set `profile = "large-state"`.' if view.ours else "use RocksDB.")
    )
    yield Finding("unbounded-state", "warning", view.view, evidence, meaning, next_step)


def _skewed(view: ViewInspection) -> Iterator[Finding]:
    for operator, some in view.operators().items():
        factor = skew(some)
        total = sum((each.change_bytes if each.snapshot_bytes is None else each.snapshot_bytes) for each in some)
        if factor is None or factor <= SKEW or total < SKEW_BYTES:
            continue
        largest = max(some, key=lambda each: each.snapshot_bytes or each.change_bytes)
        evidence = (
            f"Partition {largest.partition} of operator {operator} of {view.view} has {factor:.1f} times the mean"
            f" state of the others ({len({each.partition for each in some}):,} partitions, {size_text(total)} in all)."
        )
        meaning = (
            "A few keys have most of the rows: their task takes longer than all others, and more cores do not help."
        )
        next_step = "Add a column to the view's key that spreads these keys, and add up with a rollup (`rollups=`)."
        yield Finding("skewed-key", "warning", view.view, evidence, meaning, next_step)


def _late(view: ViewInspection) -> Iterator[Finding]:
    recent = [batch for batch in _recent(view) if batch.late_kept is False]
    late, rows = sum(batch.late for batch in recent), sum(batch.rows or 0 for batch in recent)
    if not late:
        return
    part = late / max(1, rows)
    evidence = (
        f"{late:,} rows of the last {len(recent)} batches came too late for {view.view}: {100 * part:.2g} % of"
        f" {rows:,} input rows."
    )
    meaning = "Spark drops rows older than the watermark: they are in no answer. One row may stand for several events."
    next_step = 'Keep them with `late="dead_letters"` on the view, or allow more lateness in its `withWatermark`.'
    yield Finding(
        "late-data-lost", "warning" if part >= LATE_PART else "notice", view.view, evidence, meaning, next_step
    )


def _watermark(view: ViewInspection) -> Iterator[Finding]:
    still = _standing_still(view.batches)
    if len(still) < STUCK_BATCHES or not all(batch.rows for batch in still):
        return
    since_ms = (still[-1].start_us - still[0].start_us) / 1_000
    if since_ms < STUCK_MS:
        return
    rows = sum(batch.rows or 0 for batch in still)
    evidence = (
        f"The watermark of {view.view} has stood still for {len(still)} batches and {age_text(since_ms)}, while"
        f" {rows:,} rows came in."
    )
    meaning = f"{_why_still(still)} No window closes, nothing is emitted in append mode, and the state grows."
    next_step = (
        "Send events, or clock events, on the source that is idle; or let the fastest source decide:"
        " `spark.sql.streaming.multipleWatermarkPolicy=max`, which makes rows of slow sources late."
    )
    yield Finding("watermark-stuck", "warning", view.view, evidence, meaning, next_step)


def _standing_still(batches: Sequence[BatchReport]) -> list[BatchReport]:
    """The newest batches with one and the same watermark; empty without a watermark."""
    found: list[BatchReport] = []
    for batch in reversed(batches):
        if not batch.watermark_us or batch.watermark_us != batches[-1].watermark_us:
            break
        found.append(batch)
    return found[::-1]


def _why_still(still: Sequence[BatchReport]) -> str:
    sources = [sum(rows) for rows in zip(*(batch.source_rows for batch in still), strict=False)]
    if len(sources) > 1 and 0 in sources:
        return f"Source {sources.index(0)} of {len(sources)} had no row, and the slowest source decides."
    times = [batch.event_time_max_us for batch in still if batch.event_time_max_us]
    if times and max(times) > times[0]:
        return "Newer events came, but one source lags, and the slowest source decides."
    return "No event with a newer time came: a source is idle or lags, or its events have old times."


def _small_files(view: ViewInspection) -> Iterator[Finding]:
    files, size = sum(use.files for use in view.files.disk), sum(use.bytes for use in view.files.disk)
    newest = view.files.newest_batch
    count = view.files.changelog_files
    mean = view.files.changelog_bytes.get(newest, 0) / max(1, count) if newest is not None else 0
    cores = next((batch.cores for batch in reversed(view.batches) if batch.cores), None)
    if count >= SMALL_FILES and mean <= SMALL_BYTES and (cores is None or count > 4 * cores):
        evidence = f"Each batch of {view.view} writes {count:,} changelogs of {size_text(mean)} in the mean."
        next_step = (
            _FEWER if view.ours else "Start the query on a new checkpoint with a smaller spark.sql.shuffle.partitions."
        )
    elif files >= FILES and size / files <= FILE_BYTES:
        evidence = f"The checkpoint of {view.view} has {files:,} files of {size_text(size / files)} in the mean."
        next_step = "Keep fewer batches (`batches_kept`), or make fewer of them: `batch_interval_ms`."
    else:
        return
    meaning = "Opening, listing and deleting files costs more than the state itself, above all on object stores."
    yield Finding("small-files", "warning", view.view, evidence, meaning, next_step)


_FEWER: Final = "Use fewer partitions, with the job stopped: `stateside rescale --dir DIR --partitions N`."


def _over_trigger(view: ViewInspection) -> Iterator[Finding]:
    recent = [batch for batch in _recent(view) if batch.trigger_ms and batch.rows]
    longer = [batch for batch in recent if (batch.duration_ms or 0) > (batch.trigger_ms or 0)]
    if len(recent) < FEW or len(longer) < OVER_TRIGGER_PART * len(recent):
        return
    took = statistics.median(batch.duration_ms or 0 for batch in recent)
    trigger_ms = recent[-1].trigger_ms or 0
    evidence = (
        f"{len(longer)} of the last {len(recent)} batches of {view.view} took longer than the trigger's interval of"
        f" {age_text(trigger_ms)}: {age_text(took)} in the median."
    )
    late = age_text(max(0, took - trigger_ms))
    meaning = f"Batches start {late} late; answers are older than the interval promises.{_largest_part(recent)}"
    next_step = "Raise `batch_interval_ms` above the duration, or give Spark more cores: `stateside rescale`."
    yield Finding("batch-longer-than-trigger", "warning", view.view, evidence, meaning, next_step)


def _snapshots(view: ViewInspection) -> Iterator[Finding]:
    partitions, recovery = view.partitions, view.recovery_ms
    if not partitions or recovery is None:
        return
    most = max(partitions, key=lambda each: each.change_bytes)
    if recovery >= RECOVERY_MS:
        total = sum(each.change_bytes for each in partitions)
        evidence = (
            f"A restart of {view.view} replays {most.changes:,} changelogs of partition {most.partition}, and"
            f" {size_text(total)} in all, since the last snapshots: about {age_text(recovery)} (estimated)."
        )
    elif _never(view):
        evidence = f"No partition of {view.view} has a snapshot, after {most.changes:,} changelogs."
    else:
        return
    meaning = "Snapshots are written too rarely, or fail: recovery, and the loading of a new replica, take long."
    next_step = (
        "Lower spark.sql.streaming.stateStore.minDeltasForSnapshot or"
        " spark.sql.streaming.stateStore.maintenanceInterval (`--spark NAME=VALUE`), and look for snapshot errors in"
        " Spark's log."
    )
    yield Finding("snapshots-rare", "warning", view.view, evidence, meaning, next_step)


def _never(view: ViewInspection) -> bool:
    without = all(each.snapshot_version is None for each in view.partitions)
    long = max(each.changes for each in view.partitions) >= NO_SNAPSHOT_BATCHES
    return without and long and (view.files.kept_ms or 0) >= NO_SNAPSHOT_MS


def _retention(view: ViewInspection) -> Iterator[Finding]:
    oldest, newest = view.files.oldest_batch, view.files.newest_batch
    if not oldest or newest is None:  # from batch 0 on: nothing was deleted so far
        return
    kept = newest - oldest + 1
    for each in view.replicas:
        if each.batch is None or newest - each.batch < ABSENT_PART * kept:
            continue
        yield _absent(view, each, oldest, kept)


def _absent(view: ViewInspection, replica: ReplicaStanding, oldest: int, kept: int) -> Finding:
    batch = replica.batch or 0
    whose = f"The replica of {replica.view}" + (f" on {replica.server}" if replica.server else "")
    span = "" if view.files.kept_ms is None else f", {age_text(view.files.kept_ms)}"
    evidence = f"{whose} is at batch {batch:,}, and Spark keeps {kept:,} batches{span}, from {oldest:,} on."
    gone = batch + 1 < oldest
    meaning = (
        "The changes that it lacks are deleted: it is loaded again from snapshots."
        if gone
        else "It has missed more than half of the batches that are kept: soon it must be loaded again from snapshots."
    )
    next_step = "Raise `batches_kept` (spark.sql.streaming.minBatchesToRetain) above the longest absence in batches."
    return Finding("retention-short", "warning" if gone else "notice", replica.view, evidence, meaning, next_step)


def _partitions(view: ViewInspection) -> Iterator[Finding]:
    last = view.batches[-1] if view.batches else None
    if last is None or not last.cores or not last.partitions or last.partitions >= last.cores:
        return
    evidence = f"A batch of {view.view} has {last.partitions:,} tasks for {last.cores:,} cores."
    meaning = f"The state has fewer partitions than Spark has cores: {last.cores - last.partitions:,} of them idle."
    next_step = f"With the job stopped: `stateside rescale --dir DIR --partitions {last.cores}`."
    yield Finding("partitions-few", "notice", view.view, evidence, meaning, next_step)


def _memory(view: ViewInspection) -> Iterator[Finding]:
    recent = _recent(view)
    counted = [batch for batch in recent if batch.gc_ms is not None and batch.task_ms is not None]
    next_step = 'Give Spark more memory (`driver_memory`, spark.executor.memory), or set `profile = "large-state"`.'
    if len(counted) >= FEW:
        gc, tasks = _risen(counted, "gc_ms"), _risen(counted, "task_ms")
        if gc >= GC_MS and gc >= GC_PART * tasks:
            evidence = (
                f"Tasks of the last {len(counted)} batches spent {gc / tasks:.0%} of their time in garbage collection."
            )
            meaning = "The heap is nearly full: batches slow down, and may end with OutOfMemoryError."
            yield Finding("memory-pressure", "warning", view.view, evidence, meaning, next_step)
            return
    stalled = sum(each.stall_ms for batch in recent for each in batch.operators)
    took = sum((batch.duration_ms or 0) * max(1, batch.cores or 1) for batch in recent)
    if len(recent) >= FEW and stalled >= STALL_PART * took:
        evidence = (
            f"RocksDB held writers back for {age_text(stalled)} in the last {len(recent)} batches of {view.view}."
        )
        meaning = "Its write buffers fill faster than they are flushed: memory or disk is too small."
        yield Finding("memory-pressure", "warning", view.view, evidence, meaning, next_step)


def _risen(batches: Sequence[BatchReport], name: str) -> int:
    """The sum of a counter's steps; a restart of Spark begins with 0."""
    values = [int(getattr(batch, name)) for batch in batches]
    return sum(after - before for before, after in pairwise(values) if after >= before)


def _letters(view: ViewInspection) -> Iterator[Finding]:
    recent = _recent(view)
    with_letters = [batch for batch in recent if batch.dead_letters]
    if len(with_letters) < LETTER_BATCHES:
        return
    letters, rows = sum(batch.dead_letters for batch in with_letters), sum(batch.rows or 0 for batch in recent)
    evidence = (
        f"{letters:,} events became dead letters of {view.view}, in {len(with_letters)} of the last {len(recent)}"
        f" batches, beside {rows:,} input rows; {view.dead_letters or letters:,} so far."
    )
    meaning = "A producer sends events that do not fit the declared fields: they are in no answer."
    next_step = (
        "`stateside dead-letters --dir DIR` lists them with their reasons; mend the producer, then append them again."
    )
    yield Finding("dead-letters-rising", "warning", view.view, evidence, meaning, next_step)


def _recent(view: ViewInspection) -> Sequence[BatchReport]:
    return view.batches[-RECENT:]


def size_text(size: float) -> str:
    """Bytes for people: 900 B, 4.2 KiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1_024:
            return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1_024
    return f"{size:,.1f} TiB"


CODES: Final = (  # beside those of RULES
    *("job-down", "job-failed", "job-stopped", "job-holding", "view-removed"),
    *("replica-stuck", "replica-lags", "not-answered"),
    *("no-leader", "leader-silent", "no-standby"),
)
Rule = Callable[[ViewInspection], Iterator[Finding]]
RULES: Final[Mapping[str, Rule]] = {
    "job": _job,
    "replica": _replica,
    "unreadable": _unreadable,
    "back-pressure": _back_pressure,
    "slow-checkpoint-storage": _slow_storage,
    "unbounded-state": _unbounded,
    "skewed-key": _skewed,
    "late-data-lost": _late,
    "watermark-stuck": _watermark,
    "small-files": _small_files,
    "batch-longer-than-trigger": _over_trigger,
    "snapshots-rare": _snapshots,
    "retention-short": _retention,
    "partitions-few": _partitions,
    "memory-pressure": _memory,
    "dead-letters-rising": _letters,
}
