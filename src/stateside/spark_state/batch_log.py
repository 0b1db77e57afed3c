"""The batch log of a checkpoint: Spark's plans (`offsets/N`) and commits (`commits/N`).

    offsets/N := "v1\\n" {"batchWatermarkMs": …, "batchTimestampMs": …, "conf": {…}} ("\\n" source's offset)*
               | "v2\\n" the same with more in it                                   ("\\n" source's name ":" offset)*
    commits/N := "v1\\n" {"nextBatchWatermarkMs": …}
               | "v2\\n" {"nextBatchWatermarkMs": …, "stateUniqueIds": {operator: [partition: [store: id]]}}
               | "v3\\n" the same with the query's sinks

Batch N leaves the state at version N + 1. A batch exists for readers only once `commits/N` exists; in checkpoint format
v2 the commit also names the valid state files, whatever other attempts left behind.

Positions: the sources' offsets in `offsets/N` become a position. Each source has its own format:

    source         its offset                                position
    the journal    {"journal": "6f7e…", "0": 7}              0:7
    merged logs    {"journal": …, "0": 7, "1": 9, "a.2": 4}  0:7,1:9,a.2:4        (partitions; then logs of nodes)
    Kafka          {"calls": {"0": 12, "1": 9}}              calls-0:12,calls-1:9
    files          {"logOffset": 3}                          files:4              (so many batches of files)
    rate, socket   5                                         offset:5             (rate: so many seconds)
    rate by batch  {"offset": 20, "timestamp": 1000}         offset:20            (format rate-micro-batch)
    in Python      {"a": 7}, whole numbers from 0 on         a:7
    any            - (nothing was read yet)                  start
    any other                                                start

A position promises that everything before it is in the answer. An offset of an unknown format promises nothing: a
reader that asks for more waits in vain, but never gets a wrong answer.

A query with several sources has one line per source, and the line's number distinguishes their partitions:
`s0.calls-0`, `s1.files`; or the source's name, if it has one: `orders.calls-0`. Only the journal's partitions keep
their names, so that readers can wait for its receipts; if several sources read the journal (a self-join of its events),
its position is that of the slowest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from stateside.core.errors import CheckpointGap, CheckpointInvalid, PositionInvalid
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.spark_state.checksum import read_checked
from stateside.spark_state.types import read_schema

NOTHING_YET = "-"
_JOURNAL_UNREAD = {"0": 0}  # before the journal existed, there was no id either


def read_position(lines: Sequence[str]) -> Position:
    """The end position of a batch, from the offset lines of its sources.

    ValueError for a line that is no JSON, PositionInvalid for a malformed offset of the journal: such a file is
    damaged.
    """
    return _position(lines, [f"s{number}" for number in range(len(lines))])


def read_named_position(lines: Sequence[str]) -> Position:
    """The same from lines that begin with the source's name, or its number if it has none, and a colon."""
    pairs = [line.partition(":") for line in lines]
    if not all(colon for _, colon, _ in pairs):
        raise ValueError("a source's line has no name")
    pairs.sort(key=lambda pair: (not pair[0].isdigit(), len(pair[0]), pair[0]))
    names = [f"s{name}" if name.isdigit() else name for name, _, _ in pairs]
    return _position([offset for _, _, offset in pairs], names)


def read_journals(lines: Sequence[str]) -> set[str]:
    """The ids of the journals read by a batch, from the offset lines of its sources, without their names.

    ValueError for a line that is no JSON.
    """
    offsets = [json.loads(line) for line in lines if line != NOTHING_YET]
    return {str(offset["journal"]) for offset in offsets if isinstance(offset, dict) and offset.get("journal")}


