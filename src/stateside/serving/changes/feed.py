"""The feed of a view: detects new batches of the replica and distributes their changes to the watchers in this process.

Another process moves the replica, and LMDB has no notification. So the feed polls the replica's batch every POLL_S,
once for all watchers and only while there are any: 20 microseconds, and 5 ms of delay in the mean. The feed reads a
batch's changes once, makes the events of each distinct subscription once, in a thread, and queues the events for the
watchers, which send at their own pace.

A batch with more changes than FEED_ROWS_MAX is not held in memory: each watcher is marked as *behind*, and reads its
own part from the history, like a watcher that reconnects. The same happens if the history does not lead from the last
distributed batch to the present one: then the watchers notice and start over with a snapshot.

Back pressure: the queue of a watcher is bounded. A watcher that reads more slowly than events arrive is cut off: the
queue is dropped, and the watcher gets the reason. Nothing is lost: the watcher resumes with the id of its last event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from stateside.core.errors import NotFreshEnough, RequestInvalid, StatesideError
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.key_table import behind
from stateside.replica.store import Snapshot
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.changes.sse import NO_ID, EventId, changes_event, comment, event, pulse_event, told
from stateside.serving.changes.subscription import GONE, ShownChange, Subscription, paged, stamped
from stateside.serving.rows.archive import Batches
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.rows.view_readers import ViewReaders, without_cause
from stateside.serving.stamp import Source, Stamp

QUEUE_BYTES_MAX = 4 << 20  # of queued events for one watcher; a single event may be larger
QUEUE_EVENTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch's events for each subscription with changes; an error in place of events that could not be made."""

    since: AppliedBatch
    batch: AppliedBatch
    events: dict[Subscription, bytes | StatesideError]
    questions: frozenset[Subscription]  # the subscriptions at the time of the batch


@dataclass(frozen=True, slots=True)
class Item:
    """A queued item: bytes to send. Nothing follows the `last`; after `behind` the watcher reads the history itself.

    `changed` are a batch's changes; other items only keep the watcher informed.
    """

    content: bytes
    last: bool = False
    behind: bool = False
    changed: bool = False


BEHIND = Item(b"", behind=True)


@dataclass(slots=True, eq=False)
class Watcher:
    """One watcher of a feed. `stand` is the batch up to which all queued events lead."""

    question: Subscription
    stand: AppliedBatch
    pulsed: bool = False  # gets the age of its data every second
    named: AppliedBatch = field(init=False)  # the batch of the last id sent
    told_s: float = field(default_factory=time.monotonic)
    _queue: deque[Item] = field(default_factory=deque)
    _queue_bytes: int = 0
    _wake: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.named = self.stand

    async def next(self) -> Item:
        """The oldest queued item; waits while the queue is empty."""
        while not self._queue:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        item = self._queue.popleft()
        self._queue_bytes -= len(item.content)
        return item

    @property
    def idle(self) -> bool:
        return not self._queue

    def tell(self, batch: Batch) -> bool:
        """Queue a batch's changes; False if the watcher leaves the feed with this item."""
        if batch.batch.batch <= self.stand.batch:
            return True
        if batch.since != self.stand or self.question not in batch.questions:
            self.put(BEHIND)
            return False
        self.stand = batch.batch
        content = batch.events.get(self.question)
        if content is None:
            return True
        self.named = batch.batch
        return self.cut_by(content) if isinstance(content, StatesideError) else self.put(Item(content, changed=True))

    def put(self, item: Item) -> bool:
        """Queue an item; False if the queue is full and the watcher is cut off."""
        waiting = self._queue_bytes + len(item.content)
        if self._queue and (waiting > QUEUE_BYTES_MAX or len(self._queue) == QUEUE_EVENTS_MAX) and not item.last:
            return self._cut_off()
        self._queue.append(item)
        self._queue_bytes += len(item.content)
        self.told_s = time.monotonic()
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        return True

    def cut_by(self, error: StatesideError) -> bool:
        """Queue an error as the last item; always False."""
        self.put(Item(cut(error), last=True))
        return False

    def _cut_off(self) -> bool:
        detail = (
            f"{len(self._queue)} events of {self._queue_bytes:,} bytes waited for you: you take them more slowly than "
            "they come. Go on with the last id that you have, or watch fewer keys"
        )
        self._queue.clear()
        self._queue_bytes = 0
        self.put(Item(told("cut", "slow", detail), last=True))
        return False


def cut(error: StatesideError) -> bytes:
    """The event that ends a stream because of an error."""
    return event("cut", {"reason": error.code, "detail": error.what, "problem": error.problem()})


POLL_S = 0.01
FEED_ROWS_MAX = 10_000  # changes held for all watchers together, in rows and in each rollup
FEED_BATCHES_MAX = 16  # batches distributed one by one, if several arrive between two polls
KEEP_ALIVE_S = 15.0
_ALIVE_LOOK_S = 1.0
Followed = tuple[tuple[str, ...] | None, Source]  # a rollup by its columns, or the rows; and the source
log = logging.getLogger(__name__)


