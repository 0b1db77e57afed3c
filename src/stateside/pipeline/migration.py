"""Migrations: the state of a changed view, carried over row by row instead of folded again from its events.

    @app.migration("spending")
    def with_mean(row):
        return {"mean": (row["total"], row["orders"])}

The function gets a row of the old state, and returns the columns that the new view has and the old one had not, or had
otherwise; all others are carried over. A key column has its value; a column has its aggregation's buffer, or a tuple of
them where the aggregation keeps several: an average has (sum, count). Times are microseconds since 1970.

The new checkpoint, which Spark goes on from:

1. The new query takes in one event, in a scratch folder. Spark writes what it would begin with: schemas, metadata,
   settings. The view's sink gets nothing.
2. Every row of the last batch of the old state is read, given to the function, and encoded for the new state's schema.
   Rows whose key changed go to the partition that Spark's hash names. States of other operators are copied as they are.
3. The state is written as a batch 0 that ends at the position and the watermark of the old state's last batch.
4. Every row is read again from the new checkpoint, and compared; then `metadata` is written, without which no query has
   this checkpoint.

Steps 1 to 4 write to the new folder alone: a failure at any row leaves the old view as it was.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain as chain_of
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateside.core.errors import CheckpointGap, CheckpointInvalid, PipelineFailed, ViewInvalid
from stateside.core.progress import Watch, nobody
from stateside.core.storage import Storage, make_durable, write_atomically
from stateside.core.wait import wait_until
from stateside.pipeline.app import Migration
from stateside.pipeline.session import session_conf
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS, Checkpoint, Commit
from stateside.spark_state.changelog import read_changelog
from stateside.spark_state.column_families import ColumnFamilies, delimiter_of
from stateside.spark_state.provider import AnySnapshot, Chain, Provider, newest_chain, provider_of
from stateside.spark_state.rocksdb_snapshot import StateSnapshot
from stateside.spark_state.slices import ChangeBlock, StateChange
from stateside.spark_state.state_writer import ChangelogWriter, RowEncoder
from stateside.spark_state.types import Column, StateSchema, read_schema
from stateside.spark_state.unsafe_row import RowDecoder
from stateside.views.catalogue import Catalogue, ViewColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

StateRow = tuple[bytes, bytes]
FamilyRow = tuple[str, bytes, bytes]  # with the name of its column family, empty without one
_Place = tuple[str, bytes]  # a column family and a key
PlacedRow = tuple[int, bytes, bytes]  # with its partition
_ROWS_AT_ONCE = 10_000
_TEMPLATE_S_MAX = 300.0
_HASHED = {"date": "int", "timestamp": "bigint", "timestamp_ntz": "bigint"}  # Spark hashes what it stores


def obstacle(before: Catalogue, after: Catalogue) -> str | None:
    """Why a view's state cannot be carried over to its new declaration; None if it can."""
    for catalogue in (before, after):
        if catalogue.kind != "aggregation":
            return f"a state of the kind {catalogue.kind} is not migrated"
        if catalogue.archive is not None:
            return "its archive has rows with the old columns"
    return None if before.window == after.window else "its window is another one"


