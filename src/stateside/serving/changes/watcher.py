"""A watcher as its feed sees it: how far it has been told, and what waits for it, which is bounded.

Who takes what waits more slowly than it comes is cut off: what waits is dropped, and the reason told. Nothing is lost:
the ids of what it took are its own, and with the last one it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from stateside.errors import StatesideError
from stateside.replica.applied import AppliedBatch
from stateside.serving.changes.event import event, told
from stateside.serving.changes.question import Question

QUEUE_BYTES_MAX = 4 << 20  # of events that wait for one watcher; one alone may be larger
QUEUE_EVENTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch's changes, for each question that has any its events; an error if they could not be made."""

    since: AppliedBatch
    batch: AppliedBatch
    events: dict[Question, bytes | StatesideError]
    questions: frozenset[Question]  # that it was made for


@dataclass(frozen=True, slots=True)
class Item:
    """What waits for a watcher: bytes to send. Nothing comes after the `last`; with `behind` it has to read itself."""

    content: bytes
    last: bool = False
    behind: bool = False


BEHIND = Item(b"", behind=True)


@dataclass(slots=True, eq=False)
class Watcher:
    """One of a feed's watchers. `stand` is the batch that all that waits for it leads to."""

    question: Question
    stand: AppliedBatch
    pulsed: bool = False  # is told every second how old what it has is
    named: AppliedBatch = field(init=False)  # the batch of the last id that it has
    told_s: float = field(default_factory=time.monotonic)
    _queue: deque[Item] = field(default_factory=deque)
    _queue_bytes: int = 0
    _wake: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.named = self.stand

    async def next(self) -> Item:
        """What waits longest; waits for something if nothing does."""
        while not self._queue:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        item = self._queue.popleft()
        self._queue_bytes -= len(item.content)
        return item

    @property
    def idle(self) -> bool:
        """Whether nothing waits for it."""
        return not self._queue

    def tell(self, batch: Batch) -> bool:
        """Let a batch's changes wait for it; False if that was the last that it is told by its feed."""
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
        return self.cut_by(content) if isinstance(content, StatesideError) else self.put(Item(content))

    def put(self, item: Item) -> bool:
        """Let this wait for it; False if that was too much, and it is cut off."""
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
        """Tell it nothing more, because of an error; always False."""
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
    """The event for somebody who cannot be told more, because of an error."""
    return event("cut", {"reason": error.code, "detail": error.what, "problem": error.problem()})
