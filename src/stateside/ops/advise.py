"""Advice on the settings of a state: which store, how many partitions, how much memory, which batches, and why.

    measure_folder, measure_checkpoint   read the files of checkpoints: no Spark, and nothing is written
    advise                               decides from a `Measured` alone, so that the same figures get the same advice
    render, as_json                      the advice for people and for programs

Two costs decide about the store. The HDFS-backed store keeps all rows in the heap, and copies its map of all keys with
each batch that changes one of them; an update itself is cheap. RocksDB copies nothing, and an update passes through
JNI, the write buffer and the changelog. So few keys, or batches that change most of them, belong into memory. The
thresholds are from short trials of 10,000 to 1,000,000 keys on two busy cores; `make bench ARGS=advise` tests them. The
replay rates are estimates.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from stateside.core.errors import CheckpointGap, RequestInvalid
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.leadership import ApplicationLease
from stateside.ops.doctor import MEMORY_BYTES_MIN, memory_bytes
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS, Checkpoint, Commit, Plan
from stateside.spark_state.changelog import StateChange, gone
from stateside.spark_state.checkpoint_folder import FoundCheckpoint, examine, located
from stateside.spark_state.provider import Chain, HdfsSnapshot, Provider, newest_chain, provider_of, read_batch_changes
from stateside.spark_state.rocksdb_snapshot import count_keys
from stateside.spark_state.slices import ChangeBlock
from stateside.views.state_catalogue import JOIN_STORES

OBSERVED_S_MIN: Final = 600.0
BATCHES_MIN: Final = 10
HEAP_BYTES_PER_ROW: Final = 200  # Java objects of a key, a value and two versions of the map, beside the row's bytes
COPIED_KEYS_PER_UPDATE: Final = 20  # copying so many keys of the map costs as much as one update in RocksDB
COPIED_KEYS_FREE: Final = 50_000  # fewer are copied in a few milliseconds, whatever a batch changes
STATE_SHARE: Final = 0.5  # of the memory that is left beside Spark and Python: the other half is for the page cache
PARTITION_BYTES_MAX: Final = 4 << 30  # in RocksDB: a task on a new host loads the snapshot of a partition alone
BLOCK_CACHE_MB_MIN: Final = 8  # Spark's default, for each store
WRITE_BUFFER_MB: Final = 64  # RocksDB's default; a store has two
WRITE_BUFFER_MB_MIN: Final = 4
REPLAY_S_MAX: Final = 10.0  # of changelogs, after a crash
REPLAY_ROWS_PER_S: Final = 200_000  # in one task; an estimate
REPLAY_FILE_S: Final = 0.005
MAINTENANCE_S: Final = 60  # Spark's default: snapshots are written so far apart
MAINTENANCE_S_MIN: Final = 10
SNAPSHOT_BATCHES: Final = 10  # Spark's default: and so many batches at least
SNAPSHOT_BATCHES_MIN: Final = 2
BATCH_MS_LONG: Final = 5_000.0
BATCH_TARGET_MS: Final = 2_000
FAST_UPDATES_PER_S: Final = 25_000  # of one core: half of what it folds
_SAMPLED: Final = 10  # batches whose changes are read
_PLANS: Final = 20  # the newest batches, for their duration
_COPIED_US: Final = 2_000_000  # a commit later than the next trigger by this much is a copy's
_STATE: Final = "spark.sql.streaming.stateStore"
_ROCKSDB: Final = f"{_STATE}.rocksdb"
_MB: Final = 1 << 20
_WITHOUT_FOLDER: Final = "or give --keys, --row-bytes and --updates-per-s"
_NAMES: Final = {Provider.HDFS: "in memory (HDFS-backed)", Provider.ROCKSDB: "RocksDB"}
Settings = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a state, or of all states of an application: they share the memory of one Spark.

    `updates_per_s` counts the keys that each batch changes, once for each batch. `stores` are the state stores of each
    partition: one for each stateful operator. `rocksdb_because` is the reason why no other store is possible, if any.
    `observed_s` and `batches` are None for figures that were given, not measured.
    """

    keys: int
    row_bytes: float
    updates_per_s: float
    memory_bytes: int
    cores: int
    updates_per_batch: float | None = None
    batch_ms: float | None = None
    stores: int = 1
    partitions: int | None = None
    provider: Provider | None = None
    rocksdb_because: str | None = None
    observed_s: float | None = None
    batches: int | None = None

    @property
    def state_bytes(self) -> float:
        return self.keys * self.row_bytes

    @property
    def heap_bytes(self) -> float:
        """The heap that the state takes in the HDFS-backed store."""
        return self.keys * (self.row_bytes + HEAP_BYTES_PER_ROW)

    @property
    def budget_bytes(self) -> float:
        """The memory that a state may take, as heap or as RocksDB's caches and buffers."""
        return (self.memory_bytes - MEMORY_BYTES_MIN) * STATE_SHARE

    @property
    def changed_per_batch(self) -> float:
        """The keys that a batch changes; of unknown batches, those of a second."""
        return min(self.keys, self.updates_per_s if self.updates_per_batch is None else self.updates_per_batch)

    @property
    def batches_per_s(self) -> float:
        """One, if unknown."""
        return self.updates_per_s / self.updates_per_batch if self.updates_per_batch else 1.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to choose for one topic, the reason in a sentence, and the settings that do it (none: as it is)."""

    topic: str
    choice: str
    reason: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Advice:
    """Recommendations that go together."""

    measured: Measured
    recommendations: tuple[Recommendation, ...]

    def settings(self) -> dict[str, Any]:
        """The settings as a layer of `RunSettings`."""
        flat = dict(each for one in self.recommendations for each in one.settings.items())
        ours = {name: value for name, value in flat.items() if not name.startswith("spark.")}
        return {**ours, "spark": {name: str(value) for name, value in flat.items() if name.startswith("spark.")}}

    @property
    def in_memory(self) -> bool:
        return self.recommendations[0].settings[f"{_STATE}.providerClass"] == Provider.HDFS.value


def advise(measured: Measured, store: Provider | None = None) -> Advice:
    """The advice that follows from these figures; RequestInvalid if they are impossible, or say too little.

    With a `store`, the advice for this one, whether or not it is the better one.
    """
    _check(measured)
    backend = choose_store(measured) if store is None else _on(measured, store, "This store was asked for.")
    in_memory = backend.settings[f"{_STATE}.providerClass"] == Provider.HDFS.value
    partitions = partition_count(measured, in_memory)
    stores = partitions * measured.stores
    sized = [_heap(measured)] if in_memory else _rocksdb(measured, stores)
    parts = [backend, _partitions(measured, partitions), *sized, _snapshots(measured, partitions), _batches(measured)]
    return Advice(measured, (*parts, _profile(measured, in_memory)))


def _check(measured: Measured) -> None:
    if measured.observed_s is not None and measured.batches is not None:
        _check_observed(measured, measured.observed_s, measured.batches)
    numbers = {"keys": measured.keys, "row-bytes": measured.row_bytes, "updates-per-s": measured.updates_per_s}
    for name, value in {**numbers, "cores": measured.cores}.items():
        least = 0 if name == "updates-per-s" else 1
        if not (math.isfinite(value) and value >= least):
            raise RequestInvalid(f"--{name} is {value:g}", next_step=f"It must be a number from {least} on")
    if measured.budget_bytes <= 0:
        raise RequestInvalid(
            f"{_size(measured.memory_bytes)} of memory are too little for any state",
            next_step=f"Spark, Python and a server alone take {_size(MEMORY_BYTES_MIN)}: give more with --memory",
        )


def _check_observed(measured: Measured, observed_s: float, batches: int) -> None:
    empty = not measured.keys or not measured.row_bytes
    seen = "no batch has changed a row" if empty else f"{_count(batches, 'batch')} in {observed_s:,.0f} s"
    if observed_s < OBSERVED_S_MIN or batches < BATCHES_MIN or empty:
        raise RequestInvalid(
            f"Not enough is known: {seen}", next_step=f"Run it for an hour, then ask again, {_WITHOUT_FOLDER}"
        )


def choose_store(measured: Measured) -> Recommendation:
    """RocksDB or the HDFS-backed store, which keeps the state in memory."""
    keys, changed = f"{measured.keys:,} keys", f"{measured.changed_per_batch:,.0f}"
    if measured.rocksdb_because is not None:
        return _on(measured, Provider.ROCKSDB, measured.rocksdb_because)
    if measured.heap_bytes > measured.budget_bytes:
        need, budget = _size(measured.heap_bytes), _size(measured.budget_bytes)
        return _on(
            measured, Provider.ROCKSDB, f"{keys} would take {need} of heap, and {budget} can be spared for the state."
        )
    if measured.keys > max(COPIED_KEYS_FREE, COPIED_KEYS_PER_UPDATE * measured.changed_per_batch):
        return _on(
            measured, Provider.ROCKSDB, f"In memory each batch copies the map of {keys} to change {changed} of them."
        )
    fits = f"{keys} take {_size(measured.heap_bytes)} of heap, and a batch that changes {changed} is faster in memory;"
    return _on(
        measured, Provider.HDFS, f"{fits} this store has checkpoint format 1: for a job with standbys take RocksDB."
    )


def _on(measured: Measured, store: Provider, reason: str) -> Recommendation:
    settings: Settings = {
        f"{_STATE}.providerClass": store.value,
        f"{_STATE}.checkpointFormatVersion": 1 if store is Provider.HDFS else 2,
    }
    if measured.provider not in (None, store):  # Spark keeps a checkpoint's store, but not its format
        reason += " The state is in the other store now, and a run of it with these settings fails: it has to be folded"
        reason += " again, with `stateside apply --refold VIEW` or, for a query of others, on a new checkpoint."
    return Recommendation("state backend", _NAMES[store], reason, settings)


def partition_count(measured: Measured, in_memory: bool) -> int:
    """As many as cores; in RocksDB a multiple, so that no partition is larger than PARTITION_BYTES_MAX."""
    rounds = 1 if in_memory else math.ceil(measured.state_bytes / measured.cores / PARTITION_BYTES_MAX)
    return measured.cores * max(1, rounds)


def _partitions(measured: Measured, count: int) -> Recommendation:
    size = _size(measured.state_bytes / count)
    reason = f"{measured.cores} cores work on {count} partitions at {size} each."
    if measured.partitions in (None, count):
        return Recommendation("partitions", f"{count}", reason, {"partitions": count})
    now = f"{reason} There are {measured.partitions} now; `stateside rescale` changes the number of an existing state."
    return Recommendation("partitions", f"{count}", now, {"partitions": count})


def _heap(measured: Measured) -> Recommendation:
    heap_gib = math.ceil((measured.heap_bytes + MEMORY_BYTES_MIN / 2) / (1 << 30))
    reason = f"The state takes {_size(measured.heap_bytes)} of it, and tasks and shuffles 1 GiB."
    return Recommendation("heap", f"{heap_gib} GiB", reason, {"driver_memory": f"{heap_gib}g"})


def _rocksdb(measured: Measured, stores: int) -> list[Recommendation]:
    return [_changelog(measured), _block_cache(measured, stores), _write_buffers(measured, stores)]


def _changelog(measured: Measured) -> Recommendation:
    written = _size(measured.changed_per_batch * measured.row_bytes)
    reason = f"A commit then writes the {written} that a batch changes; without, it uploads RocksDB's own files."
    return Recommendation("changelog", "on", reason, {f"{_ROCKSDB}.changelogCheckpointing.enabled": "true"})


def _block_cache(measured: Measured, stores: int) -> Recommendation:
    budget_mb = int(measured.budget_bytes / _MB)
    wanted_mb = _power_of_two(measured.state_bytes / stores / _MB, BLOCK_CACHE_MB_MIN)
    if wanted_mb * stores <= budget_mb:
        reason = f"{stores} stores at {_size(measured.state_bytes / stores)}: each then reads from memory."
        return Recommendation(
            "block cache", f"{wanted_mb} MB a store", reason, {f"{_ROCKSDB}.blockCacheSizeMB": wanted_mb}
        )
    reason = f"The state of {_size(measured.state_bytes)} exceeds the {_size(budget_mb * _MB)} that can be spared: all "
    reason += "stores share one cache, and cannot grow beyond."
    bounded: Settings = {f"{_ROCKSDB}.boundedMemoryUsage": "true", f"{_ROCKSDB}.maxMemoryUsageMB": budget_mb}
    return Recommendation("block cache", f"{budget_mb:,} MB for all stores", reason, bounded)


def _write_buffers(measured: Measured, stores: int) -> Recommendation:
    """Two buffers of each store, within a quarter of the budget."""
    allowed_mb, default = measured.budget_bytes / 4 / (2 * stores) / _MB, _size(2 * stores * WRITE_BUFFER_MB * _MB)
    if allowed_mb >= WRITE_BUFFER_MB:
        reason = f"Two for each of {stores} stores take {default} at most, which can be spared."
        return Recommendation("write buffers", f"{WRITE_BUFFER_MB} MB, as by default", reason, {})
    size_mb = max(WRITE_BUFFER_MB_MIN, 2 ** int(math.log2(max(1.0, allowed_mb))))
    reason = (
        f"Two of {WRITE_BUFFER_MB} MB for each of {stores} stores would be {_size(2 * stores * WRITE_BUFFER_MB * _MB)}."
    )
    return Recommendation("write buffers", f"{size_mb} MB", reason, {f"{_ROCKSDB}.writeBufferSizeMB": size_mb})


def _snapshots(measured: Measured, partitions: int) -> Recommendation:
    """A crash replays the changes since the last snapshot; tasks replay their partitions at the same time."""
    tasks, per_s = min(partitions, measured.cores), measured.batches_per_s
    replay = measured.updates_per_s / tasks / REPLAY_ROWS_PER_S + per_s * REPLAY_FILE_S  # of a second's changes
    wanted_s = REPLAY_S_MAX / replay if replay else math.inf
    interval_s = int(min(max(wanted_s, MAINTENANCE_S_MIN), MAINTENANCE_S))
    batches = int(min(max(wanted_s * per_s, SNAPSHOT_BATCHES_MIN), SNAPSHOT_BATCHES)) if per_s else SNAPSHOT_BATCHES
    apart_s = max(interval_s, batches / per_s if per_s else 0)
    settings: dict[str, str | int] = {}
    if interval_s != MAINTENANCE_S:
        settings[f"{_STATE}.maintenanceInterval"] = f"{interval_s}s"
    if batches != SNAPSHOT_BATCHES:
        settings[f"{_STATE}.minDeltasForSnapshot"] = batches
    reason = f"A crash replays the changes since the last snapshot, for an estimated {replay * apart_s:.1f} s."
    default = "" if settings else ", as by default"
    return Recommendation("snapshots", f"{apart_s:,.0f} s apart{default}", reason, settings)


def _batches(measured: Measured) -> Recommendation:
    if measured.batch_ms is None:
        return Recommendation("batches", "as they are", "How long batches take is not known.", {})
    took = f"A batch takes {measured.batch_ms / 1_000:.1f} s"
    if measured.batch_ms <= BATCH_MS_LONG:
        return Recommendation("batches", "as they are", f"{took}: answers are hardly older.", {})
    reason = f"{took}: answers are as old, and a restart repeats as much."
    return Recommendation("batches", f"of {BATCH_TARGET_MS} ms", reason, {"batch_target_ms": BATCH_TARGET_MS})


def _profile(measured: Measured, in_memory: bool) -> Recommendation:
    if not in_memory and measured.state_bytes > measured.budget_bytes:
        return Recommendation(
            "profile", "large-state", "The state is larger than its memory.", {"profile": "large-state"}
        )
    rate = f"{measured.updates_per_s:,.0f} updates/s on {measured.cores} cores"
    if measured.updates_per_s > FAST_UPDATES_PER_S * measured.cores:
        return Recommendation("profile", "throughput", f"{rate}: larger batches cost less.", {"profile": "throughput"})
    return Recommendation("profile", "low-latency", f"{rate} leave room for small batches.", {"profile": "low-latency"})


def _power_of_two(size: float, least: int) -> int:
    return least if size <= least else int(2 ** math.ceil(math.log2(size)))


def measure_folder(folder: Path, memory: int | None = None, cores: int | None = None) -> Measured:
    """The figures of all views of an application's folder; RequestInvalid if none has run."""
    layout = Layout(folder)
    if not folder.is_dir():
        raise RequestInvalid(f"There is no folder {folder}", next_step="Name the --dir that `stateside run` works in")
    if (pointed := layout.pointed()) is not None:
        return measure_checkpoint(pointed, memory, cores)
    running = [Storage.at(view.checkpoint_location) for view in layout.views()]
    found = [_measure(each) for each in running if examine(each) is FoundCheckpoint.STATE]
    if not found:
        raise _never_ran(f"No view in {folder} has finished a batch", "`stateside run` it for an hour")
    return _on_machine(_combined(found, ApplicationLease(folder).exists()), memory, cores)