def _position(lines: Sequence[str], names: Sequence[str]) -> Position:
    offsets = [None if line == NOTHING_YET else json.loads(line) for line in lines]
    if len(offsets) == 1:
        return _understood(_parts(offsets[0]))
    of_journal = [_is_journal(offset) for offset in offsets] if _journals(offsets) == 1 else [False] * len(offsets)
    journals = [_parts(offset) for offset, is_journal in zip(offsets, of_journal, strict=True) if is_journal]
    position = _slowest(journals) if journals else Position.start()
    for source, offset, is_journal in zip(names, offsets, of_journal, strict=True):
        if not is_journal:
            named = {f"{source}.{partition}": at for partition, at in _parts(offset).items()}
            position = position.joined(_understood(named))
    return position


def _parts(offset: Any) -> dict[str, Any]:
    """One source's partitions with their offsets."""
    match offset:
        case {"journal": str()}:
            partitions = {name: at for name, at in offset.items() if name != "journal"}
            return Position.of(partitions).as_dict()  # refuses malformed offsets: this format is our own
        case {"logOffset": int(number)} if len(offset) == 1:
            return {"files": number + 1}
        case {"offset": int(number), "timestamp": int()} if len(offset) == 2:
            return {"offset": number}
        case dict() if offset and all(isinstance(part, dict) for part in offset.values()):
            return {f"{topic}-{number}": at for topic, part in offset.items() for number, at in part.items()}
        case dict():
            return offset
        case bool():
            return {}
        case int():
            return {"offset": offset}
    return {}


def _understood(parts: Mapping[str, Any]) -> Position:
    """The position of another system's partitions and offsets; unknown formats promise nothing."""
    try:
        return Position.of(parts)
    except PositionInvalid:
        return Position.start()


def _is_journal(offset: Any) -> bool:
    return isinstance(offset, dict) and ("journal" in offset or offset == _JOURNAL_UNREAD)


def _journals(offsets: Iterable[Any]) -> int:
    """The number of distinct journals."""
    return len({offset["journal"] for offset in offsets if isinstance(offset, dict) and "journal" in offset})


def _slowest(journals: Sequence[Mapping[str, int]]) -> Position:
    """The greatest position that all of them cover."""
    first, *others = journals
    return Position.of({name: min([at, *(other.get(name, 0) for other in others)]) for name, at in first.items()})


AGGREGATION = "stateStoreSave"  # Spark's name of the operator
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SETTLING_S = 0.02  # a rewritten file may for a moment have the checksums of its predecessor
SUPPORTED = "Stateside reads the checkpoints that Spark 4.0 to 4.2 writes"


@dataclass(frozen=True, slots=True)
class Plan:
    """Spark's plan of a batch before the batch runs: the end position of its input, and its watermark."""

    batch: int
    position: Position
    watermark_us: int
    planned_us: int
    conf: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The input of a batch, from `start` to `stop`, its watermark and the watermark of the batch before.

    Batch N emits and evicts rows by its own watermark, and drops rows as late by that of batch N-1; batch 0 drops none
    (pinned in tests/semantics).
    """

    start: Position
    stop: Position
    watermark_before_us: int
    watermark_us: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A finished batch: the time of its commit, and the ids of the valid state files (empty in format v1).

    `watermark_us` is that of the next batch: later than the batch's own one if some rows are still to be closed.
    """

    batch: int
    committed_us: int
    state_ids: Mapping[str, Sequence[Sequence[str]]]
    watermark_us: int = 0

    def state_id(self, operator: int, partition: int, store: int = 0) -> str | None:
        """The unique id of one store's files at this batch; None in checkpoint format v1."""
        return self.state_ids[str(operator)][partition][store] if self.state_ids else None