class Carried:
    """From a row of the old state to one of the new: the function's columns, and those that both views have."""

    def __init__(self, before: Catalogue, after: Catalogue, function: Migration) -> None:
        self._before, self._after, self._function = before, after, function
        old = {column.name: column for column in before.columns}
        self._carried = {c.name for c in after.columns if c.name in old and _alike(old[c.name], c)}
        self._carried_key = {c.name for c in after.key if (c.name, c.type) in {(o.name, o.type) for o in before.key}}
        self._width = 1 + max((buffer.index for column in after.columns for buffer in column.buffers), default=-1)

    @property
    def keeps_keys(self) -> bool:
        """Whether every key stays as it is, in the same partition."""
        stored = [[(c.stored.index, c.stored.type) for c in each.key] for each in (self._before, self._after)]
        return stored[0] == stored[1] and len(self._carried_key) == len(self._after.key)

    def row(self, key: Sequence[Any], value: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The key and the value of the new state; ValueError, LookupError or TypeError for what the function gave."""
        given = self._function(self._shown(key, value))
        names = {column.name for column in self._after.key} | {column.name for column in self._after.columns}
        if not isinstance(given, Mapping) or not given.keys() <= names:
            raise ValueError(f"it returns {given!r:.200}, and the view has the columns {', '.join(sorted(names))}")
        return self._new_key(key, given), self._new_value(value, given)

    def _shown(self, key: Sequence[Any], value: Sequence[Any]) -> dict[str, Any]:
        shown = {column.name: key[column.stored.index] for column in self._before.key}
        return shown | {column.name: _buffers(column, value) for column in self._before.columns}

    def _new_key(self, key: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
        old = {column.name: key[column.stored.index] for column in self._before.key}
        made: list[Any] = [None] * len(self._after.key)
        for column in self._after.key:
            carried = old if column.name in self._carried_key else {}
            made[column.stored.index] = _one(column.name, given, carried)
        return made

    def _new_value(self, value: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
        old = {c.name: _buffers(c, value) for c in self._before.columns if c.name in self._carried}
        made: list[Any] = [None] * self._width
        for column in self._after.columns:
            buffers = _one(column.name, given, old)
            parts = (buffers,) if len(column.buffers) == 1 else tuple(buffers)
            for stored, part in zip(column.buffers, parts, strict=True):
                made[stored.index] = part
        return made


def _one(name: str, given: Mapping[str, Any], carried: Mapping[str, Any]) -> Any:
    if name in given:
        return given[name]
    if name in carried:
        return carried[name]
    raise LookupError(f"it gives no {name!r}, which the state before has not")


def _alike(old: ViewColumn, new: ViewColumn) -> bool:
    """Whether a column's buffers go on with the same meaning."""
    shapes = [[buffer.type for buffer in column.buffers] for column in (old, new)]
    return (old.aggregate, old.expression, old.type) == (new.aggregate, new.expression, new.type) and (
        shapes[0] == shapes[1]
    )


def _buffers(column: ViewColumn, value: Sequence[Any]) -> Any:
    found = tuple(value[buffer.index] for buffer in column.buffers)
    return found[0] if len(found) == 1 else found


def finished_batch(checkpoint: Checkpoint, view: str) -> Commit:
    """The last batch of a view's state. A later one, planned and not committed, may be in the sink already.

    ViewInvalid then; except for a repartition of Spark's own that was abandoned, which delivers nothing.
    """
    commits = checkpoint.commits()
    planned = [int(name) for name in checkpoint.storage.names("offsets") if name.isdigit()]
    if not commits or (max(planned) != commits[-1] and not _repartitions(checkpoint, commits[-1], max(planned))):
        raise ViewInvalid(
            f"The last batch of the view {view!r} is not finished",
            where=checkpoint.storage.root,
            next_step="Let the application, as it was, finish the batch: `stateside run --until-caught-up`",
        )
    return checkpoint.commit(commits[-1])


def _repartitions(checkpoint: Checkpoint, last: int, planned: int) -> bool:
    before, after = (checkpoint.plan(batch).conf.get(SHUFFLE_PARTITIONS) for batch in (last, planned))
    return before != after


def state_rows(
    checkpoint: Checkpoint, commit: Commit, operator: int, partition: int, scratch: Path
) -> Iterator[StateRow]:
    """The rows of one partition after a batch, without the names of their column families."""
    return ((key, value) for _, key, value in family_rows(checkpoint, commit, operator, partition, scratch))


def family_rows(
    checkpoint: Checkpoint, commit: Commit, operator: int, partition: int, scratch: Path
) -> Iterator[FamilyRow]:
    """The rows of one partition after a batch: those of the newest snapshot, with the changes after it."""
    chain = newest_chain(checkpoint, checkpoint.plan(commit.batch), commit, operator, partition)
    if chain is None:
        raise CheckpointGap(
            f"The state of batch {commit.batch} is not complete in partition {partition}",
            where=checkpoint.storage.path(f"state/{operator}/{partition}"),
        )
    prefixed = checkpoint.is_prefixed(operator)
    changed = _changed(checkpoint, chain, prefixed)
    if chain.snapshot is not None:
        with chain.open_snapshot(checkpoint.storage, scratch / f"{operator}-{partition}") as snapshot:
            for place, value in _placed(snapshot, prefixed):
                if place not in changed:
                    yield *place, value
                elif changed[place].appended:
                    changed[place] = changed[place].after(value)
    for (family, key), change in changed.items():
        if change.value is not None:
            yield family, key, change.value


@dataclass(frozen=True, slots=True)
class _Changed:
    """The value of a key after some changes; `appended`: to be appended to the key's earlier value."""

    value: bytes | None
    appended: bool
    delimiter: bytes

    def after(self, earlier: bytes) -> _Changed:
        return replace(self, value=earlier + self.delimiter + (self.value or b""), appended=False)


def _changed(checkpoint: Checkpoint, chain: Chain, prefixed: bool) -> dict[_Place, _Changed]:
    families, delimiter = ColumnFamilies(checkpoint.storage, chain.operator), delimiter_of(checkpoint)
    found: dict[_Place, _Changed] = {}
    for each in chain.changes:
        changelog = chain.read_changes(checkpoint.storage, each, prefixed=prefixed)
        plain = isinstance(changelog.changes, ChangeBlock)
        names = {} if plain else families.names(each, chain.partition, changelog)
        for change in changelog.changes:
            place = _place(names, change)
            made, before = _Changed(change.value, change.appended, delimiter), found.get(place)
            if change.appended and before is not None:
                made = replace(made, appended=False) if before.value is None else _joined(before, made)
            found[place] = made
    return found


def _joined(before: _Changed, made: _Changed) -> _Changed:
    assert before.value is not None, "the key was not deleted"
    return replace(made.after(before.value), appended=before.appended)


def _placed(snapshot: AnySnapshot, prefixed: bool) -> Iterator[tuple[_Place, bytes]]:
    """The rows of a snapshot, of all its column families."""
    families = snapshot.families if isinstance(snapshot, StateSnapshot) else {}
    found: Iterator[StateChange]
    if isinstance(snapshot, StateSnapshot) and families:
        found = chain_of.from_iterable(map(snapshot.family_rows, families))
    else:
        found = (row for block in snapshot.blocks(prefixed=prefixed) for row in block)
    for row in found:
        assert row.value is not None, "a snapshot has rows only"
        yield _place(families, row), row.value


def _place(names: Mapping[int, str], row: StateChange) -> _Place:
    return "" if row.family is None else names[row.family], row.key + (row.key_rest or b"")


@dataclass(frozen=True, slots=True)
class Migrated:
    """A finished migration: the rows carried over, and the last batch of the old state."""

    rows: int
    batch: int


class StateMigration:
    """The migration of one view's state from its checkpoint to a new one."""

    def __init__(
        self,
        old: Path,
        target: Path,
        before: Catalogue,
        after: Catalogue,
        function: Migration,
        watch: Watch = nobody,
    ) -> None:
        """`target` is the new checkpoint's folder, replaced if there is one; `watch` receives the rows done, of 0."""
        self._old, self._target = Checkpoint(Storage.at(old)), target
        self._before, self._after = before, after
        self._carried = Carried(before, after, function)
        self._watch, self._rows = watch, 0
        self._scratch = target.with_name(f"{target.name}.migrating")

    def run(self, frame: DataFrame) -> Migrated:
        """Migrate to the query of this DataFrame; ViewInvalid, with the row, if the function fails at one.

        Batches of the query's source are best small: step 1 needs the first one.
        """
        for left in (self._scratch, self._target):
            shutil.rmtree(left, ignore_errors=True)
        try:
            commit = self._last_batch()
            partitions = self._old.partitions(self._before.operator, self._old.plan(commit.batch), commit)
            template = self._template(frame, partitions)
            ids = {each: self._write(each, commit, template, partitions) for each in template.operators()}
            self._write_batch(commit, template, ids)
            make_durable(self._target)
            shutil.copyfile(self._scratch / "template" / "metadata", self._target / "metadata")
            make_durable(self._target)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return Migrated(self._rows, commit.batch)

    def _last_batch(self) -> Commit:
        commit = finished_batch(self._old, self._before.view)
        path = self._old.storage.path(f"offsets/{commit.batch}")
        if provider_of(self._old.plan(commit.batch), path) is not Provider.ROCKSDB or not commit.state_ids:
            raise ViewInvalid(
                f"The state of the view {self._before.view!r} is not on RocksDB in checkpoint format 2",
                next_step="Fold the view again from its events",
            )
        return commit

    def _template(self, frame: DataFrame, partitions: int) -> Checkpoint:
        """Step 1."""
        folder = self._scratch / "template"
        template, writer = Checkpoint(Storage.at(folder)), frame.writeStream.format("noop").outputMode("update")
        with session_conf(frame.sparkSession, {SHUFFLE_PARTITIONS: partitions}):
            query = writer.option("checkpointLocation", str(folder)).start()
        try:
            wait_until(lambda: template.committed(0) or not query.isActive, _TEMPLATE_S_MAX)
        finally:
            query.stop()
        if not template.committed(0):
            raise PipelineFailed(
                f"The changed view {self._after.view!r} finished no batch in {_TEMPLATE_S_MAX} s: {query.exception()}",
                next_step="Nothing was changed: mend the view, or try again",
            )
        self._after.check(read_schema(template.storage, self._after.operator))
        return template

    def _write(self, operator: int, commit: Commit, template: Checkpoint, partitions: int) -> list[str]:
        """Steps 2 to 4 for an operator; returns the ids of its partitions' files."""
        for name in ("_metadata", "0/_metadata"):
            place = f"state/{operator}/{name}"
            shutil.copytree(self._scratch / "template" / place, self._target / place)
        schemas = read_schema(self._old.storage, operator), read_schema(template.storage, operator)
        own = operator == self._after.operator
        if not own and schemas[0] != schemas[1]:
            raise ViewInvalid(
                f"The view {self._before.view!r} keeps another state beside its rows, and this state changed too",
                next_step="Fold the view again from its events",
            )
        distinct = not own or self._carried.keeps_keys
        writers = [_Partition(self._target, operator, number, distinct=distinct) for number in range(partitions)]
        rows = self._old_rows(operator, commit, partitions)
        for partition, key, value in self._new_rows(rows, schemas, partitions) if own else rows:
            writers[partition].put(key, value)
        return [writer.finish() for writer in writers]

    def _old_rows(self, operator: int, commit: Commit, partitions: int) -> Iterator[PlacedRow]:
        for partition in range(partitions):
            for key, value in state_rows(self._old, commit, operator, partition, self._scratch):
                yield partition, key, value

    def _new_rows(
        self, rows: Iterator[PlacedRow], schemas: tuple[StateSchema, StateSchema], partitions: int
    ) -> Iterator[PlacedRow]:
        convert = _Conversion(self._carried, *schemas)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            made = [(partition, *convert.row(key, value, self._before)) for partition, key, value in some]
            self._rows += len(made)
            self._watch(self._rows, 0)
            if self._carried.keeps_keys:
                yield from ((partition, key, value) for partition, key, value, _ in made)
            else:
                places = partitions_of(schemas[1].key, [values for *_, values in made], partitions)
                yield from ((place, key, value) for place, (_, key, value, _) in zip(places, made, strict=True))

    def _write_batch(self, commit: Commit, template: Checkpoint, ids: Mapping[int, Sequence[str]]) -> None:
        """Step 3: batch 0, with the settings of the template, and the position and watermark of the old state."""
        settings = json.loads(template.storage.read("offsets/0").decode().split("\n")[1])
        version, plan, *lines = self._old.storage.read(f"offsets/{commit.batch}").decode().split("\n")
        made = json.loads(plan) | {"conf": settings["conf"]}
        write_atomically(self._target / "offsets" / "0", "\n".join([version, json.dumps(made), *lines]).encode())
        version, committed = self._old.storage.read(f"commits/{commit.batch}").decode().split("\n")
        names = {str(operator): [[each] for each in found] for operator, found in ids.items()}
        made = json.loads(committed) | {"stateUniqueIds": names}
        write_atomically(self._target / "commits" / "0", f"{version}\n{json.dumps(made)}".encode())


class _Conversion:
    """Decodes rows of the old schema, converts them and encodes them for the new one; each is decoded again."""

    def __init__(self, carried: Carried, old: StateSchema, new: StateSchema) -> None:
        self._carried = carried
        self._old_key, self._old_value = RowDecoder(old.key), RowDecoder(old.value)
        self._key, self._value = RowEncoder(new.key), RowEncoder(new.value)
        self._new_key, self._new_value = RowDecoder(new.key), RowDecoder(new.value)

    def row(self, key: bytes, value: bytes, view: Catalogue) -> tuple[bytes, bytes, list[Any]]:
        """The new key and value, and the key's values."""
        old = self._old_key.decode(key)
        try:
            new_key, new_value = self._carried.row(old, self._old_value.decode(value))
            encoded = self._key.encode(new_key), self._value.encode(new_value)
        except Exception as error:
            raise ViewInvalid(
                f"The migration of {view.view!r} fails at the row {list(old)}: {type(error).__name__}: {error}",
                next_step="Mend the function: nothing was changed",
            ) from error
        again = self._new_key.decode(encoded[0]), self._new_value.decode(encoded[1])
        assert encoded == (self._key.encode(again[0]), self._value.encode(again[1])), f"{again} is not as encoded"
        return *encoded, new_key


class _Partition:
    """The new state of a partition: written, then read again and compared."""

    def __init__(self, checkpoint: Path, operator: int, partition: int, *, distinct: bool) -> None:
        """Unless keys are known to be `distinct`, their digests are kept: 100 bytes of memory a row."""
        self._checkpoint, self._operator, self._partition = checkpoint, operator, partition
        self._id = str(uuid.uuid4())
        self._writer = ChangelogWriter(checkpoint / f"state/{operator}/{partition}/1_{self._id}.changelog", self._id)
        self._rows, self._digest = 0, blake2b()
        self._seen: set[bytes] | None = None if distinct else set()

    def put(self, key: bytes, value: bytes) -> None:
        if self._seen is not None:
            digest = blake2b(key, digest_size=16).digest()
            if digest in self._seen:
                raise ViewInvalid(
                    "The migration gives two rows the same key", next_step="Give each row a key of its own"
                )
            self._seen.add(digest)
        self._writer.put(key, value)
        self._note(key, value)

    def finish(self) -> str:
        self._writer.close()
        written = self._rows, self._digest.digest()
        self._rows, self._digest = 0, blake2b()
        commit = Commit(0, 0, {str(self._operator): [[self._id]] * (self._partition + 1)})
        for change in read_changelog(Storage.at(self._checkpoint), commit, self._operator, self._partition).changes:
            self._note(change.key, change.value or b"")
        if written != (self._rows, self._digest.digest()):
            raise CheckpointInvalid("The migrated state was not stored as written", where=str(self._checkpoint))
        return self._id

    def _note(self, key: bytes, value: bytes) -> None:
        self._rows += 1
        for part in (key, value):
            self._digest.update(len(part).to_bytes(4, "big") + part)


def partitions_of(columns: Sequence[Column], keys: Sequence[Sequence[Any]], partitions: int) -> list[int]:
    """The partition of each key, by Spark's hash."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    session = SparkSession.getActiveSession()
    assert session is not None, "a migration has a session"
    types = ", ".join(f"c{number} {_HASHED.get(column.type, column.type)}" for number, column in enumerate(columns))
    rows = session.createDataFrame([tuple(key) for key in keys], types)
    return [row[0] for row in rows.select(F.pmod(F.hash(*rows.columns), F.lit(partitions))).collect()]
