"""The plans of a view's past batches: the content of Spark's own log (`offsets/N`), kept for longer than there.

    views/VIEW/batches.jsonl     {"query": "6f7e…"}
                                 [7, "v1", {"batchWatermarkMs": …, "batchTimestampMs": …}, ["{\\"journal\\": …}"]]
                                 …, a line for each committed batch: its number, and the lines of its plan, without the
                                 settings, which all batches of a query share
    views/VIEW/replay.jsonl      the same, of the batches to run again

A view restored at batch N, or rolled back to it, runs the batches after N again. With the same plans they read the same
events, at the same watermarks, and have the same rows under the same numbers: so every sink recognises what it has
stored. Spark itself repeats a batch whose plan is in its log and whose commit is not; `BatchReplay` writes one plan at
a time there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stateside.core.errors import CheckpointGap
from stateside.core.layout import ViewLayout
from stateside.core.storage import Storage, write_atomically
from stateside.spark_state.batch_log import Checkpoint

LINES_KEPT: Final = 100_000  # at least; about 150 bytes each
_CONF: Final = "conf"
_CHECKPOINTS: Final = "checkpoint*"  # version 0.1.0 put checkpoints aside when it restored


@dataclass(frozen=True, slots=True)
class PastPlan:
    """The plan of a batch."""

    batch: int
    version: str
    metadata: Mapping[str, Any]
    sources: tuple[str, ...]

    @classmethod
    def read(cls, checkpoint: Checkpoint, batch: int) -> PastPlan:
        """The plan in Spark's log; FileNotFoundError if it is gone."""
        version, metadata, *sources = checkpoint.storage.read(f"offsets/{batch}").decode().rstrip("\n").split("\n")
        document = {name: value for name, value in json.loads(metadata).items() if name != _CONF}
        return cls(batch, version, document, tuple(sources))

    @classmethod
    def parse(cls, line: str) -> PastPlan:
        batch, version, metadata, sources = json.loads(line)
        return cls(int(batch), version, metadata, tuple(sources))

    def line(self) -> str:
        return json.dumps([self.batch, self.version, self.metadata, self.sources], separators=(",", ":")) + "\n"

    def content(self, conf: Mapping[str, str]) -> bytes:
        """The file of the plan, for a query with these settings."""
        metadata = json.dumps({**self.metadata, _CONF: dict(conf)}, separators=(",", ":"))
        return "\n".join([self.version, metadata, *self.sources]).encode()


class PlanHistory:
    """The history of one query. One writer; readers at any time.

    A run drops old lines at its start: those from `keep_from()` on stay, and the newest `LINES_KEPT`.
    """

    def __init__(self, path: Path, checkpoint: Checkpoint, keep_from: Callable[[], int | None]) -> None:
        self._path, self._checkpoint, self._keep_from = path, checkpoint, keep_from
        self._last: int | None = None  # the last batch noted; None before the first call

    def note(self, batches: Iterable[int]) -> None:
        """Note these committed batches; the first call also notes those that an earlier run left."""
        if self._last is None:
            query = self._checkpoint.query_id()
            if query is None:
                return
            self._last, batches = self._begin(query), self._checkpoint.commits()
        new = list(self._plans(batch for batch in batches if batch > self._last))
        if new:
            with self._path.open("a") as file:
                file.writelines(plan.line() for plan in new)
            self._last = new[-1].batch

    def _plans(self, batches: Iterable[int]) -> Iterator[PastPlan]:
        """Their plans, without those that Spark has deleted: whoever needs one notices the gap."""
        for batch in batches:
            with suppress(FileNotFoundError):
                yield PastPlan.read(self._checkpoint, batch)

    def _begin(self, query: str) -> int:
        """Rewrite the file if it is another query's, too long, or cut short by a crash; returns its last batch."""
        plans = list(read_plans(self._path, query))
        last, keep_from = plans[-1].batch if plans else -1, self._keep_from()
        first = last - LINES_KEPT if keep_from is None else min(keep_from, last - LINES_KEPT)
        if not plans or plans[0].batch < first or not _is_whole(self._path):
            write_plans(self._path, query, [plan for plan in plans if plan.batch >= first])
        return last


def read_plans(path: Path, query: str | None) -> Iterator[PastPlan]:
    """The plans in a file, ascending, if they are of this query; a line cut short by a crash is left out."""
    try:
        first, *lines = path.read_text().splitlines()
        if json.loads(first)["query"] != query:
            return
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return
    for line in lines:
        try:
            yield PastPlan.parse(line)
        except (ValueError, TypeError):
            continue


def write_plans(path: Path, query: str, plans: Iterable[PastPlan]) -> None:
    lines = [json.dumps({"query": query}) + "\n", *(plan.line() for plan in plans)]
    write_atomically(path, "".join(lines).encode(), make_folder=False)


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def prepare_replay(view: ViewLayout, generations: Iterable[ViewLayout]) -> int:
    """Have a generation repeat the batches that others of the same query ran or began after its last one.

    Returns their number. CheckpointGap if one of the plans is not known any more.
    """
    checkpoint = Checkpoint(Storage.at(view.checkpoint))
    query, last = checkpoint.query_id(), checkpoint.commits()[-1]
    assert query is not None, "a generation with a batch has the file of its query"
    plans = _plans_after(last, query, generations)
    write_plans(view.replayed, query, plans)
    return len(plans)


def _plans_after(batch: int, query: str, generations: Iterable[ViewLayout]) -> list[PastPlan]:
    found: dict[int, PastPlan] = {}
    ran = [
        (each.batches, checkpoint)
        for each in generations
        for path in each.root.glob(_CHECKPOINTS)
        if (checkpoint := Checkpoint(Storage.at(path))).query_id() == query
    ]
    for path, checkpoint in ran:
        logged = (int(name) for name in checkpoint.storage.names("offsets") if name.isdigit())
        plans = [*read_plans(path, query), *(PastPlan.read(checkpoint, each) for each in logged if each > batch)]
        found |= {plan.batch: plan for plan in plans if plan.batch > batch}
    missing = set(range(batch + 1, max(found, default=batch) + 1)) - found.keys()
    if missing or not ran:
        raise CheckpointGap(
            f"The plans of the batches after batch {min(missing, default=batch + 1) - 1} are not known any more",
            next_step="So they cannot run again as they were. If the view has no sink, or one that recognises rows "
            "by a key, let them run in other batches: --deliver-again",
        )
    return [found[number] for number in sorted(found)]


class BatchReplay:
    """The batches that a restored view runs again, each with its plan of before."""

    def __init__(self, path: Path, checkpoint: Checkpoint) -> None:
        self._checkpoint, query = checkpoint, checkpoint.query_id()
        self._plans = {plan.batch: plan for plan in read_plans(path, query)}

    def left(self) -> int:
        """How many batches are left."""
        last = self._checkpoint.commits()[-1:] if self._plans else []
        return sum(batch > last[0] for batch in self._plans) if last else 0

    def plan_next(self) -> bool:
        """Write the plan of the next batch into Spark's log; False if no batch is left. For the query's driver."""
        commits = self._checkpoint.commits() if self._plans else []
        plan = self._plans.get(commits[-1] + 1) if commits else None
        if plan is None:
            return False
        path = Path(self._checkpoint.storage.path(f"offsets/{plan.batch}"))
        if not path.exists():
            write_atomically(path, plan.content(self._checkpoint.plan(commits[-1]).conf), make_folder=False)
        return True
