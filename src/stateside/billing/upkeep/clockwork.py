"""The clockwork: puts into the journal what nobody does but time itself. Recurring fees, and ticks of the clock.

A tick moves the watermark. There is one when the grace time of a period has passed, so that it closes on time although
nobody uses anything, and one in a quarter of an hour in which nothing was appended: a query that was started again
needs an event to do what is due.

How everything gets in exactly once, whenever the process is killed, and however many of them run:

1. The journal's end is read, then the time.
2. The book up to that end says which fees fell due since the reach's time, and of customers whose first assignment
   stands behind the reach's position. Ids are made of fee, customer and period; of a tick's moment.
3. The events are appended unless their ids stand behind the reach's position already (`append_unstored`). What a
   killed process, or another one, appended of them stands there: before that reach none of them was due.
4. The reach is moved to that end and that time, in memory, and now and then in its file, `clock.json`.

A crash after step 3 leaves an older reach: the next start finds the same fees, and maybe more, and looks for their ids
from further back. Without one it looks through the whole journal. So the file may be deleted at any time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.book.texts import Longs
from stateside.billing.model import GRACE_US, HOUR_US, VIEW, clock_tick
from stateside.billing.upkeep.recurring import due_fees
from stateside.clock import Clock
from stateside.errors import PositionInvalid
from stateside.journal import Event, Journal
from stateside.journal.opened import open_journal, open_writer
from stateside.layout import Layout
from stateside.positions import Position
from stateside.storage import write_atomically

IDLE_US: Final = HOUR_US // 4
STEP_S: Final = 1.0
EVENTS_AT_ONCE: Final = 50_000
_SAVE_EVENTS: Final = 100_000  # that far the reach's file may stay behind: what a start reads over at once


@dataclass(frozen=True, slots=True)
class Reach:
    """All fees that fell due up to the time, of customers assigned before the position, are in the journal."""

    position: Position
    time_us: int

    @classmethod
    def load(cls, path: Path, journal_id: str | None) -> Reach | None:
        """The reach of a file; None if there is none of this journal that can be read: then all is looked for anew."""
        try:
            content = json.loads(path.read_bytes())
            found = cls(Position.parse(content["position"]), int(content["time_us"]))
            return found if content["journal"] == journal_id else None
        except (OSError, ValueError, LookupError, TypeError, PositionInvalid):
            return None

    def save(self, path: Path, journal_id: str | None) -> None:
        """Replace the file in one step."""
        content = {"journal": journal_id, "position": str(self.position), "time_us": self.time_us}
        write_atomically(path, json.dumps(content).encode())


class Clockwork:
    """Does, at each step, what time has made due in one application's folder."""

    def __init__(self, layout: Layout, clock: Clock, on_step: Callable[[int], None] = lambda number: None) -> None:
        self._journal = open_journal(layout.journal)
        self._writer = open_writer(layout.journal, clock=clock)
        self._keeper = BookKeeper(self._journal, layout.view(VIEW).root / "book")
        self._clock = clock
        self._path = layout.clock
        self._reach = self._saved = Reach.load(self._path, self._journal.id())
        self._on_step = on_step
        self._whole = self._book = Book.empty()

    def step(self) -> int:
        """Append what is due; returns how many events that were, those left out because they are there included."""
        end, now_us = self._journal.end(), self._clock.now_us()  # in this order: see the protocol
        if not end.events():
            return 0
        reach = self._reach or Reach(Position.start(), now_us)
        now_us = max(now_us, reach.time_us)  # a clock that is put back makes nothing due again
        self._on_step(1)
        book = self._book_at(end.one())
        self._on_step(2)
        count = 0
        for events in _chunks(self._due(book, reach, end, now_us)):
            self._writer.append_unstored(events, since=reach.position)
            self._on_step(3)
            count += len(events)
        self._move(Reach(end, now_us), save=count > 0)
        self._on_step(4)
        return count

    def close(self) -> None:
        """Give the journal back."""
        self._writer.close()

    def _due(self, book: Book, reach: Reach, end: Position, now_us: int) -> Iterator[Event]:
        since = reach.position.one()
        for fee in due_fees(book, reach.time_us, now_us, since, lambda offsets: _appended(self._journal, offsets)):
            yield fee.event()
        last_us = _last_appended(self._journal, end.one())
        ticked_us = reach.time_us if self._reach else 0
        for moment_us in sorted({*_closings(book, ticked_us, now_us), *_idle(last_us, now_us)}):
            yield clock_tick(moment_us, f"clock/{moment_us}")

    def _book_at(self, offset: int) -> Book:
        """A book with all accounts in one, put together only when there are other accounts than at the last step."""
        book = self._keeper.at(offset)
        if book.base is not self._book.base or book.tail is not self._book.tail:
            self._whole = book.whole()
        self._book = book
        return replace(self._whole, pages=book.pages)

    def _move(self, reach: Reach, save: bool) -> None:
        self._reach = reach
        behind = reach.position.events() - (self._saved.position.events() if self._saved else 0)
        if save or self._saved is None or behind >= _SAVE_EVENTS:
            reach.save(self._path, self._journal.id())
            self._saved = reach


def run_clock(layout: Layout, clock: Clock, stop: threading.Event, step_s: float = STEP_S) -> None:
    """Step until it is told to stop; a step that was begun is finished."""
    clockwork = Clockwork(layout, clock)
    try:
        while not stop.is_set():
            clockwork.step()
            stop.wait(step_s)
    finally:
        clockwork.close()


def _closings(book: Book, after_us: int, now_us: int) -> Iterator[int]:
    """When the newest period of each cycle closed, if that is news."""
    for cycle in {version.cycle for version in book.versions}:
        closed_us = cycle.containing(now_us - GRACE_US).start_us + GRACE_US
        if after_us < closed_us <= now_us:
            yield closed_us


def _idle(last_us: int, now_us: int) -> Iterator[int]:
    """The newest full quarter of an hour, if nothing was appended since."""
    quarter_us = now_us // IDLE_US * IDLE_US
    if last_us < quarter_us:
        yield quarter_us


def _last_appended(journal: Journal, end: int) -> int:
    """The append time of the last event before the end. On Kafka not every offset has one: it is looked for."""
    begin, back = journal.begin().one(), 1
    while end > begin:
        found = list(journal.batches(max(end - back, begin), end))
        if found:
            return int(found[-1][1].column("appended").cast(pa.int64())[-1].as_py())
        if end - back <= begin:
            break
        back *= 16
    return 0


def _appended(journal: Journal, offsets: Longs) -> Longs:
    """The append times of events, by rising offsets."""
    if not len(offsets):
        return offsets
    found = []
    for first, batch in journal.batches(int(offsets[0]), int(offsets[-1]) + 1):
        here = offsets[(offsets >= first) & (offsets < first + batch.num_rows)] - first
        found.append(batch.column("appended").cast(pa.int64()).to_numpy()[here])
    return np.concatenate(found)


def _chunks(events: Iterator[Event]) -> Iterator[list[Event]]:
    while chunk := list(islice(events, EVENTS_AT_ONCE)):
        yield chunk
