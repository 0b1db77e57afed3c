"""The feeder: replays the compressed months of a load, and appends their events to the journal as they come in."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stateside.billing.generator import Arrival, Generator, Shares
from stateside.billing.generator.rows import CLOCK, NOTE, USAGE_FATES, event_rows
from stateside.billing.model import clock_tick
from stateside.core.errors import RequestInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Log, open_journal
from stateside.journal.columns import GIVEN

TICK_S = 0.05
NUDGE_S = 2.0  # a restarted query needs an event to go on while the feeder waits for it
COUNTED = (*USAGE_FATES, CLOCK)  # fates that move the watermark
NUDGE = "nudge/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Events of some customers through compressed months, in `seconds`; the same seed makes the same events."""

    seconds: float = 45.0
    customers: int = 1_000
    events_per_period: int = 20
    periods: int = 3
    seed: int = 1
    late_share: float = 0.03
    duplicate_share: float = 0.01
    bad_share: float = 0.01

    def generator(self) -> Generator:
        """The generator of the events and of the expected outcome."""
        shares = Shares(late=self.late_share, duplicate=self.duplicate_share, bad=self.bad_share)
        return Generator(self.seed, self.customers, self.events_per_period, self.periods, shares)


class Feeder:
    """Appends the generator's events, months compressed into seconds, with the arrival as append time.

    Time stops before an event meant to be too late for its period until the pipeline has closed the period. So it is
    certain which events lead to notes, however slow the machine is and whatever is killed.

    The feeder's only state is the journal: a restart on the same folder continues after the last event there.
    """

    def __init__(
        self,
        generator: Generator,
        layout: Layout,
        seconds: float,
        watermark_us: Callable[[], int],
        *,
        of_all: bool = False,
        pace: Callable[[float], float] = lambda share_done: 1.0,
    ) -> None:
        """The remaining events take `seconds`; with `of_all`, as long as in a run of `seconds` from the start.

        `pace` is called at every tick with the share of the time that has passed, and returns a factor for the speed.
        """
        self.fates: Counter[str] = Counter()
        self.nudges = 0
        self.event_time_us_max = 0
        scenario = generator.scenario()
        periods = sorted((period for group in scenario.groups for period in group.periods), key=lambda one: one.end_us)
        self._ends_us = {period.label: period.end_us for period in periods}  # of a name in two time zones the later
        self._begin_us = self._now_us = scenario.opening_us
        self._end_us = scenario.end_us
        self._watermark_us = watermark_us
        self._arrivals = generator.arrivals()
        self._next = next(self._arrivals, None)
        self._writer = open_journal(layout.journal).writer()
        self._writer.append([])  # repairs leftovers of a killed writer before the journal is read
        self._resume(open_journal(layout.journal).log())
        begin_us = self._begin_us if of_all else self._now_us
        self._speed = (self._end_us - begin_us) / seconds / 1e6  # generated time per real time
        self._pace = pace
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    @property
    def fed(self) -> int:
        """The number of events in the journal."""
        return self.fates.total() + self.nudges

    @property
    def end(self) -> Position:
        """The position after the last event, as in stamps."""
        return self._writer.end

    @property
    def done(self) -> bool:
        """Whether no more events will be appended."""
        return self._next is None or self._failure is not None

    @property
    def share_done(self) -> float:
        """The share of the time that has passed."""
        return (self._now_us - self._begin_us) / (self._end_us - self._begin_us)

    def nudge(self) -> Position:
        """Append a clock tick, so that a batch has input; returns its receipt."""
        tick = clock_tick(self._now_us, f"{NUDGE}{self._writer.end.events()}")
        self.nudges += 1
        return self._append([Arrival(replace(tick, appended_us=self._now_us), CLOCK)])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the time; raises the feeder thread's failure, if any."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._failure:
            raise self._failure

    def close(self) -> None:
        """Stop the time and close the journal."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        try:
            last_s = appended_s = time.monotonic()
            while self._next is not None and not self._stop.wait(TICK_S):
                now_s = time.monotonic()
                if self._pass(self._now_us + int((now_s - last_s) * self._speed * self._pace(self.share_done) * 1e6)):
                    appended_s = now_s
                elif self._too_early(self._next) and now_s - appended_s >= NUDGE_S:
                    self.nudge()
                    appended_s = now_s
                last_s = now_s
        except BaseException as error:  # raised by `stop`
            self._failure = error

    def _pass(self, until_us: int) -> bool:
        """Advance the time, at most to an event that must wait; returns whether anything was appended."""
        arrived: list[Arrival] = []
        while self._next is not None and self._next.arrival_us <= until_us and not self._too_early(self._next):
            arrived.append(self._take(self._next))
        held = self._next is not None and self._next.arrival_us <= until_us
        self._now_us = self._now_us if held else min(until_us, self._end_us)
        if arrived:
            self._append(arrived)
        return bool(arrived)

    def _too_early(self, arrival: Arrival) -> bool:
        """Whether the event is meant to be too late for a period that the pipeline has not closed yet."""
        if arrival.fate != NOTE:
            return False
        _, _, period, _ = arrival.event.id.split("/")
        return self._watermark_us() < self._ends_us[period]

    def _take(self, arrival: Arrival) -> Arrival:
        """Count the arrival, and fetch the next one."""
        self.fates[arrival.fate] += 1
        self._now_us = max(self._now_us, arrival.arrival_us)
        if arrival.fate in COUNTED:
            self.event_time_us_max = max(self.event_time_us_max, arrival.event.time_us)
        self._next = next(self._arrivals, None)
        return arrival

    def _append(self, arrivals: Sequence[Arrival]) -> Position:
        rows = event_rows((arrival.arrival_us, arrival.event, arrival.fate) for arrival in arrivals)
        (batch,) = rows.select(GIVEN.names).combine_chunks().to_batches()
        return self._writer.append_batch(batch)

    def _resume(self, journal: Log) -> None:
        """Skip the events in the journal, which must be this generator's."""
        for event in journal.events():
            if event.id.startswith(NUDGE):
                self.nudges += 1
            elif self._next is None or event != self._next.event:
                raise RequestInvalid(
                    f"The journal has the event {event.id!r} where this demo would have "
                    f"{self._next.event.id if self._next else 'none'!r}",
                    where=journal.where,
                    next_step="Continue with the same --customers and --seed as before, or use a new --dir",
                )
            else:
                self._take(self._next)