class Feed:
    """Distributes the changes of one view, in one process. Used on the event loop only."""

    def __init__(self, reader: ViewReader, views: ViewReaders) -> None:
        self.reader = reader
        self._views, self._name = views, reader.shape.catalogue.view
        self._watchers: set[Watcher] = set()
        self._stand: AppliedBatch | None = None  # the last distributed batch
        self._task: asyncio.Task[None] | None = None
        self._ended: Item | None = None
        self._trouble, self._alive_s = "", time.monotonic()

    def join(self, watcher: Watcher) -> bool:
        """Add a watcher for all batches after its stand; False if the watcher must first catch up by reading."""
        if self._ended is not None:
            watcher.put(self._ended)
            return True
        if self._stand is None:
            self._stand = watcher.stand
        if not _is_at(watcher.stand, self._stand):
            return False
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return True

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def end(self, reason: str, detail: str, before: bytes = b"") -> None:
        """End the feed: send the reason to all watchers, and to watchers that join later."""
        self._ended = Item(before + told("end", reason, detail), last=True)
        for watcher in self._watchers:
            watcher.put(self._ended)
        self._watchers.clear()

    @property
    def ended(self) -> bool:
        return self._ended is not None

    async def _run(self) -> None:
        try:
            while self._watchers:
                await asyncio.sleep(POLL_S)
                await self._look()
        finally:
            self._task, self._stand = None, None

    async def _look(self) -> None:
        try:
            reader = self._views.get(self._name)
            if reader is not self.reader:
                void = NO_ID + told(
                    "reset", "generation", f"Generation {reader.layout.generation} of the view is served"
                )
                same = reader.layout == self.reader.layout
                self.end("redeclared", "The view was declared again. Connect again", b"" if same else void)
                return
            await self._move()
            self._keep_alive()
            self._trouble = ""
        except StatesideError as error:  # the watchers keep their stand, and the next poll tries again
            if self._trouble != str(error):
                self._trouble = str(error)
                log.warning("changes of %s: %s", self._name, error)
        except Exception:
            log.exception("changes of %s failed", self._name)
            self._cut_all(StatesideError("The changes cannot be told; the server's log has the cause"))

    async def _move(self) -> None:
        assert self._stand is not None, "who runs has a watcher, and so a stand"
        with self.reader.replica.snapshot() as snapshot:
            now = snapshot.batch()
        if now is None or now == self._stand:
            return
        questions = frozenset(watcher.question for watcher in self._watchers)
        batches = await asyncio.to_thread(self._batches, self._stand, questions)
        if batches is None:
            self._stand = now
            for watcher in [each for each in self._watchers if each.stand != now]:
                watcher.put(BEHIND)
                self.leave(watcher)
            return
        for batch in batches:
            self._stand = batch.batch
            self._watchers -= {watcher for watcher in self._watchers if not watcher.tell(batch)}

    def _batches(self, stand: AppliedBatch, questions: frozenset[Subscription]) -> list[Batch] | None:
        """The batches since `stand`, read in a thread; None with a gap in the history, or with too many changes."""
        with self.reader.replica.snapshot() as snapshot:
            try:
                snapshot.as_of(stand.batch, stand.fingerprint)
                _, now = stamped(self.reader, snapshot)
                if now.batch - stand.batch > FEED_BATCHES_MAX:
                    return None
                span = Batches(now.batch, stand.batch)
                tables = {each: self._changes(snapshot, each, span) for each in set(map(_followed, questions))}
            except GONE:
                return None
            if any(changes is None for changes in tables.values()):
                return None
            held = {table: changes for table, changes in tables.items() if changes is not None}
            return list(self._each(snapshot, stand, now, held, questions))

    def _changes(self, snapshot: Snapshot, followed: Followed, span: Batches) -> _Changes | None:
        """All changes of a table since a batch; None if there are too many, or the history is gone."""
        by, source = followed
        relation = Relation(self.reader, None if by is None else self.reader.shape.rollup(by))
        try:
            found = list(islice(relation.steps(snapshot, span, (), source), FEED_ROWS_MAX + 1))
        except (RequestInvalid, NotFreshEnough):
            return None  # no such rollup: the subscriber gets the error from its own read
        if len(found) > FEED_ROWS_MAX:
            return None
        by_batch: dict[int, list[ShownChange]] = defaultdict(list)
        for batch, changed in found:
            by_batch[batch].append(ShownChange(changed, relation))
        return _Changes(by_batch)

    def _each(
        self,
        snapshot: Snapshot,
        stand: AppliedBatch,
        now: AppliedBatch,
        tables: Mapping[Followed, _Changes],
        questions: frozenset[Subscription],
    ) -> Iterator[Batch]:
        for number in range(stand.batch + 1, now.batch + 1):
            stamp, batch = stamped(self.reader, snapshot.as_of(number))
            events = {each: _events(stamp, batch, tables[_followed(each)], each) for each in questions}
            told_ = {question: content for question, content in events.items() if content is not None}
            yield Batch(stand, batch, told_, questions)
            stand = batch

    def _keep_alive(self) -> None:
        """Send a keep-alive to watchers without an event for KEEP_ALIVE_S; with a new id where their batch moved."""
        now_s = time.monotonic()
        if now_s - self._alive_s < _ALIVE_LOOK_S:
            return
        self._alive_s = now_s
        self._pulse()
        waiting = [w for w in self._watchers if w.idle and now_s - w.told_s >= KEEP_ALIVE_S]
        stamp = self._stamp() if waiting else None
        for watcher in waiting:
            watcher.put(Item(_alive(watcher, stamp)))

    def _pulse(self) -> None:
        """Send the present age and the job's state to the watchers that asked for a pulse."""
        pulsed = [watcher for watcher in self._watchers if watcher.pulsed and watcher.idle]
        now = self._stamp() if pulsed else None
        if now is None:
            return
        stamp, batch = now
        job, questions = self._views.state(self._name), {_shown_as(each.question): each.question for each in pulsed}
        contents = {shown: _pulse(each, stamp, job) for shown, each in questions.items()}
        for watcher in pulsed:
            if watcher.stand == batch:
                watcher.put(Item(contents[_shown_as(watcher.question)]))

    def _stamp(self) -> tuple[Stamp, AppliedBatch] | None:
        """The stamp of the last distributed batch, if the replica is still at that batch."""
        with self.reader.replica.snapshot() as snapshot:
            stamp, batch = stamped(self.reader, snapshot)
        return (stamp, batch) if batch == self._stand else None

    def _cut_all(self, error: StatesideError) -> None:
        for watcher in self._watchers:
            watcher.cut_by(error)
        self._watchers.clear()


