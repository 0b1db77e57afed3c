"""Findings, each provoked on a constructed inspection, and each absent on a near miss: a wrong finding is worse than
none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stateside.inspection.batch_reports import BatchReport, OperatorReport
from stateside.inspection.checkpoint_files import CheckpointFiles, DiskUse, PartitionState, StateSize
from stateside.inspection.examination import Inspection, JobStanding, ReplicaStanding, ViewInspection
from stateside.inspection.rules import CODES, RULES, Finding, findings

NOW_US = 1_800_000_000_000_000
SECOND_US, HOUR_US, MIB = 1_000_000, 3_600_000_000, 1 << 20
PARTS = {"source": 2, "planning": 20, "state_update": 90, "state_commit": 30, "compute": 100, "sink": 8, "log": 50}


def batch(number: int, **given: Any) -> BatchReport:
    """A healthy batch: 300 ms of each second, on two cores with two partitions, with nothing left over."""
    start_us = NOW_US - (60 - number) * SECOND_US
    healthy = BatchReport(
        number,
        start_us,
        duration_ms=300,
        parts_ms=PARTS,
        rows=1_000,
        left=0,
        watermark_us=start_us - 60 * SECOND_US,
        event_time_max_us=start_us,
        late_kept=False,
        cores=2,
        partitions=2,
        trigger_ms=1_000,
        task_ms=number * 500,
        gc_ms=number * 10,
        source_rows=(1_000,),
        operators=(OperatorReport("stateStoreSave", None, 900, 10),),
    )
    return replace(healthy, **given)


def batches(given: Callable[[int], dict[str, Any]] = lambda number: {}, count: int = 60) -> tuple[BatchReport, ...]:
    return tuple(batch(number, **given(number)) for number in range(60 - count, 60))


def partition(number: int, snapshot: int | None = 20 * MIB, changes: int = 10, changed: int = MIB) -> PartitionState:
    at = None if snapshot is None else NOW_US - 60 * SECOND_US
    version = None if snapshot is None else 50
    return PartitionState(0, number, "", 40, 30 * MIB, version, snapshot, at, changes, changed, changed // 10)


def sizes(*mib: float, hours: float = 1.0) -> tuple[StateSize, ...]:
    """Sizes of the state, each some hours after the one before."""
    begin_us = NOW_US - round(len(mib) * hours * HOUR_US)
    return tuple(StateSize(begin_us + round(n * hours * HOUR_US), round(size * MIB)) for n, size in enumerate(mib))


HEALTHY_FILES = CheckpointFiles(
    disk=(DiskUse("changelogs", 28_000, 300 * MIB, "Spark"),),
    partitions=(partition(0), partition(1)),
    sizes=sizes(39.8, 40, 39.9, 40, 40),
    changelog_bytes={59: 20_000},
    changelog_files=2,
    oldest_batch=40,
    newest_batch=59,
    kept_ms=1_200_000,
)


def files(**given: Any) -> CheckpointFiles:
    return replace(HEALTHY_FILES, **given)


def view(**given: Any) -> ViewInspection:
    healthy = ViewInspection(
        "bill",
        "/data/views/bill/checkpoint",
        NOW_US,
        job=JobStanding("idle", heard_ms=200),
        batches=batches(),
        files=HEALTHY_FILES,
        late_rows=17,
        dead_letters=3,
        replicas=(ReplicaStanding("bill", None, 59, lag_batches=0), ReplicaStanding("bill", "b", 58, silent_ms=300)),
    )
    return replace(healthy, **given)


def found(seen: ViewInspection, leadership: Any = None) -> list[Finding]:
    return findings(Inspection(NOW_US, "/data", (seen,), leadership=leadership))


def rows(count: int) -> tuple[OperatorReport, ...]:
    return (OperatorReport("stateStoreSave", None, 900, 10, late=count),)


def stalled(ms: int) -> tuple[OperatorReport, ...]:
    return (OperatorReport("stateStoreSave", None, 900, 10, stall_ms=ms),)


def kept(*removed: int) -> tuple[BatchReport, ...]:
    """Batches that removed so many rows."""
    return tuple(batch(59, operators=(OperatorReport("stateStoreSave", None, 9, each),)) for each in removed)


def slow(took_ms: int, **parts: int) -> tuple[BatchReport, ...]:
    """Batches that took so long, without a trigger's interval."""
    return batches(lambda _: {"parts_ms": {**PARTS, **parts}, "duration_ms": took_ms, "trigger_ms": 0})


STUCK_US = NOW_US - 2 * HOUR_US


def minutes(watermark_us: int | None = STUCK_US, **given: Any) -> tuple[BatchReport, ...]:
    """A batch each minute, all with one watermark."""
    each = {"watermark_us": watermark_us, **given}
    return batches(lambda number: {"start_us": NOW_US - (60 - number) * 60 * SECOND_US, **each}, 20)