def measure_checkpoint(location: str, memory: int | None = None, cores: int | None = None) -> Measured:
    """The figures of one checkpoint, of any query; RequestInvalid before its first batch."""
    path, storage = located(location)
    if (found := examine(storage)) is not FoundCheckpoint.STATE:
        raise _never_ran(f"Nothing is known of {path}: {found.value}", "Run the query for an hour")
    return _on_machine(_measure(storage), memory, cores)


def _never_ran(what: str, next_step: str) -> RequestInvalid:
    return RequestInvalid(what, next_step=f"{next_step}, then ask again, {_WITHOUT_FOLDER}")


def _on_machine(measured: Measured, memory: int | None, cores: int | None) -> Measured:
    return replace(
        measured,
        memory_bytes=memory_bytes() if memory is None else memory,
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
    )


def given(keys: int, row_bytes: float, updates_per_s: float, memory: int | None, cores: int | None) -> Measured:
    """Figures that were estimated, not measured."""
    return _on_machine(Measured(keys, row_bytes, updates_per_s, 0, 0), memory, cores)


def _combined(views: Sequence[Measured], standbys: bool) -> Measured:
    """The states of one Spark: keys and updates add up, and the longest batch and the shortest history count."""
    keys = sum(view.keys for view in views)
    durations = [view.batch_ms for view in views if view.batch_ms is not None]
    because = next((view.rocksdb_because for view in views if view.rocksdb_because), None)
    lease = "The folder has a lease: checkpoint format 2 keeps a paused old leader from overwriting the state."
    return replace(
        views[0],
        keys=keys,
        row_bytes=sum(view.state_bytes for view in views) / max(1, keys),
        updates_per_s=sum(view.updates_per_s for view in views),
        updates_per_batch=sum(view.changed_per_batch for view in views),
        batch_ms=max(durations, default=None),
        stores=sum(view.stores for view in views),
        rocksdb_because=lease if standbys else because,
        observed_s=min(view.observed_s or 0 for view in views),
        batches=min(view.batches or 0 for view in views),
    )


