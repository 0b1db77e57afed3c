"""The subscription: the rows of a relation that a watcher follows, and their pages.

The relation has the principal's scope. Scope columns at the front of the key extend the prefix; the others are checked
in each row: a row that leaves the scope is sent as removed, a row never in the scope is not sent.

A watcher of live rows gets a sealed row as removed. With the source `both` the row stays, since it is sealed in the
same batch in which it leaves the state; with `archive` a watcher gets each row once it is sealed.

Rows and changes are read in bounded pages, in threads: a page takes a few milliseconds. No snapshot is held between two
pages: the next page is read from the history, as of the same batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import orjson

from stateside.core.errors import HistoryGone, NotFreshEnough, RequestInvalid
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.store import Snapshot
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.changes.sse import EventId, Json, changes_event, snapshot_event
from stateside.serving.rows.archive import Batches
from stateside.serving.rows.columns import Values
from stateside.serving.rows.relation import Relation, RelationSnapshot, RowChange, Scope, check_held
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.stamp import Source, Stamp
from stateside.spark_state.unsafe_row import Value

PAGE_ROWS_MAX = 1_000
PAGE_BYTES = 256 * 1024  # a page ends with the row that exceeds the limit
STEP_BATCHES_MAX = 64  # further behind, a watcher gets all batches as one
STEP_ROWS_MAX = 1_000  # with more changes than this, a watcher gets all batches as one


@dataclass(frozen=True, slots=True)
class Subscription:
    """All rows of a relation whose key begins with these values.

    Watchers with equal subscriptions get the same events. `positions` encodes positions.
    """

    relation: Relation
    key: tuple[Value, ...]
    prefix: bytes
    positions: PositionCodec = PLAIN
    source: Source = "live"

    @classmethod
    def ask(
        cls, relation: Relation, parts: Sequence[str], positions: PositionCodec = PLAIN, source: str | None = None
    ) -> Subscription:
        """The subscription to keys that begin with these parts, narrowed to the scope.

        KeyInvalid or RequestInvalid for unknown parts or sources, AccessDenied for keys outside the scope.
        """
        key = tuple(relation.scope.narrowed(relation.table.parse_key(parts)))
        of = relation.source(source, "live")
        if of != "live" and relation.table.by is not None:
            raise RequestInvalid(
                "A rollup is followed over live rows", next_step="Ask with source=live, or follow the rows"
            )
        return cls(relation, key, relation.table.codec.encode(key), positions, of)

    def check_held(self, stamp: Stamp) -> None:
        """Misdirected if the rows are in another shard than the replica's. A rollup has the replica's shard."""
        if self.relation.table.by is None:
            check_held(stamp, self.relation.table.codec, self.prefix, scattered=self.source == "live")

    def stamp(self, stamp: Stamp) -> Stamp:
        """The stamp of an event, with its position encoded for the subscriber."""
        return self.positions.stamp(replace(stamp, source=self.source))


class ShownChange:
    """One change as shown to watchers; its parts are computed on demand, once for all watchers."""

    def __init__(self, changed: RowChange, relation: Relation) -> None:
        self.key = changed.key
        self._changed, self._relation = changed, relation

    def to(self, scope: Scope) -> tuple[bool, Json] | None:
        """The change within a scope: True and the row, or False and a removed key; None outside the scope."""
        if self._after is not None and scope.has(self._after):
            return True, self._after_json
        if self._before is not None and scope.has(self._before):
            return False, self._removed_json
        return None

    @cached_property
    def _after(self) -> Values | None:
        row = self._changed.after
        return None if row is None else self._relation.values(self.key, row)

    @cached_property
    def _before(self) -> Values | None:
        row = self._changed.before
        return None if row is None else self._relation.values(self.key, row)

    @cached_property
    def _after_json(self) -> Json:
        assert self._after is not None, "what is told as changed is there"
        return orjson.dumps(self._relation.table.columns.shown(self._after))

    @cached_property
    def _removed_json(self) -> Json:
        assert self._before is not None, "what is removed was there"
        row = self._relation.table.columns.shown(self._before)
        return orjson.dumps({name: row[name] for name, _ in self._relation.table.key_parts})


@dataclass(frozen=True, slots=True)
class RowsPage:
    """A page of a batch's rows; `beyond` is the key after which the next page begins, None on the last page."""

    stamp: Stamp
    batch: AppliedBatch
    rows: list[Json]
    beyond: bytes | None

    def event(self, question: Subscription) -> bytes:
        """The page as an event for the subscriber."""
        return snapshot_event(question.stamp(self.stamp), self.rows, None if self.beyond else EventId.of(self.batch))


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """A page of the changes after one batch and up to another; `beyond` as in `RowsPage`."""

    stamp: Stamp
    after: int
    batch: AppliedBatch
    changed: list[Json]
    removed: list[Json]
    beyond: bytes | None = None

    def event(self, question: Subscription) -> bytes:
        """The page as an event for the subscriber."""
        last = None if self.beyond else EventId.of(self.batch)
        return changes_event(question.stamp(self.stamp), self.after, self.changed, self.removed, last)


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """The changes of several batches, one by one, without empty ones; `now` is the batch that the pages lead to."""

    pages: list[ChangesPage]
    now: AppliedBatch