def lines(*left: int, rows: int = 1_000) -> tuple[BatchReport, ...]:
    """Ten batches after which so many events were left."""
    return tuple(batch(50 + number, left=each, rows=rows) for number, each in enumerate(left))


SICK: dict[str, list[tuple[ViewInspection, str]]] = {
    "back-pressure": [(view(batches=lines(*range(2_000, 12_000, 1_000))), "11,000 events wait, 2,000 did 9.0 s ago")],
    "slow-checkpoint-storage": [
        (
            view(batches=slow(2_000, log=900, state_commit=600)),
            "spends 1.5 s of its 2.0 s on writing to the checkpoint: 900 ms for its logs",
        )
    ],
    "unbounded-state": [
        (
            view(batches=kept(0, 0), files=files(sizes=sizes(100, 130, 160, 190, 220))),
            "from 100.0 MiB to 220.0 MiB in 4.0",
        ),
        (view(ours=False, batches=(), files=files(sizes=sizes(100, 130, 160, 190, 220))), "30.0 MiB an hour"),
    ],
    "skewed-key": [
        (
            view(files=files(partitions=(partition(0, 90 * MIB), *map(partition, (1, 2, 3))))),
            "Partition 0 of operator 0",
        ),
        (view(files=files(partitions=(partition(0, None, changed=30 * MIB), partition(1, None)))), "30.0 times"),
    ],
    "late-data-lost": [
        (
            view(batches=batches(lambda number: {"operators": rows(3 * (number == 55))})),
            "3 rows of the last 20 batches",
        ),
        (view(batches=batches(lambda _: {"operators": rows(100)})), "10 % of 20,000 input rows"),
    ],
    "watermark-stuck": [
        (view(batches=minutes()), "stood still for 20 batches and 19 min, while 20,000 rows came in"),
        (view(batches=minutes(source_rows=(1_000, 0))), "stood still"),
    ],
    "small-files": [
        (view(files=files(changelog_files=200, changelog_bytes={59: 40_000})), "200 changelogs of 200 B in the mean"),
        (view(files=files(disk=(DiskUse("changelogs", 300_000, 300 * MIB, "Spark"),))), "300,000 files of 1.0 KiB"),
    ],
    "batch-longer-than-trigger": [
        (view(batches=batches(lambda _: {"duration_ms": 1_400})), "20 of the last 20 batches of bill took longer"),
    ],
    "snapshots-rare": [
        (view(files=files(partitions=(partition(0, changes=900, changed=400 * MIB), partition(1)))), "about 46.4 s"),
        (
            view(files=files(partitions=(partition(0, None, 300), partition(1, None, 300)))),
            "No partition of bill has a",
        ),
    ],
    "retention-short": [
        (
            view(replicas=(ReplicaStanding("bill", "b", 20, silent_ms=HOUR_US),)),
            "on b is at batch 20, and Spark keeps 20",
        ),
        (view(replicas=(ReplicaStanding("bill", None, 48, lag_batches=2),)), "bill is at batch 48"),
    ],
    "partitions-few": [(view(batches=batches(lambda _: {"cores": 16})), "A batch of bill has 2 tasks for 16 cores")],
    "memory-pressure": [
        (view(batches=batches(lambda number: {"gc_ms": number * 150})), "30% of their time in garbage collection"),
        (view(batches=batches(lambda _: {"operators": stalled(100)})), "held writers back for 2.0 s"),
    ],
    "dead-letters-rising": [
        (view(batches=batches(lambda number: {"dead_letters": 2 * (number > 55)})), "8 events became dead letters"),
    ],
    "unreadable": [(view(problems=("The plan offsets/3 of a committed batch is missing.",)), "offsets/3")],
}
GROWN = sizes(100, 130, 160, 190, 220)
WELL: dict[str, list[ViewInspection]] = {
    "back-pressure": [
        view(batches=lines(*range(12_000, 2_000, -1_000))),  # it catches up
        view(batches=lines(*[5_000] * 10)),  # it keeps its distance
        view(batches=lines(*range(100, 1_100, 100))),  # less than a batch
        view(batches=lines(0, *range(2_000, 11_000, 1_000))),  # a burst of nine batches
        view(batches=batches(lambda _: {"left": None})),
    ],
    "slow-checkpoint-storage": [
        view(batches=slow(700, log=400)),  # short
        view(batches=slow(9_000, log=1_500)),  # a small part
        view(batches=batches(lambda number: {"parts_ms": {**PARTS, "log": 5_000 * (number == 59)}})),  # once
        view(batches=tuple(replace(each, parts_ms={"log": 3_000}) for each in slow(4_000))),  # an estimate
    ],
    "unbounded-state": [
        view(batches=kept(0), files=files(sizes=sizes(100, 180, 210, 219, 220))),  # it slows down
        view(batches=kept(0), files=files(sizes=sizes(100, 130, 160, 190, 220, hours=0.1))),  # observed for minutes
        view(batches=kept(0), files=files(sizes=sizes(1, 2, 3, 4, 5))),  # small
        view(batches=kept(0), files=files(sizes=sizes(200, 205, 210, 215, 220))),  # slow
        view(batches=kept(0), files=files(sizes=sizes(100, 160, 130, 190, 220))),  # rows left meanwhile
        view(batches=kept(0, 3), files=files(sizes=GROWN)),  # rows are removed
    ],
    "skewed-key": [
        view(files=files(partitions=(partition(0, 50 * MIB), *map(partition, (1, 2, 3))))),
        view(files=files(partitions=(partition(0, MIB), partition(1, 1_000)))),  # small
        view(files=files(partitions=(partition(0, 90 * MIB), partition(1, None)))),  # one has no snapshot yet
        view(files=files(partitions=(partition(0, 90 * MIB),))),  # an aggregation without a key
    ],
    "late-data-lost": [
        view(batches=batches(lambda _: {"operators": rows(5), "late_kept": True})),  # late= keeps them
        view(batches=batches(lambda _: {"operators": rows(5), "late_kept": None})),  # a report of an older version
        view(batches=batches(lambda number: {"operators": rows(5 * (number < 40))})),  # long ago
    ],
    "watermark-stuck": [
        view(batches=minutes(rows=0)),  # no events at all
        view(batches=minutes(watermark_us=0)),  # no watermark
        view(batches=minutes(watermark_us=None)),
        view(batches=batches(lambda _: {"watermark_us": STUCK_US})),  # for one minute, in fast batches
        view(batches=minutes()[-5:]),  # few batches
    ],
    "small-files": [
        view(files=files(changelog_files=200, changelog_bytes={59: 200 * MIB})),  # large ones
        view(files=files(changelog_files=2, changelog_bytes={59: 100})),  # few
        view(  # as many as there are cores
            files=files(changelog_files=64, changelog_bytes={59: 64}),
            batches=batches(lambda _: {"cores": 64, "partitions": 64}),
        ),
        view(files=files(disk=(DiskUse("changelogs", 60_000, 60 * MIB, "Spark"),))),  # what 7,200 kept batches have
        view(files=files(disk=(DiskUse("snapshots", 300_000, 300_000 * MIB, "Spark"),))),
    ],
    "batch-longer-than-trigger": [
        view(batches=batches(lambda number: {"duration_ms": 1_400 if number % 2 else 900})),
        view(batches=batches(lambda _: {"duration_ms": 1_400, "trigger_ms": 0})),  # as soon as possible
        view(batches=batches(lambda _: {"duration_ms": 1_400, "trigger_ms": None})),
        view(batches=batches(lambda _: {"duration_ms": 1_400})[-4:]),  # the first ones load classes
        view(batches=batches(lambda _: {"duration_ms": 1_400, "rows": 0})),
    ],
    "snapshots-rare": [
        view(files=files(partitions=(partition(0, changes=240, changed=20 * MIB), partition(1)))),  # one each minute
        view(files=files(partitions=(partition(0, None, 50), partition(1, None, 50)))),  # a young query
        view(files=files(partitions=(partition(0, None, 300), partition(1, None, 300)), kept_ms=90_000)),
        view(ours=False, batches=(), files=files(partitions=tuple(partition(n, changes=240) for n in range(200)))),
        view(files=files(partitions=())),
    ],
    "retention-short": [
        view(replicas=(ReplicaStanding("bill", "b", 55, silent_ms=HOUR_US),)),  # lacks 4 of 20
        view(files=files(oldest_batch=0), replicas=(ReplicaStanding("bill", "b", 3, silent_ms=HOUR_US),)),
        view(replicas=(ReplicaStanding("bill", "b", None),)),
    ],
    "partitions-few": [
        view(batches=batches(lambda _: {"partitions": 4})),
        view(batches=batches(lambda _: {"cores": 16, "partitions": None})),  # an aggregation without a key
        view(batches=batches(lambda number: {"cores": 2 if number == 59 else 16})),
    ],
    "memory-pressure": [
        view(batches=batches(lambda number: {"gc_ms": number * 50})),
        view(batches=batches(lambda number: {"gc_ms": number * 20, "task_ms": number * 100})),  # seen on a new JVM
        view(batches=batches(lambda number: {"gc_ms": 90_000, "task_ms": number * 500})),  # all before these batches
        view(batches=batches(lambda number: {"gc_ms": number * 400})[-4:]),  # a start loads classes
        view(batches=batches(lambda _: {"gc_ms": None, "task_ms": None})),
        view(batches=batches(lambda _: {"operators": stalled(10)})),
    ],
    "dead-letters-rising": [
        view(batches=batches(lambda number: {"dead_letters": 900 * (number == 58)})),  # one bad import
        view(batches=batches(lambda number: {"dead_letters": number < 30}), dead_letters=4_000),  # long ago
    ],
    "unreadable": [view()],
}