def _measure(storage: Storage) -> Measured:
    """Figures by the files of a checkpoint with a committed batch; memory and cores are left at 0."""
    checkpoint = Checkpoint(storage)
    batches, operators = checkpoint.commits(), checkpoint.operators()
    plans = list(_plans(checkpoint, batches))
    newest, commit = plans[-1], checkpoint.commit(plans[-1].batch)
    partitions = {operator: checkpoint.partitions(operator, newest, commit) for operator in operators}
    places = [(operator, number) for operator, count in partitions.items() for number in range(count)]
    _check_stores(storage, places)
    changed = _changed(checkpoint, _spread(batches[1:] or batches, _SAMPLED), places)
    observed_s = max(0.0, (newest.planned_us - plans[0].planned_us) / 1_000_000)
    batches_per_s = (newest.batch - plans[0].batch) / observed_s if observed_s else 0.0
    return Measured(
        keys=sum(_keys(checkpoint, newest, commit, *place) for place in places),
        row_bytes=changed.bytes / max(1, changed.rows),
        updates_per_s=changed.rows_per_batch * batches_per_s,
        memory_bytes=0,
        cores=0,
        updates_per_batch=changed.rows_per_batch,
        batch_ms=_batch_ms(checkpoint, plans[1:]),
        stores=len(operators),
        partitions=max(partitions.values()),
        provider=provider_of(newest, storage.path(f"offsets/{newest.batch}")),
        rocksdb_because=_families_reason(checkpoint, operators),
        observed_s=observed_s,
        batches=len(batches),
    )


