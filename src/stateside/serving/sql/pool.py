"""The SQL processes of a worker, and which statement runs in which of them.

    reserved   one process, for operators only
    shared     SHARED_PROCESSES, for everybody

A process runs the statements of one token at a time, and a token has its statements in one process (an operator also in
the reserved one). So a statement that has to be killed, with its process, ends no other token's statement, and no token
takes more than the slots of one process. Processes start when they are needed; a shared one that nobody has used for a
while is ended.

A statement that finds no slot waits in a queue, for WAIT_S_MAX at most. While a token without a process waits for one,
tokens that have one begin no further statements in it: it is free as soon as those that it runs have ended.

Each worker has processes of its own, and counts for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from stateside.errors import TooManyRequests
from stateside.layout import Layout
from stateside.serving.access.holder import Holder
from stateside.serving.reading.floor import Floor
from stateside.serving.sql.frames import Asked
from stateside.serving.sql.question import Question
from stateside.serving.sql.remote import Left, Remote, Size, SqlProcess

RESERVED: Final = Size(statements_max=4, bytes_max=4 << 30, kept_bytes_max=1 << 30)
SHARED: Final = Size(statements_max=2, bytes_max=2 << 30, kept_bytes_max=512 << 20)
SHARED_PROCESSES: Final = 3
WAIT_S_MAX: Final = 5.0  # long enough for a process to start
WAITING_MAX: Final = 16  # statements of one token in the queue
IDLE_S_MAX: Final = 300.0  # a shared process that was not used for so long is ended


@dataclass(slots=True, eq=False)
class Place:
    """A process's slots: the token that has them now, or had them last, and how many of its statements run."""

    slots: int
    reserved: bool = False
    token: Hashable = None
    running: int = 0
    uses: int = 0


@dataclass(slots=True, eq=False)
class Waiter:
    """A statement in the queue, and the place that it was given."""

    token: Hashable
    operator: bool
    place: Place | None = None
    given: asyncio.Event = field(default_factory=asyncio.Event)


class Slots:
    """The places and the queue: decides who runs where, and nothing else."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = tuple(places)
        self._queue: list[Waiter] = []

    def enter(self, waiter: Waiter) -> bool:
        """Join the queue, and get a place if there is one; False if too many statements of this token wait already."""
        if sum(each.token == waiter.token for each in self._queue) >= WAITING_MAX:
            return False
        self._queue.append(waiter)
        self._give()
        return True

    def give_up(self, waiter: Waiter) -> None:
        """Leave the queue without a place."""
        self._queue.remove(waiter)
        self._give()

    def leave(self, place: Place) -> None:
        """A statement in this place has ended."""
        place.running -= 1
        self._give()

    def _give(self) -> None:
        for waiter in tuple(self._queue):
            place = self._free(waiter)
            if place is not None:
                self._grant(waiter, place)
        lacking = [each for each in self._queue if not self._own(each)]
        for waiter in tuple(self._queue):
            with_room = [place for place in self._own(waiter) if place.running < place.slots]
            place = next((each for each in with_room if not any(_may_use(other, each) for other in lacking)), None)
            if place is not None:
                self._grant(waiter, place)

    def _grant(self, waiter: Waiter, place: Place) -> None:
        self._queue.remove(waiter)
        place.token, place.running, place.uses = waiter.token, place.running + 1, place.uses + 1
        waiter.place = place
        waiter.given.set()

    def _own(self, waiter: Waiter) -> list[Place]:
        """The places that run statements of this token."""
        return [each for each in self.places if each.running and each.token == waiter.token]

    def _free(self, waiter: Waiter) -> Place | None:
        """A place that runs nothing: the operators' first of all, then the one that has kept what the token read.

        Whoever has a place already gets no second one, but for an operator the reserved one.
        """
        owns = bool(self._own(waiter))
        free = (each for each in self.places if not each.running and _may_use(waiter, each))
        found = min(free, key=lambda place: (not place.reserved, place.token != waiter.token), default=None)
        return None if found is None or (owns and not found.reserved) else found


def _may_use(waiter: Waiter, place: Place) -> bool:
    return waiter.operator or not place.reserved


class SqlPool:
    """Runs the statements of one worker. `tables` names what gives the gates of an application's tables."""

    def __init__(self, layout: Layout, tables: Sequence[str] = (), *, idle_s: float = IDLE_S_MAX) -> None:
        self._idle_s = idle_s
        sizes = [RESERVED, *[SHARED] * SHARED_PROCESSES]
        places = [Place(size.statements_max, reserved=size is RESERVED) for size in sizes]
        self._slots = Slots(places)
        self._processes = {place: SqlProcess(layout, tables, size) for place, size in zip(places, sizes, strict=True)}

    async def run(self, question: Question, holder: Holder, floor: Floor, left: Left) -> Remote:
        """The statement, which has begun to run. The caller closes it.

        TooManyRequests if it got no slot; errors as for `SqlRunner.run`, and SqlEnded.
        """
        place = await self._entered(holder, question.timeout_ms / 1_000)
        try:
            remote = await self._processes[place].asked(question, partial(self._leave, place))
        except BaseException:
            self._leave(place)
            raise
        try:
            await remote.begin(Asked(holder, question, floor), left)
        except BaseException:
            await remote.aclose()
            raise
        return remote

    async def listed(self, holder: Holder) -> list[dict[str, Any]]:
        """The relations that a holder reaches; TooManyRequests as above."""
        place = await self._entered(holder, WAIT_S_MAX)
        try:
            return await self._processes[place].listed(holder)
        finally:
            self._leave(place)

    async def _entered(self, holder: Holder, wait_s: float) -> Place:
        token = holder.name, holder.views, frozenset(holder.where.items())
        waiter = Waiter(token, "operator" in holder.roles)
        if not self._slots.enter(waiter):
            raise _too_many()
        try:
            async with asyncio.timeout(min(wait_s, WAIT_S_MAX)):
                await waiter.given.wait()
        except BaseException as error:
            if waiter.place is None:
                self._slots.give_up(waiter)
            elif isinstance(error, TimeoutError):
                return waiter.place  # it came in the last moment
            else:
                self._leave(waiter.place)
            raise (_too_many() if isinstance(error, TimeoutError) else error) from None
        assert waiter.place is not None
        return waiter.place

    def _leave(self, place: Place) -> None:
        self._slots.leave(place)
        if not place.reserved and not place.running:
            asyncio.get_running_loop().call_later(self._idle_s, self._rest, place, place.uses)

    def _rest(self, place: Place, uses: int) -> None:
        """End a process that was not used since."""
        if place.uses == uses:
            self._processes[place].kill()


def _too_many() -> TooManyRequests:
    return TooManyRequests(
        f"As many statements run here as may, and none of them ended within {WAIT_S_MAX:g} s",
        next_step="Ask again in a moment, or run fewer at a time",
    )