@pytest.mark.parametrize(("code", "sick", "evidence"), [(code, *each) for code, some in SICK.items() for each in some])
def test_a_sick_job_has_this_finding_alone(code: str, sick: ViewInspection, evidence: str) -> None:
    (finding,) = found(sick)
    assert finding.code == code
    assert finding.view == "bill"
    assert evidence in finding.evidence
    assert finding.meaning.endswith(".") and finding.next_step.endswith(".")


@pytest.mark.parametrize(("code", "well"), [(code, each) for code, some in WELL.items() for each in some])
def test_a_near_miss_has_no_finding_at_all(code: str, well: ViewInspection) -> None:
    assert [each.code for each in found(well)] == []


def test_every_rule_is_provoked_and_narrowly_missed() -> None:
    assert set(SICK) == set(WELL) == set(RULES) - {"job", "replica"}


def test_a_healthy_view_and_one_without_any_batch_have_no_finding() -> None:
    assert found(view()) == []
    assert found(ViewInspection("new", "/data/views/new/checkpoint", NOW_US)) == []


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("down", "job-down", "The job of bill is down: its last heartbeat came 12.0 s ago"),
        ("failed", "job-failed", "The job of bill has failed, 12.0 s ago. The sink is full."),
        ("stopped", "job-stopped", "The job of bill is stopped, for 12.0 s now"),
        ("holding", "job-holding", "The job of bill waits. The sink is full."),
        ("removed", "view-removed", "bill is not declared any more"),
    ],
)
def test_a_job_that_does_not_run_is_a_finding(state: str, code: str, said: str) -> None:
    (finding,) = found(view(job=JobStanding(state, "The sink is full", 12_000)))
    assert (finding.code, finding.evidence.startswith(said)) == (code, True)


