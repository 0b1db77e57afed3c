"""Another number of partitions for the state of views: `stateside rescale`, while no job runs.

1. No job may run on the folder, none may start (`leadership.excluding_drivers`), and nobody else changes generations.
   The views whose state has another number of partitions are found, and all of them are checked: their last batch must
   be finished, because Spark would otherwise deliver it a second time.
2. The files that a query needs to go on after the last batch (`views.savepoint`) are linked or copied into the folder
   of a new generation, with the view's other files, and the tables of its archive. Spark never changes a file.
3. Spark repartitions the copy: it adds a batch without input, which has every row in its new partition.
4. Every row of the old state and of the new one is read with Stateside's own reader: the counts, and the sums of the
   rows' digests, must be equal for each store of each operator.
5. All files are made durable. Then one file names the new generations of all views, in one step; the ones before are
   kept. The query keeps its id and the numbers of its batches, so a sink gets the next batch, and no batch twice.

A failure or a kill before step 5 leaves the old generations as they were, and a folder that no pointer names; the next
change deletes it. The same command can be repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stateside.core.errors import CheckpointInvalid, RequestInvalid, ViewInvalid
from stateside.core.layout import Layout, ViewGeneration, ViewLayout, ViewPointer
from stateside.core.storage import Storage, make_durable
from stateside.leadership import excluding_drivers
from stateside.pipeline.comparison import known_views
from stateside.pipeline.declaration import state_partitions
from stateside.pipeline.failures import reason
from stateside.pipeline.migration import family_rows, finished_batch
from stateside.pipeline.session import session_conf, start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import OnStep, ignore_step
from stateside.pipeline.view_query import bring_home
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS, Checkpoint, Commit, Plan
from stateside.views.heartbeat import Heartbeat
from stateside.views.savepoint import Savepoint, bring, check_whole
from stateside.views.state_catalogue import JOIN_STORES, StoreCheckpoint, one_store
from stateside.views.view_generations import alone, carry_over, link_archive, new_generation, sweep, switch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Note = Callable[[str], None]
Digests = dict[str, tuple[int, int]]  # of each store: its rows, and the sum of their digests
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A view whose state has another number of partitions, as a new generation."""

    view: str
    partitions: int
    rows: int
    before: ViewGeneration
    after: ViewGeneration

    def __str__(self) -> str:
        return (
            f"{self.view}: {self.rows:,} rows in {self.partitions} partitions; generation {self.after.number} is "
            f"served from now on; generation {self.before.number} is kept"
        )


def rescale(
    folder: Path,
    partitions: int,
    views: Collection[str] = (),
    *,
    settings: RunSettings | None = None,
    session: SparkSession | None = None,
    note: Note = lambda _: None,
    on_step: OnStep = ignore_step,
) -> list[Rescaled]:
    """Bring the state of these views, or of all, to so many partitions; returns the views that had another number.

    PipelineRunning while a job runs, ViewInvalid if the last batch of a view is not finished, or if Spark cannot
    repartition its state: then nothing was changed. Starts Spark, unless there is a session.
    """
    settings = settings or RunSettings()
    with alone(Layout(folder)), excluding_drivers(folder, settings.lease_s_max) as (root, lock):
        layout = Layout(root)
        on_step(1)
        check_whole(layout)
        sweep(layout)
        chosen = _chosen(layout, partitions, views)
        for places in chosen:
            _check(places)
        if not chosen:
            return []
        scratch = layout.spark / "rescale"
        with _session("rescale", scratch, settings, lock) if session is None else nullcontext(session) as spark:
            rescaling = _Rescaling(layout, spark, partitions, note, on_step)
            made = [rescaling.make(places) for places in chosen]
        on_step(5)
        switch(layout, ((each.view, each.before, each.after) for each in made), at_once=False)
        return made


def _chosen(layout: Layout, partitions: int, views: Collection[str]) -> list[ViewLayout]:
    known = known_views(layout)
    for name in (name for name in views if name not in known):
        raise RequestInvalid(f"No view {name!r} has run here", next_step=f"There are: {', '.join(known) or 'none'}")
    found = [known[name] for name in (views or known) if views or not _is_removed(known[name])]
    return [each for each in found if state_partitions(each) not in (None, partitions)]