class Feeds:
    """The feeds of all views in this process."""

    def __init__(self, views: ViewReaders) -> None:
        self._views = views
        self._feeds: dict[str, Feed] = {}
        self._stopped = False

    def of(self, reader: ViewReader) -> Feed:
        """The feed of the reader's view."""
        name = reader.shape.catalogue.view
        found = self._feeds.get(name)
        if found is None or found.ended or found.reader is not reader:
            found = self._feeds[name] = Feed(reader, self._views)
        if self._stopped:
            self._end(found)
        return found

    def stop(self) -> None:
        """End all feeds, and feeds requested later: the server stops."""
        self._stopped = True
        for feed in self._feeds.values():
            self._end(feed)

    def _end(self, feed: Feed) -> None:
        feed.end("stopping", "This server stops. Connect again with the last id, here or elsewhere")


class _Changes:
    """The changes of one table, batch by batch, in key order."""

    def __init__(self, by_batch: Mapping[int, list[ShownChange]]) -> None:
        self._by_batch = by_batch
        self._keys = {batch: [each.key for each in changes] for batch, changes in by_batch.items()}

    def of(self, batch: int, prefix: bytes) -> Sequence[ShownChange]:
        """A batch's changes of the keys that begin with a prefix."""
        keys, end = self._keys.get(batch, []), behind(prefix)
        stop = bisect_left(keys, end) if end else len(keys)
        return self._by_batch[batch][bisect_left(keys, prefix) : stop] if keys else ()


def _followed(question: Subscription) -> Followed:
    return question.relation.table.by, question.source


def _is_at(stand: AppliedBatch, told_: AppliedBatch) -> bool:
    """Whether a watcher at this stand misses no batch after the last distributed one."""
    return stand.batch > told_.batch or stand == told_


def _events(
    stamp: Stamp, batch: AppliedBatch, changes: _Changes, question: Subscription
) -> bytes | StatesideError | None:
    """A subscription's events of a batch; None without changes."""
    try:
        shown = (each.to(question.relation.scope) for each in changes.of(batch.batch, question.prefix))
        those = [each for each in shown if each is not None]
    except StatesideError as error:  # a row that cannot be shown: only the subscribers to this row get the error
        return error
    if not those:
        return None
    return b"".join(page.event(question) for page in paged(stamp, batch.batch - 1, batch, those))


def _shown_as(question: Subscription) -> tuple[PositionCodec, Source]:
    """What the stamps of a subscription's events depend on."""
    return question.positions, question.source


def _pulse(question: Subscription, stamp: Stamp, job: dict[str, Any]) -> bytes:
    return pulse_event(question.stamp(stamp), without_cause(job) if question.positions.opaque else job)


def _alive(watcher: Watcher, now: tuple[Stamp, AppliedBatch] | None) -> bytes:
    if now is None or now[1] != watcher.stand or watcher.named == watcher.stand:
        return comment(f"batch {watcher.stand.batch}")
    after, watcher.named = watcher.named, watcher.stand
    return changes_event(watcher.question.stamp(now[0]), after.batch, [], [], EventId.of(watcher.stand))
