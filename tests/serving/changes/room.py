"""Clients of a view: what they ask, what they must be told, and how they connect, drop and come back."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stateside.replica.history import Keep
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.changes import feed, subscription
from stateside.serving.changes import feed as feed_module
from stateside.serving.changes.feed import Feeds
from stateside.serving.changes.sse import EventId
from stateside.serving.changes.subscription import Subscription
from stateside.serving.changes.watch import Watch
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.view_readers import ViewReaders
from tests.serving.changes.watched import VIEW, Follower, Key, Mover, State, events, laid_out

ROWS_KEY, WAIT_S = ("account", "kind"), 20.0
LIMITED = {"FEED": feed, "KEEP": feed, "QUEUE": feed_module, "PAGE": subscription, "STEP": subscription}


@dataclass(frozen=True)
class Asked:
    """A question as a client asks it, and which rows that is."""

    key: tuple[str, ...] = ()
    rollup: tuple[str, ...] | None = None
    holder: Principal = OPERATOR

    @property
    def columns(self) -> tuple[str, ...]:
        return ROWS_KEY if self.rollup is None else self.rollup

    def sums(self, state: State) -> dict[tuple[Any, ...], int]:
        """What the answer must say, by key."""
        found: dict[tuple[Any, ...], int] = {}
        for (account, kind), value in state.items():
            row = {"account": account, "kind": kind, "sum": value}
            coarser = tuple(row[name] for name in self.columns)
            if self._has(row):
                found[coarser] = found.get(coarser, 0) + value
        return found

    def _has(self, row: dict[str, Any]) -> bool:
        first = ("account", "period", "kind") if self.rollup is None else self.rollup
        asked = all(str(row[name]) == part for name, part in zip(first, self.key, strict=False) if name != "period")
        return asked and all(str(row[name]) == text for name, text in self.holder.where.items())


PERIOD = "2026-02-02T02:40:00Z"
OF_A_KIND = Principal("caller", frozenset({"read"}), where={"kind": "call"})
OF_THREES = Principal("of threes", frozenset({"read"}), where={"sum": "3"})  # by a column that is not in the key
OF_AN_ACCOUNT = Principal("one", frozenset({"read"}), where={"account": "1"})
QUESTIONS = [
    Asked(),
    Asked(("1",)),
    Asked(("1", PERIOD, "call")),
    Asked(rollup=("kind",)),
    Asked(("call",), rollup=("kind",)),
    Asked(rollup=()),
    Asked(holder=OF_A_KIND),
    Asked(holder=OF_AN_ACCOUNT),
    Asked(holder=OF_THREES),
    Asked(rollup=("account",), holder=OF_AN_ACCOUNT),
]


class Room:
    """A folder with a view, what a server's process has for it, and what its rows were after each batch."""

    def __init__(self, mover: Mover, folder: Path) -> None:
        self.mover, self.layout = mover, laid_out(folder)
        self.states: list[State] = []
        self.start()

    def start(self) -> None:
        self.views = ViewReaders(self.layout)
        self.feeds = Feeds(self.views)

    def stop(self) -> None:
        """As a server's process that is told to stop."""
        self.feeds.stop()

    async def joined(self, watchers: int) -> None:
        """Wait until the feed has so many watchers, and each of them has taken what waited for it."""
        async with asyncio.timeout(WAIT_S):
            while not self._idle(watchers):
                await asyncio.sleep(0.001)

    def _idle(self, watchers: int) -> bool:
        found = [watcher for feed in self.feeds._feeds.values() for watcher in feed._watchers]
        return len(found) == watchers and all(watcher.idle for watcher in found)

    async def settle(self) -> None:
        """Wait until nobody reads any more."""
        while any(each._task for each in self.feeds._feeds.values()) or self._reading():
            await asyncio.sleep(0.001)

    def _reading(self) -> bool:
        return any(replica._opened.snapshots for replica in self.views._replicas.values())

    def close(self) -> None:
        for replica in self.views._replicas.values():
            replica.close()

    def apply(self, changes: dict[Key, int | None], keep: Keep | None = None) -> None:
        self.mover.apply(self.layout, len(self.states), changes, keep=keep)
        before = self.states[-1] if self.states else {}
        after = {**before, **changes}
        self.states.append({key: value for key, value in after.items() if value is not None})

    def watch(self, asked: Asked = QUESTIONS[0]) -> Watch:
        reader = self.views.get(VIEW)
        relation = Relation.of(reader, asked.holder, asked.rollup)
        return Watch(self.feeds.of(reader), Subscription.ask(relation, asked.key))


@dataclass
class Client:
    """A watcher that connects, drops and comes back."""

    room: Room
    asked: Asked
    follower: Follower = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.follower = Follower(self.asked.columns)

    @property
    def there(self) -> bool:
        return self._task is not None

    def connect(self) -> None:
        self._task = asyncio.create_task(self._hear())

    async def drop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self.follower.drop()

    async def _hear(self) -> None:
        last = self.follower.id
        watch = self.room.watch(self.asked)
        begun = await watch.begin(EventId.parse(last) if last else None, Floor())
        parts = watch.parts(begun)
        try:
            async for told in events(parts):
                self.follower.hear(told)
        finally:
            await parts.aclose()

    async def told_up_to(self, batch: int) -> None:
        """Wait until it has been told this batch."""
        assert self._task is not None
        async with asyncio.timeout(WAIT_S):
            while batch not in self.follower.at:
                if self._task.done():
                    await self._task
                    raise AssertionError(f"the stream ended: {self.follower.told[-1:]}")
                await asyncio.sleep(0.001)

    def check(self) -> None:
        """At every id the very state of that batch; every change begins at the state it says; no id comes twice."""
        states = self.room.states
        for batch, rows in self.follower.at.items():
            assert {key: row["sum"] for key, row in rows.items()} == self.asked.sums(states[batch]), batch
        for after, rows in self.follower.before:
            assert {key: row["sum"] for key, row in rows.items()} == self.asked.sums(states[after]), after
        ids = [told.id for told in self.follower.told if told.id]
        numbers = [int(each.split("-")[0]) for each in ids]
        assert len({*ids}) == len(ids), "nothing is told twice"
        assert numbers == sorted(numbers)


def in_a_room(
    mover: Mover, run: Callable[[Room], Coroutine[Any, Any, None]], limit: dict[str, float] | None = None
) -> None:
    """Run this in a room with one batch, and with these limits."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "POLL_S", 0.001)
        for name, value in (limit or {}).items():
            patch.setattr(LIMITED[name.partition("_")[0]], name, value)
        room = Room(mover, Path(folder))
        try:
            room.apply({(0, "call"): 0, (1, "call"): 1, (1, "data"): 2})
            asyncio.run(run(room))
        finally:
            mover.forget(room.layout)
            room.close()
