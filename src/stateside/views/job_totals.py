"""The totals of a view's job over all its runs, which metrics show as counters.

The runner adds each finished batch to `totals.json`, beside the heartbeat. A counter must never fall, or Prometheus
takes the fall for a restart from zero and counts everything again. So the totals are not computed from the kept
progress reports, whose oldest ones are dropped: the file goes on over restarts of job, server and machine, and is the
same for all processes of all servers.

    {"batches": 12, "rows": 3456, "starts": 2, "sink_held": false, "events_left": 0, "bounds_s": [0.05, …],
     "took": {"whole": {"buckets": [0, 3, …], "sum_s": 4.2}, "source": …},
     "operators": [{"rows": 120, "bytes": 4096}]}

A job whose first batches an older Stateside ran begins with the reports that are kept. A damaged file, and one with
other `bounds_s`, counts again from there: the one case in which counters fall. Another generation of the view has
totals of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from stateside.core.json_file import JsonFile
from stateside.spark_state.provider import counted_rows

WHOLE: Final = "whole"
PARTS: Final[Mapping[str, tuple[str, ...]]] = {  # of a batch, by the names in Spark's progress reports
    WHOLE: ("triggerExecution",),
    "source": ("latestOffset", "getBatch"),
    "planning": ("queryPlanning",),
    "execution": ("addBatch",),  # reads, folds, commits the state, and delivers to the sink
    "log": ("walCommit", "commitOffsets"),
}
BOUNDS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram: the number of batches in each bucket of BOUNDS_S and beyond, and the sum of their durations."""

    buckets: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    def plus(self, took_s: float) -> Durations:
        at = bisect_left(BOUNDS_S, took_s)
        more = (*self.buckets[:at], self.buckets[at] + 1, *self.buckets[at + 1 :])
        return Durations(more, round(self.sum_s + took_s, 3))

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Durations:
        buckets = tuple(map(int, document["buckets"]))
        if len(buckets) != len(BOUNDS_S) + 1:
            raise ValueError("a histogram has another number of buckets")
        return cls(buckets, float(document["sum_s"]))


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one stateful operator after the newest batch; `rows` is None where Spark does not count them."""

    rows: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class JobTotals:
    """`starts` of the query, in all runs; `events_left` in the source when the newest batch ended, if known.

    `sink_held`: a batch waits for its sink, as long as the job is in the state `holding`.
    """

    batches: int = 0
    rows: int = 0
    starts: int = 0
    took: Mapping[str, Durations] = field(default_factory=lambda: dict.fromkeys(PARTS, Durations()))
    operators: tuple[OperatorState, ...] = ()
    events_left: int | None = None
    sink_held: bool = False

    def plus(self, progress: Mapping[str, Any], events_left: int | None) -> JobTotals:
        """With one more batch, of which this is Spark's report."""
        durations = progress["durationMs"]
        took = {part: sum(durations.get(name, 0) for name in names) / 1_000 for part, names in PARTS.items()}
        return replace(
            self,
            batches=self.batches + 1,
            rows=self.rows + int(progress["numInputRows"]),
            took={part: self.took[part].plus(took[part]) for part in PARTS},
            operators=tuple(
                OperatorState(counted_rows(each), int(each["memoryUsedBytes"]))
                for each in progress.get("stateOperators", ())
            ),
            events_left=events_left,
        )

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> JobTotals:
        if tuple(document["bounds_s"]) != BOUNDS_S:
            raise ValueError("histograms have other bounds")
        fields = {name: value for name, value in document.items() if name != "bounds_s"}
        took = {part: Durations.parse(document["took"][part]) for part in PARTS}
        return cls(**fields | {"took": took, "operators": tuple(OperatorState(**one) for one in fields["operators"])})

    def as_dict(self) -> dict[str, Any]:
        return {"bounds_s": BOUNDS_S, **asdict(self)}


JOB_TOTALS: Final[JsonFile[JobTotals]] = JsonFile(
    "The totals of the job", JobTotals.parse, JobTotals.as_dict, durable=False, make_folder=False
)
