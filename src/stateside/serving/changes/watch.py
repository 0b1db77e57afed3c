"""One watcher's stream: a snapshot or a resumed position, then the missed changes, then the changes of the feed.

    begun ──► snapshot ──► joined: batch by batch ──► cut, end
      │          ▲            │      ▲
      │          │ reset      ▼      │
      └──────► reads what it missed ─┘

The watcher joins the feed exactly at the batch of its last event, and otherwise reads up to that batch itself: no gap,
no repeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from stateside.core.errors import HistoryGone, KeyInvalid, NotFreshEnough, StatesideError
from stateside.replica.batch_marker import AppliedBatch
from stateside.serving.changes.feed import POLL_S, Feed, Item, Watcher, cut
from stateside.serving.changes.sse import OPENING, EventId, Json, told
from stateside.serving.changes.subscription import GONE, ChangePages, ChangesPage, RowsPage, Subscription, stamped
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import ROWS_MAX


@dataclass(frozen=True, slots=True)
class WatchStart:
    """The start of a stream: a known batch, or the first page of rows; `gone` is the reason why resuming failed."""

    stand: AppliedBatch | None = None
    page: RowsPage | None = None
    gone: StatesideError | None = None


class Watch:
    """The stream of one subscription."""

    def __init__(self, feed: Feed, question: Subscription, *, pulsed: bool = False) -> None:
        self._feed, self.question, self._pulsed = feed, question, pulsed
        self._pages = ChangePages(question)

    async def begin(self, last: EventId | None, floor: Floor) -> WatchStart:
        """Find the start: after the watcher's last event, else at the newest rows.

        Waits for the event's batch, and for the rows, as the floor says. Without the batch the stream starts with the
        rows, and `gone` has the reason; NotFreshEnough without fresh rows.
        """
        gone: StatesideError | None = None
        if last is not None:
            try:
                return WatchStart(await self._found(last, floor))
            except HistoryGone as error:
                gone = error
        return WatchStart(page=await self._first_rows(floor), gone=gone)

    async def parts(self, begun: WatchStart) -> AsyncGenerator[bytes]:
        """All events from the start on, until the watcher is cut off or the feed ends."""
        yield OPENING
        try:
            async for content in self._told(begun):
                yield content
        except StatesideError as error:
            yield cut(error)

    async def once(self, last: EventId | None, floor: Floor) -> RowsPage | ChangesPage:
        """One page, for a poll: the rows; or the changes since an event, empty if none come within the floor's wait.

        HistoryGone if the event's batch is gone, KeyInvalid if the page is too large for one answer.
        """
        deadline_s = time.monotonic() + floor.wait_ms / 1_000
        if last is None:
            return await self._all_rows(floor)
        stand = await self._found(last, floor)
        while True:
            page = await self._changes_in_one(stand)
            if page.changed or page.removed or not await self._moved(page.batch, deadline_s):
                return page

    async def _told(self, begun: WatchStart) -> AsyncGenerator[bytes]:
        stand = begun.stand
        if begun.page is not None:
            if begun.gone is not None:
                yield _reset(begun.gone)
            async for page in self._rest(begun.page):
                yield page.event(self.question)
                stand = page.batch
        assert stand is not None, "a watcher begins with rows, or has a batch"
        watcher = Watcher(self.question, stand, self._pulsed)
        try:
            while True:
                if self._feed.join(watcher):
                    while not (item := await watcher.next()).behind:
                        yield item.content
                        if item.last:
                            return
                missed = self._missed(watcher.stand)
                async for content, stand in missed:
                    watcher.stand = watcher.named = stand
                    if content:
                        yield content
        finally:
            self._feed.leave(watcher)

    async def _missed(self, stand: AppliedBatch) -> AsyncGenerator[tuple[bytes, AppliedBatch]]:
        """The events since a batch up to now, each with the batch that the event leads to."""
        try:
            steps = await asyncio.to_thread(self._pages.steps, stand)
            if steps is None:
                async for change in self._all_changes(stand):
                    yield change.event(self.question), change.batch
                return
            for step in steps.pages:
                yield step.event(self.question), step.batch
            if steps.now == stand:
                await asyncio.sleep(POLL_S)  # the feed has not yet polled this newest batch
            yield b"", steps.now
        except GONE as error:
            yield _reset(error), stand
            async for page in self._rest(await asyncio.to_thread(self._pages.rows)):
                yield page.event(self.question), page.batch

    async def _all_changes(self, stand: AppliedBatch) -> AsyncGenerator[ChangesPage]:
        page = await asyncio.to_thread(self._pages.changes, stand)
        yield page
        while page.beyond is not None:
            page = await asyncio.to_thread(self._pages.changes, stand, page)
            yield page

    async def _rest(self, page: RowsPage) -> AsyncGenerator[RowsPage]:
        """This page and all following pages."""
        yield page
        while page.beyond is not None:
            page = await asyncio.to_thread(self._pages.rows, page)
            yield page

    async def _changes_in_one(self, stand: AppliedBatch) -> ChangesPage:
        changed: list[Json] = []
        removed: list[Json] = []
        try:
            async for page in self._all_changes(stand):
                changed, removed = changed + page.changed, removed + page.removed
                if len(changed) + len(removed) > ROWS_MAX:
                    raise _too_much(f"More than {ROWS_MAX} rows changed since batch {stand.batch}")
        except NotFreshEnough as error:  # the batch existed a moment ago: the replica bootstrapped meanwhile
            raise HistoryGone(error.what, next_step=error.next_step) from error
        return replace(page, changed=changed, removed=removed)

    async def _all_rows(self, floor: Floor) -> RowsPage:
        page = await self._first_rows(floor)
        rows = [*page.rows]
        while page.beyond is not None:
            page = await asyncio.to_thread(self._pages.rows, page)
            rows += page.rows
            if len(rows) > ROWS_MAX:
                raise _too_much(f"More than {ROWS_MAX} rows begin with this key")
        return RowsPage(page.stamp, page.batch, rows, None)

    async def _first_rows(self, floor: Floor) -> RowsPage:
        deadline_s = time.monotonic() + floor.wait_ms / 1_000
        while True:
            left_ms = max(0, int(1_000 * (deadline_s - time.monotonic())))
            await self._feed.reader.stamp(replace(floor, wait_ms=left_ms))
            page = await asyncio.to_thread(self._pages.rows)
            if floor.missing(page.stamp) is None:
                return page

    async def _found(self, last: EventId, floor: Floor) -> AppliedBatch:
        """The batch of an event; HistoryGone if the replica lost the batch, or does not reach the batch in time."""
        deadline_s = time.monotonic() + floor.wait_ms / 1_000
        while True:
            try:
                return await asyncio.to_thread(self._pages.find, last)
            except NotFreshEnough as error:
                if time.monotonic() >= deadline_s:
                    raise HistoryGone(
                        f"{error.what}: the checkpoint was rolled back, or this replica is far behind another one",
                        next_step="Begin again at the newest batch",
                    ) from error
            await asyncio.sleep(POLL_S)

    async def _moved(self, stand: AppliedBatch, deadline_s: float) -> bool:
        """Wait until the subscription may have changes; False at the deadline, or if the feed ends."""
        watcher = Watcher(self.question, stand)
        try:
            if not self._feed.join(watcher):
                return True
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                return not (await watcher.next()).last
        except TimeoutError:
            return False
        finally:
            self._feed.leave(watcher)


COMPOSED_S = 5.0  # between two compositions without a change of the rows
Compose = Callable[[], Awaitable[bytes]]


async def composed(feed: Feed, question: Subscription, first: bytes, compose: Compose) -> AsyncGenerator[bytes]:
    """The stream of events that an application composes from a subscription's rows and other data, after the `first`.

    `compose` returns the next event, at the replica's newest batch; empty, if the subscriber has all of that. It is
    called once joined, after each batch that changes one of the rows, and every COMPOSED_S as long as batches follow,
    since the other data may have changed. Every second the subscriber gets a pulse.
    """
    yield OPENING + first
    is_last = False
    try:
        while not is_last:
            watcher = await _joined(feed, question)
            try:
                async for item, content in _composed(watcher, compose):
                    is_last = item.last
                    if content:
                        yield content
            finally:
                feed.leave(watcher)
    except StatesideError as error:
        yield cut(error)


async def _joined(feed: Feed, question: Subscription) -> Watcher:
    """A watcher from the newest batch on: a read after this call misses none of the watcher's changes."""
    while True:
        with feed.reader.replica.snapshot() as snapshot:
            _, stand = stamped(feed.reader, snapshot)
        watcher = Watcher(question, stand, pulsed=True)
        if feed.join(watcher):
            return watcher
        await asyncio.sleep(POLL_S)  # the feed has not yet polled this newest batch


async def _composed(watcher: Watcher, compose: Compose) -> AsyncGenerator[tuple[Item, bytes]]:
    """Each item of a watcher, with the bytes to send, up to the item that ends the feed or marks a gap."""
    item, due, at, at_s = Item(b""), True, watcher.stand, 0.0
    while not item.last and not item.behind:
        moved = watcher.stand != at and time.monotonic() - at_s >= COMPOSED_S
        if watcher.idle and (due or moved):
            due, at, at_s = False, watcher.stand, time.monotonic()
            yield item, await compose()
        item = await watcher.next()
        due = due or item.changed
        yield item, b"" if item.changed else item.content


def _reset(error: StatesideError) -> bytes:
    return told("reset", error.code, error.what)


def _too_much(what: str) -> KeyInvalid:
    return KeyInvalid(what, next_step="Give more of the key's parts, or watch with `Accept: text/event-stream`")