def _is_removed(places: ViewLayout) -> bool:
    heartbeat = Heartbeat.load(places.heartbeat)
    return heartbeat is not None and heartbeat.state == "removed"


def _check(places: ViewLayout) -> None:
    """ViewInvalid for a state that is not repartitioned; Spark refuses others."""
    checkpoint = Checkpoint(Storage.at(places.checkpoint))
    finished_batch(checkpoint, places.name)
    if any(map(checkpoint.without_key, checkpoint.operators())):  # Spark would put its row where no query looks for it
        raise _refused(places.name, "one of its aggregations has no key, and so a single row")


def _refused(view: str, why: str) -> ViewInvalid:
    return ViewInvalid(
        f"The state of the view {view!r} cannot be repartitioned: {why}",
        next_step=f"Nothing was changed. Fold the view again: `stateside apply --refold {view} --partitions N`; or "
        "rescale the others, each with --view",
    )


@contextmanager
def _session(name: str, scratch: Path, settings: RunSettings, lock: int | None = None) -> Iterator[SparkSession]:
    session = start_session(name, scratch, master=settings.master, conf=settings.spark_conf(), lease=lock)
    try:
        yield session
    finally:
        stop_session(session)


class _Rescaling:
    """Makes a new generation of each view."""

    def __init__(self, layout: Layout, spark: SparkSession, partitions: int, note: Note, on_step: OnStep) -> None:
        self._layout, self._spark, self._partitions = layout, spark, partitions
        self._note, self._on_step = note, on_step

    def make(self, old: ViewLayout) -> Rescaled:
        """Steps 2 to 4."""
        pointer = self._layout.pointers().get(old.name) or ViewPointer(ViewGeneration(1, old.name))
        assert pointer.current is not None, "the view has run"
        generation = new_generation(self._layout, old.name, pointer)
        new, checkpoint = self._layout.at(old.name, generation), Checkpoint(Storage.at(old.checkpoint))
        commit = finished_batch(checkpoint, old.name)
        self._on_step(2)
        self._note(f"{old.name}: the files of batch {commit.batch} are linked")
        _copy(old, new, commit)
        self._on_step(3)
        self._note(f"{old.name}: Spark repartitions the state from {state_partitions(old)} to {self._partitions}")
        self._repartition(new)
        self._on_step(4)
        self._note(f"{old.name}: all rows are compared")
        rows = self._compare(checkpoint, Checkpoint(Storage.at(new.checkpoint)), commit, new)
        make_durable(new.root)
        return Rescaled(old.name, self._partitions, rows, pointer.current, generation)

    def _repartition(self, new: ViewLayout) -> None:
        """Step 3, with the settings of state stores that the query had."""
        plan, _ = Checkpoint(Storage.at(new.checkpoint)).newest_plan()
        _ = self._spark.streams  # starts the coordinator of state stores, which Spark itself forgets before a query ran
        with session_conf(self._spark, _sql_conf(plan)):
            try:
                self._spark._streamingCheckpointManager.repartition(str(new.checkpoint), self._partitions)
            except Exception as error:
                raise _refused(new.name, reason(error)) from error

    def _compare(self, old: Checkpoint, new: Checkpoint, commit: Commit, places: ViewLayout) -> int:
        """Step 4; returns the rows of all stores."""
        added = new.commit(commit.batch + 1)
        plans = old.plan(commit.batch), new.plan(added.batch)
        counts = {new.partitions(operator, plans[1], added) for operator in new.operators()}
        found, expected = state_digests(new, added, places.root), state_digests(old, commit, places.root)
        if found != expected or counts != {self._partitions} or plans[0].position != plans[1].position:
            raise CheckpointInvalid(
                f"The repartitioned state of the view {places.name!r} is not the one before: it has the rows "
                f"{_told(found)} and should have {_told(expected)}, in {sorted(counts)} partitions",
                where=str(places.root),
                next_step="Nothing was changed: the view is served and runs as before. Please report this",
            )
        return sum(rows for rows, _ in found.values())