class ChangePages:
    """Reads the pages of one subscription."""

    def __init__(self, question: Subscription) -> None:
        self._question, self._relation = question, question.relation
        self._reader = question.relation.reader

    def find(self, id_: EventId) -> AppliedBatch:
        """The batch of an event's id; errors as for `EventId.find`."""
        with self._reader.replica.snapshot() as snapshot:
            self._held(snapshot)
            return id_.find(snapshot)

    def rows(self, before: RowsPage | None = None) -> RowsPage:
        """The first page of the newest batch, or the page after `before`; HistoryGone if its batch is gone."""
        at = () if before is None else (before.batch.batch, before.batch.fingerprint)
        begin = b"" if before is None or before.beyond is None else before.beyond + b"\x00"
        with self._reader.replica.snapshot(*at) as snapshot:
            held, batch = self._held(snapshot)
            page = _Page()
            for key, values in held.range(self._question.key, begin):
                if not page.takes(key):
                    return RowsPage(held.stamp, batch, page.rows, page.last)
                if held.scope.has(values):
                    page.add(True, orjson.dumps(held.table.columns.shown(values)))
            return RowsPage(held.stamp, batch, page.rows, None)

    def changes(self, stand: AppliedBatch, before: ChangesPage | None = None) -> ChangesPage:
        """The changes since a batch up to the newest one, combined; or the page after `before`.

        HistoryGone if the history no longer has the batch, NotFreshEnough if the replica is not there yet.
        """
        with self._reader.replica.snapshot() as now:
            now.as_of(stand.batch, stand.fingerprint)
            upto = now if before is None else now.as_of(before.batch.batch, before.batch.fingerprint)
            stamp, batch = self._stamped(upto)
            page, span = _Page(), Batches(batch.batch, stand.batch)
            question, beyond = self._question, before.beyond if before else None
            for each in self._relation.changed(now, span, question.key, question.source, beyond):
                if not page.takes(each.key):
                    return ChangesPage(stamp, stand.batch, batch, page.rows, page.removed, page.last)
                told = ShownChange(each, self._relation).to(self._relation.scope)
                if told is not None:
                    page.add(*told)
            return ChangesPage(stamp, stand.batch, batch, page.rows, page.removed)

    def steps(self, stand: AppliedBatch) -> BatchChanges | None:
        """The changes since a batch, batch by batch; None if there are too many. Errors as for `changes`."""
        with self._reader.replica.snapshot() as snapshot:
            snapshot.as_of(stand.batch, stand.fingerprint)
            _, now = stamped(self._reader, snapshot)
            if now.batch - stand.batch > STEP_BATCHES_MAX:
                return None
            question, span = self._question, Batches(now.batch, stand.batch)
            steps = self._relation.steps(snapshot, span, question.key, question.source)
            found = list(islice(steps, STEP_ROWS_MAX + 1))
            if len(found) > STEP_ROWS_MAX:
                return None
            return BatchChanges(list(self._stepwise(snapshot, found)), now)

    def _held(self, snapshot: Snapshot) -> tuple[RelationSnapshot, AppliedBatch]:
        """The relation in a snapshot, and its batch; Misdirected for keys in another shard."""
        stamp, batch = stamped(self._reader, snapshot)
        self._question.check_held(stamp)
        return self._relation.at(snapshot, stamp, self._question.source), batch

    def _stamped(self, snapshot: Snapshot) -> tuple[Stamp, AppliedBatch]:
        stamp, batch = stamped(self._reader, snapshot)
        return replace(stamp, source=self._question.source), batch

    def _stepwise(self, snapshot: Snapshot, found: Sequence[tuple[int, RowChange]]) -> Iterator[ChangesPage]:
        by_batch: dict[int, list[RowChange]] = defaultdict(list)
        for number, changed in found:
            by_batch[number].append(changed)
        for number in sorted(by_batch):
            shown = [ShownChange(each, self._relation) for each in by_batch[number]]
            told = [each for each in (one.to(self._relation.scope) for one in shown) if each is not None]
            if told:
                stamp, batch = self._stamped(snapshot.as_of(number))
                yield from paged(stamp, number - 1, batch, told)


class _Page:
    def __init__(self) -> None:
        self.rows: list[Json] = []
        self.removed: list[Json] = []
        self.last: bytes | None = None
        self._looked = self._bytes = 0

    def takes(self, key: bytes) -> bool:
        """Whether this key still goes on the page. Rows outside the scope count too, to bound the time of a page."""
        if self._looked == PAGE_ROWS_MAX or self._bytes > PAGE_BYTES:
            return False
        self._looked, self.last = self._looked + 1, key
        return True

    def add(self, there: bool, json: Json) -> None:
        (self.rows if there else self.removed).append(json)
        self._bytes += len(json)


def paged(stamp: Stamp, after: int, batch: AppliedBatch, told: Sequence[tuple[bool, Json]]) -> Iterator[ChangesPage]:
    """The shown changes of a batch as pages; `beyond` is only a marker for a following page."""
    pages = [told[at : at + PAGE_ROWS_MAX] for at in range(0, len(told), PAGE_ROWS_MAX)] or [[]]
    for number, page in enumerate(pages, 1):
        changed, removed = ([json for is_there, json in page if is_there is there] for there in (True, False))
        yield ChangesPage(stamp, after, batch, changed, removed, b"more" if number < len(pages) else None)


def stamped(reader: ViewReader, snapshot: Snapshot) -> tuple[Stamp, AppliedBatch]:
    """A snapshot's stamp and batch; NotFreshEnough without a batch of the view's query."""
    stamp, batch = reader.stamp_of(snapshot), snapshot.batch()
    if stamp is None or batch is None:
        raise NotFreshEnough(f"The view {reader.shape.catalogue.view!r} has no batch yet", next_step="Ask again")
    return stamp, batch


GONE = (HistoryGone, NotFreshEnough)  # errors for a watcher's batch that the replica does not have