def _plans(checkpoint: Checkpoint, batches: Sequence[int]) -> Iterator[Plan]:
    """The plans of the oldest committed batch and of the newest ones; Spark may just have deleted the oldest."""
    for batch in sorted({batches[0], *batches[-_PLANS:]}):
        with suppress(FileNotFoundError):
            yield checkpoint.plan(batch)


def _check_stores(storage: Storage, places: Iterable[tuple[int, int]]) -> None:
    for operator, _ in places:
        if set(storage.names(f"state/{operator}/0")) & set(JOIN_STORES):
            raise RequestInvalid(
                f"Operator {operator} is a join with four stores in each partition, which are not measured",
                where=storage.root,
                next_step="Give --keys, --row-bytes and --updates-per-s instead",
            )


@dataclass(frozen=True, slots=True)
class _SampledChanges:
    """The rows that some batches changed, and their bytes."""

    batches: int
    rows: int
    bytes: int

    def __add__(self, other: _SampledChanges) -> _SampledChanges:
        return _SampledChanges(self.batches + other.batches, self.rows + other.rows, self.bytes + other.bytes)

    @property
    def rows_per_batch(self) -> float:
        return self.rows / max(1, self.batches)


def _changed(checkpoint: Checkpoint, batches: Iterable[int], places: Sequence[tuple[int, int]]) -> _SampledChanges:
    """The changes of these batches; those whose files Spark has deleted meanwhile are left out."""
    prefixed = {operator: checkpoint.is_prefixed(operator) for operator, _ in places}
    found = _SampledChanges(0, 0, 0)
    with TemporaryDirectory(prefix="stateside-advise-") as scratch:
        for batch in batches:
            with suppress(FileNotFoundError, CheckpointGap):
                plan, commit, folder = checkpoint.plan(batch), checkpoint.commit(batch), Path(scratch) / "state"
                read = partial(read_batch_changes, checkpoint, plan, commit, scratch=folder)
                changes = [read(*place, prefixed=prefixed[place[0]]).changes for place in places]
                found += _SampledChanges(1, sum(map(len, changes)), sum(map(_bytes, changes)))
    return found


