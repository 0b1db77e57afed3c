"""Restarts: when a query that failed is started again, and when that is given up."""

from __future__ import annotations

from dataclasses import dataclass

from stateside.pipeline.failures import Failure

PAUSE_S_MAX = 60.0
AWAY_PAUSE_S_MIN = 0.2
_DOUBLINGS_MAX = 64  # a float holds no more than a thousand


@dataclass(slots=True)
class Restarts:
    """Failures in a row, the last one's reason, and when the next start is due.

    A batch that was finished in between ends the row. Failures because something is *away* are not counted, for up to
    `hold_s_max` from the first of them on; what outlasts that is counted like any other.
    """

    restarts_max: int
    pause_s: float
    hold_s_max: float
    count: int = 0
    why: str | None = None
    due_s: float = 0.0
    _batch: int | None = None  # the newest one at the last failure
    _away_since_s: float | None = None

    @property
    def away(self) -> bool:
        """Whether the last failure was because something is away."""
        return self._away_since_s is not None

    def plan(self, failure: Failure, batch: int | None, now_s: float) -> bool:
        """Plan the next start; whether there is to be one. `batch` is the newest one, None where it cannot be told."""
        progressed = batch is not None and batch != self._batch
        if progressed:
            self.count, self._batch = 0, batch
        if progressed or not failure.away:
            self._away_since_s = None
        return self._plan_held(failure, now_s) if failure.away else self._plan_counted(failure, now_s)

    def _plan_held(self, failure: Failure, now_s: float) -> bool:
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s >= self.hold_s_max:
            return self._plan_counted(failure, now_s)
        self.due_s = now_s + max(self.pause_s, AWAY_PAUSE_S_MIN)
        self.why = failure.why
        return True

    def _plan_counted(self, failure: Failure, now_s: float) -> bool:
        self.count += 1
        if not failure.worth_retrying or self.count > self.restarts_max:
            return False
        pause_s = min(self.pause_s * 2.0 ** min(self.count - 1, _DOUBLINGS_MAX), PAUSE_S_MAX)
        self.due_s = now_s + pause_s
        self.why = f"{failure.why} Restart {self.count} of {self.restarts_max} in {pause_s:g} s"
        return True