@pytest.mark.parametrize("state", ["running", "idle"])
def test_a_job_that_runs_is_none(state: str) -> None:
    assert found(view(job=JobStanding(state))) == []


def own(batch: int | None, lag: int | None = 0, trouble: str | None = None) -> ViewInspection:
    return view(replicas=(ReplicaStanding("bill", None, batch, lag, trouble),))


def test_a_replica_that_is_stuck_lags_or_is_not_loaded_is_a_finding() -> None:
    assert [each.code for each in found(own(59, trouble="The changelog is damaged"))] == ["replica-stuck"]
    assert [each.code for each in found(own(55, 4))] == ["replica-lags"]
    assert [each.code for each in found(own(None))] == ["not-answered"]
    assert found(own(56, 3)) == []
    assert found(own(59, None)) == []


def led(leader_ms: int | None, *standbys_ms: int, leader: bool = True) -> list[str]:
    who = {"identity": "a", "heard_ms": leader_ms} if leader else None
    told = {"lease_ms": 10_000, "leader": who, "standbys": [{"heard_ms": heard} for heard in standbys_ms]}
    return [f"{each.code}: {each.meaning}" for each in found(view(), told)]


def test_missing_leaders_and_standbys_are_findings() -> None:
    assert led(0, 0) == []
    assert led(9_000, 9_000) == []
    assert led(0) == ["no-standby: If the leader ends, nobody takes over."]
    assert led(0, 11_000) == ["no-standby: If the leader ends, nobody takes over."]
    assert led(11_000, 0) == ["leader-silent: A standby takes over in a moment."]
    assert led(None) == ["leader-silent: No standby takes over."]
    assert led(0, leader=False) == ["no-leader: No standby takes over."]


def test_the_most_severe_finding_comes_first() -> None:
    seen: Sequence[Finding] = found(
        view(job=JobStanding("down", heard_ms=9_000), batches=batches(lambda _: {"cores": 8, "duration_ms": 2_000}))
    )
    assert [each.code for each in seen] == ["job-down", "batch-longer-than-trigger", "partitions-few"]
    assert {each.code for each in seen} <= {*CODES, *RULES}


def test_a_watermark_that_stands_still_names_the_idle_source() -> None:
    (idle,) = found(view(batches=minutes(source_rows=(1_000, 0))))
    assert idle.meaning.startswith("Source 1 of 2 had no row")
    newer = tuple(replace(each, event_time_max_us=each.start_us) for each in minutes(source_rows=(500, 500)))
    (lagging,) = found(view(batches=newer))
    assert lagging.meaning.startswith("Newer events came, but one source lags")