class Checkpoint:
    """A checkpoint's folder. Every method reads the files again; nothing is cached."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def query_id(self) -> str | None:
        """The id of the query that owns this checkpoint; None before the query's first start."""
        try:
            content = self._read("metadata")
        except FileNotFoundError:
            return None
        with self._reading("metadata"):
            return str(self._json("metadata", content.decode())["id"])

    def committed(self, batch: int) -> bool:
        return self.storage.exists(f"commits/{batch}")

    def commits(self) -> list[int]:
        """The committed batches that Spark still keeps, ascending."""
        return sorted(int(name) for name in self.storage.names("commits") if name.isdigit())

    def plan(self, batch: int) -> Plan:
        name = f"offsets/{batch}"
        with self._reading(name):
            metadata, lines, version = self._entry(name, ("v1", "v2"))
            if not lines:
                raise self._invalid(name, "it names no source")
            return Plan(
                batch=batch,
                position=read_position(lines) if version == "v1" else read_named_position(lines),
                watermark_us=int(metadata["batchWatermarkMs"]) * 1_000,
                planned_us=int(metadata["batchTimestampMs"]) * 1_000,
                conf=metadata.get("conf", {}),
            )

    def newest_plan(self) -> tuple[Plan, str]:
        """The plan of the newest committed batch, and the file's path; FileNotFoundError before the first commit."""
        batches = self.commits()
        if not batches:
            raise FileNotFoundError(self.storage.path("commits"))
        return self.plan(batches[-1]), self.storage.path(f"offsets/{batches[-1]}")

    def range_of(self, batch: int) -> BatchRange:
        """The planned input of a batch. CheckpointGap if the plan of the batch before is gone."""
        plan = self._needed_plan(batch)
        before = self._needed_plan(batch - 1) if batch else None
        start, late_us = (before.position, before.watermark_us) if before else (Position.start(), 0)
        return BatchRange(start, plan.position, late_us, plan.watermark_us)

    def _needed_plan(self, batch: int) -> Plan:
        try:
            return self.plan(batch)
        except FileNotFoundError:
            raise CheckpointGap(
                f"The plan of batch {batch} is gone, which says what is late in the batch after it",
                where=self.storage.path(f"offsets/{batch}"),
                next_step="Restore the file from a copy: nothing of the batch was stored",
            ) from None

    def journals(self, batch: int) -> set[str]:
        """The ids of the journals that the batch was planned to read from; empty if it has only other sources."""
        name = f"offsets/{batch}"
        with self._reading(name):
            _, lines, version = self._entry(name, ("v1", "v2"))
            return read_journals(lines if version == "v1" else [line.partition(":")[2] for line in lines])

    def commit(self, batch: int) -> Commit:
        """The batch's commit; FileNotFoundError if the batch is not committed."""
        name = f"commits/{batch}"
        with self._reading(name):
            metadata, _, _ = self._entry(name, ("v1", "v2", "v3"))
            watermark_us = int(metadata.get("nextBatchWatermarkMs", 0)) * 1_000
        return Commit(batch, self.storage.modified_us(name), metadata.get("stateUniqueIds") or {}, watermark_us)

    def fingerprint(self, batch: int) -> str | None:
        """Identifies this very run of a batch, of this very query; None if the batch is not committed here."""
        try:
            parts = [self.storage.read(name) for name in ("metadata", f"offsets/{batch}", f"commits/{batch}")]
        except FileNotFoundError:
            return None
        return blake2b(b"\0".join(parts), digest_size=16).hexdigest()

    def operators(self) -> list[int]:
        """The numbers of the query's stateful operators, ascending; empty before its first batch is planned."""
        return sorted(int(name) for name in self.storage.names("state") if name.isdigit())

    def partitions(self, operator: int, plan: Plan, commit: Commit) -> int:
        """The number of partitions of a stateful operator's state after a batch.

        Spark can repartition a query's state, by a batch of its own, and leaves the operator's metadata unchanged. In
        format v2 the commit names each partition's files. In format v1 the state has as many partitions as the batch's
        plan; an aggregation without a key, with a single row of state, has one.
        """
        named = f"commits/{commit.batch}" if commit.state_ids else f"offsets/{plan.batch}"
        with self._reading(named):
            ids = commit.state_ids
            count = len(ids[str(operator)]) if ids else int(plan.conf[SHUFFLE_PARTITIONS])
        if count < 1:
            raise self._invalid(named, f"operator {operator} has no partition")
        if ids:
            return count
        if count > 1 and self.without_key(operator) and not self._repartitions(operator, plan):
            return 1
        return count

    def without_key(self, operator: int) -> bool:
        """Whether an operator is an aggregation without a key, with a single row of state."""
        return self.aggregates(operator) and not read_schema(self.storage, operator).key

    def aggregates(self, operator: int) -> bool:
        """Whether an operator is an aggregation, by time windows or by keys alone."""
        metadata, name = self.operator_metadata(operator)
        with self._reading(name):
            return bool(metadata.get("operatorInfo", {}).get("operatorName") == AGGREGATION)

    def is_prefixed(self, operator: int) -> bool:
        """Whether the keys of an operator's state are in two parts (`changelog`)."""
        metadata, name = self.operator_metadata(operator)
        with self._reading(name):
            return any(int(store.get("numColsPrefixKey", 0)) for store in metadata["stateStoreInfo"])

    def _repartitions(self, operator: int, plan: Plan) -> bool:
        """Whether this batch of format v1 only repartitioned the state: then it wrote every partition."""
        if not plan.batch or not self.storage.exists(f"state/{operator}/1/{plan.batch + 1}.zip"):
            return False
        try:
            before = self.plan(plan.batch - 1)
        except FileNotFoundError:
            raise CheckpointGap(
                f"Into how many partitions batch {plan.batch} wrote its state cannot be told: the batch before is gone",
                where=self.storage.path(f"offsets/{plan.batch - 1}"),
                next_step="Let the view run on: a newer batch is then loaded",
            ) from None
        return before.conf.get(SHUFFLE_PARTITIONS) != plan.conf[SHUFFLE_PARTITIONS]

    def operator_metadata(self, operator: int) -> tuple[dict[str, Any], str]:
        """Spark's metadata of a stateful operator, and the file's name; FileNotFoundError before the file exists.

        An aggregation has one file; a `transformWithState` one per start of the query, of which the newest counts.
        """
        name, version = f"state/{operator}/_metadata/metadata", "v1"
        if not self.storage.exists(name):
            starts = [start for start in self.storage.names(f"state/{operator}/_metadata/v2") if start.isdigit()]
            if starts:
                name, version = f"state/{operator}/_metadata/v2/{max(starts, key=int)}", "v2"
        with self._reading(name):
            return self._entry(name, (version,))[0], name

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turn any error from a damaged file into CheckpointInvalid, which callers handle."""
        try:
            yield
        except (ValueError, LookupError, TypeError, PositionInvalid) as error:
            raise self._invalid(name, f"its content is not as expected, {error!r}") from error

    def _read(self, name: str) -> bytes:
        """A whole file, which may just have been renamed: Hadoop renames its checksums a moment later."""
        with suppress(CheckpointInvalid):
            return read_checked(self.storage, name)
        time.sleep(SETTLING_S)
        return read_checked(self.storage, name)

    def _entry(self, name: str, versions: tuple[str, ...]) -> tuple[dict[str, Any], list[str], str]:
        """The JSON object in a file's second line, the lines after it, and the version in the first line."""
        version, _, rest = self._read(name).decode().partition("\n")
        if version not in versions:
            raise self._invalid(name, f"format {version!r} is not known")
        first, *others = rest.removesuffix("\n").split("\n")  # the last line may have a newline or not
        return self._json(name, first), others, version

    def _json(self, name: str, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._invalid(name, "a JSON object was expected")
        return value

    def _invalid(self, name: str, reason: str) -> CheckpointInvalid:
        return CheckpointInvalid(
            f"Cannot read the checkpoint: {reason}", where=self.storage.path(name), next_step=SUPPORTED
        )