def _spread(batches: Sequence[int], most: int) -> list[int]:
    """Up to so many batches, from the oldest to the newest, evenly spread."""
    last, steps = len(batches) - 1, min(most, len(batches))
    return [batches[last * step // max(1, steps - 1)] for step in range(steps)]


def _bytes(changes: Collection[StateChange]) -> int:
    if not isinstance(changes, ChangeBlock):
        return sum(len(change.key) + len(change.value or b"") for change in changes)
    parts = (changes.keys, changes.values, *([changes.rests] if changes.rests else []))
    return sum(int(part.sizes.clip(min=0).sum()) for part in parts)


def _keys(checkpoint: Checkpoint, plan: Plan, commit: Commit, operator: int, partition: int) -> int:
    """The keys of a partition in its newest snapshot; before the first one, by its changes."""
    chain = newest_chain(checkpoint, plan, commit, operator, partition)
    if chain is None:
        raise gone(f"The state after batch {plan.batch} is gone", checkpoint.storage.path(f"state/{operator}"))
    name = chain.snapshot_name()
    if name is None:
        return _distinct_keys(checkpoint, chain)
    if chain.provider is Provider.HDFS:
        return sum(map(len, HdfsSnapshot(checkpoint.storage, name).blocks()))
    return count_keys(checkpoint.storage, name)


def _distinct_keys(checkpoint: Checkpoint, chain: Chain) -> int:
    found: set[tuple[bytes, bytes | None]] = set()
    prefixed = checkpoint.is_prefixed(chain.operator)
    for commit in chain.changes:
        for change in chain.read_changes(checkpoint.storage, commit, prefixed=prefixed).changes:
            alter = found.discard if change.value is None else found.add
            alter((change.key, change.key_rest))
    return len(found)


def _batch_ms(checkpoint: Checkpoint, plans: Sequence[Plan]) -> float | None:
    """The median from trigger to commit; None where the times of files are those of a copy."""
    committed = [checkpoint.storage.modified_us(f"commits/{plan.batch}") for plan in plans]
    if any(at_us > after.planned_us + _COPIED_US for at_us, after in zip(committed, plans[1:], strict=False)):
        return None
    took_us = [at_us - plan.planned_us for at_us, plan in zip(committed, plans, strict=True)]
    return statistics.median(took_us) / 1_000 if took_us and min(took_us) >= 0 else None


def _families_reason(checkpoint: Checkpoint, operators: Iterable[int]) -> str | None:
    """Operators with column families have metadata v2, and work in RocksDB alone."""
    for operator in operators:
        metadata, name = checkpoint.operator_metadata(operator)
        if "/v2/" in name:
            return f"Operator {operator}, {metadata['operatorInfo']['operatorName']}, works in RocksDB alone."
    return None


def parse_size(text: str) -> int:
    """Bytes from `8g`, `512m` or `8 GiB`; RequestInvalid for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if found is None:
        raise RequestInvalid(f"--memory is {text!r}", next_step="Write it like 8g or 512m")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))


def as_json(advice: Advice) -> dict[str, Any]:
    """The advice for programs: the figures, the recommendations, and all settings together."""
    recommendations = [asdict(each) for each in advice.recommendations]
    return {
        "measured": asdict(advice.measured),
        "recommendations": recommendations,
        "settings": advice.settings(),
    }


def render(advice: Advice, *, foreign: bool = False) -> str:
    """The advice for people; of a `foreign` query with Spark's settings, otherwise with those of `stateside.toml`."""
    lines = [_figures(advice.measured), ""]
    for each in advice.recommendations:
        lines += [f"{each.topic:<14} {each.choice}", textwrap.indent(textwrap.fill(each.reason, 88), " " * 15)]
    lines += ["", *(_conf_lines(advice) if foreign else _toml_lines(advice))]
    return "\n".join(lines)


def _figures(measured: Measured) -> str:
    state = f"{measured.keys:,} keys at {measured.row_bytes:,.0f} bytes: {_size(measured.state_bytes)}"
    machine = f"{_size(measured.memory_bytes)} of memory, {measured.cores} cores"
    if measured.observed_s is None:
        return f"Given: {state}; {measured.updates_per_s:,.0f} updates/s; {machine}."
    seen = f"{_count(measured.batches or 0, 'batch')} in {measured.observed_s / 60:,.0f} minutes"
    return f"Measured: {state}; {measured.updates_per_s:,.0f} updates/s in {seen}; {machine}."


def _toml_lines(advice: Advice) -> list[str]:
    settings = advice.settings()
    spark = settings.pop("spark")
    ours = [f"{name} = {value if isinstance(value, int) else _quoted(value)}" for name, value in settings.items()]
    theirs = [f"{_quoted(name)} = {_quoted(value)}" for name, value in spark.items()]
    return [f"In stateside.toml{_refolded(advice)}:", "", *ours, "", "[spark]", *theirs]


def _refolded(advice: Advice) -> str:
    """A note where the store changes."""
    stays = Provider.HDFS if advice.in_memory else Provider.ROCKSDB
    return "" if advice.measured.provider in (None, stays) else ", from the `stateside apply --refold` on"


def _conf_lines(advice: Advice) -> list[str]:
    settings = advice.settings()
    conf = {SHUFFLE_PARTITIONS: settings["partitions"], **settings["spark"]}
    if "driver_memory" in settings:
        conf["spark.executor.memory"] = settings["driver_memory"]
    lines = [f"{name}={value}" for name, value in conf.items()]
    return ["In the query's Spark, on a new checkpoint where store or partitions change:", "", *lines]


def _quoted(text: str) -> str:
    return f'"{text}"'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 'es'}"


def _size(count_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count_bytes < 1024:
            return f"{count_bytes:,.0f} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:,.1f} GiB"
