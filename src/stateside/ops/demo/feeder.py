"""The feeder: lets compressed months pass and appends their events to the journal as they come in."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice

from stateside.billing.calendar import Month
from stateside.billing.generator import Arrival, Generator
from stateside.errors import RequestInvalid
from stateside.journal import Event, Journal, JournalWriter
from stateside.layout import Layout
from stateside.positions import Position

TICK_S = 0.05
MONTHS_PER_RUN = 3.6  # so three months are sealed, and the fourth is open at the end


class Feeder:
    """Appends the generator's events in real time, each month squeezed into a few seconds.

    What it did so far is in the journal alone: started again on the same folder, it goes on after the last event there.
    """

    def __init__(self, generator: Generator, layout: Layout, seconds: float) -> None:
        self.generated = 0
        self.late = 0
        self.event_time_us_max = 0
        self._writer = JournalWriter(layout.journal)
        self._arrivals = self._resume(generator, Journal(layout.journal))
        self._next = next(self._arrivals)
        self._begin_us = self._next.arrival_us
        self._speed = MONTHS_PER_RUN * _month_us(generator) / seconds / 1e6  # generator's time per real time
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def prime(self) -> Position:
        """Append one event, so that there is something for a batch; returns its receipt."""
        return self._append_until(self._next.arrival_us)

    def start(self) -> None:
        """Let the time begin to pass."""
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Let no more time pass; raises what went wrong meanwhile, if anything."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._failure:
            raise self._failure

    def close(self) -> None:
        """Give the journal back."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        try:
            while not self._stop.wait(TICK_S):
                elapsed_s = time.monotonic() - self._began_s
                self._append_until(self._begin_us + int(elapsed_s * self._speed * 1e6))
        except BaseException as error:  # handed over to `stop`
            self._failure = error

    def _append_until(self, now_us: int) -> Position:
        events: list[Event] = []
        while self._next.arrival_us <= now_us:
            events.append(self._next.event)
            self._count(self._next)
            self._next = next(self._arrivals)
        return self._writer.append(events)

    def _count(self, arrival: Arrival) -> None:
        self.generated += 1
        self.late += arrival.late
        self.event_time_us_max = max(self.event_time_us_max, arrival.event.time_us)

    def _resume(self, generator: Generator, journal: Journal) -> Iterator[Arrival]:
        """The arrivals after those that the journal has; it must have those of this very generator."""
        arrivals = generator.arrivals()
        for event, arrival in zip(journal.events(), islice(arrivals, journal.end().events()), strict=True):
            if event != arrival.event:
                raise RequestInvalid(
                    f"The journal has the event {event.id!r} where this demo would have {arrival.event.id!r}",
                    where=str(journal.directory),
                    next_step="Continue with the same --customers and --seed as before, or use a new --dir",
                )
            self._count(arrival)
        return arrivals


def _month_us(generator: Generator) -> float:
    """The length of an average month."""
    first = generator.first
    return (Month(first.year + 1, first.month).start_us - first.start_us) / 12