def _copy(old: ViewLayout, new: ViewLayout, commit: Commit) -> None:
    """Step 2. The heartbeat stays valid, and so does the age of answers: the new state ends at the same position."""
    carry_over(old, new.root, "tables")
    with suppress(FileNotFoundError):
        shutil.copy2(old.heartbeat, new.heartbeat)
    bring(Checkpoint(Storage.at(old.checkpoint)), commit.batch, new.checkpoint)
    bring_home(new.checkpoint)
    link_archive(old, new)


def _sql_conf(plan: Plan) -> dict[str, str]:
    found = {name: value for name, value in plan.conf.items() if name.startswith("spark.sql.")}
    return {name: value for name, value in found.items() if name != SHUFFLE_PARTITIONS}


def state_digests(checkpoint: Checkpoint, commit: Commit, scratch: Path) -> Digests:
    """Of every store, and every column family of it."""
    found: Digests = {}
    for operator in checkpoint.operators():
        inside = checkpoint.storage.names(f"state/{operator}/0")
        for store in [name for name in JOIN_STORES if name in inside] or [""]:
            one = StoreCheckpoint(one_store(checkpoint.storage, operator, store)) if store else checkpoint
            found[f"{operator}/{store}"] = _digest(one, one.commit(commit.batch), operator, scratch)
    return found


def _digest(checkpoint: Checkpoint, commit: Commit, operator: int, scratch: Path) -> tuple[int, int]:
    count, digests = 0, 0
    for partition in range(checkpoint.partitions(operator, checkpoint.plan(commit.batch), commit)):
        with TemporaryDirectory(prefix="comparing-", dir=scratch) as folder:
            for family, key, value in family_rows(checkpoint, commit, operator, partition, Path(folder)):
                sizes = f"{family} {len(key)} {len(value)} ".encode()
                digest = blake2b(sizes + key + value, digest_size=_DIGEST_BYTES).digest()
                count, digests = count + 1, digests + int.from_bytes(digest)
    return count, digests % (1 << 8 * _DIGEST_BYTES)


def verify_rows(part: Savepoint, session: SparkSession | None = None) -> dict[str, int]:
    """The rows of each store of a savepoint's state, as read here and as Spark's own reader counts them.

    CheckpointInvalid if they differ. Stores that Spark's reader needs more options for are read here alone. Starts
    Spark, unless there is a session.
    """
    checkpoint = Checkpoint(Storage.at(part.checkpoint))
    with TemporaryDirectory(prefix="stateside-verify-") as folder:
        own = state_digests(checkpoint, checkpoint.commit(part.batch), Path(folder))
        scratch = Path(folder) / "spark"
        with _session("verify", scratch, RunSettings()) if session is None else nullcontext(session) as spark:
            for store, (rows, _) in own.items():
                operator, _, name = store.partition("/")
                counted = None if name else _counted_by_spark(spark, part, operator)
                if counted not in (None, rows):
                    raise CheckpointInvalid(
                        f"Spark reads {counted:,} rows from the state of the savepoint {part.name}, and not {rows:,}",
                        where=str(part.checkpoint),
                        next_step="Use another savepoint, and please report this",
                    )
    return {store.rstrip("/"): rows for store, (rows, _) in own.items()}


def _counted_by_spark(session: SparkSession, part: Savepoint, operator: str) -> int | None:
    """None for an operator that the reader does not read without further options."""
    from pyspark.errors import PySparkException

    reader = session.read.format("statestore").option("operatorId", operator).option("batchId", part.batch)
    try:
        return reader.load(str(part.checkpoint)).count()
    except PySparkException as error:
        if "STDS_REQUIRED_OPTION_UNSPECIFIED" in str(error):
            return None
        raise CheckpointInvalid(
            f"Spark cannot read the state of the savepoint {part.name}: {reason(error)}", where=str(part.checkpoint)
        ) from error


def _told(digests: Digests) -> str:
    return ", ".join(f"{rows:,} in {store} (digest {digest:x})" for store, (rows, digest) in digests.items())
