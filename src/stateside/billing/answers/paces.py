"""Paces as they are asked for: folded in a process of its own, one at a time, and kept for a while.

A fold reads two periods' events out of the journal, which takes some seconds for a million of them. So who asks is
given the last one as long as its totals are still the totals; or, where events keep coming in, until it is `KEPT_S`
old, or `SHARE` times as old as it took to make. Its stamp says how old it is. Who asks first waits for `WAIT_S`, and is
then told that it is not ready yet. After a fold that failed there is none for `SHARE` times as long as it took, either:
its error is told meanwhile, or the last pace that there was.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from stateside import processes
from stateside.billing.answers.hours import Hours
from stateside.billing.answers.pace import Totals, pace
from stateside.billing.plans.file import PlanVersion
from stateside.errors import StateError
from stateside.journal.segment import PARTITION
from stateside.layout import Layout
from stateside.serving.stamp import Stamp

KEPT_S: Final = 60.0
SHARE: Final = 20  # of the time folds may take: one twentieth
WAIT_S: Final = 10.0
FOLD_S_MAX: Final = 900
PERIODS_KEPT: Final = 24


@dataclass(frozen=True, slots=True)
class Kept:
    """A pace, and what it was made of."""

    stamp: Stamp
    totals: tuple[Totals, Totals]
    document: Mapping[str, Any]
    made_s: float
    took_s: float

    def serves(self, totals: tuple[Totals, Totals], now_s: float) -> bool:
        """Whether it need not be made anew."""
        return totals == self.totals or now_s - self.made_s < max(KEPT_S, SHARE * self.took_s)

    def stamp_at(self, now_s: float) -> Stamp:
        """Its stamp, grown old since."""
        return replace(self.stamp, age_ms=self.stamp.age_ms + int((now_s - self.made_s + self.took_s) * 1_000))


@dataclass(frozen=True, slots=True)
class Failed:
    """A fold that failed."""

    error: BaseException
    ended_s: float
    took_s: float

    def stands(self, now_s: float) -> bool:
        """Whether it is too early to try again."""
        return now_s - self.ended_s < SHARE * self.took_s


class Paces:
    """The paces of a folder's periods: one for each worker process."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._failed: OrderedDict[str, Failed] = OrderedDict()
        self._made: dict[str, asyncio.Task[Kept]] = {}
        self._one = asyncio.Lock()

    async def of(
        self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]
    ) -> tuple[Stamp, Mapping[str, Any]] | None:
        """The pace of the period that these are the totals of, at this stamp; None as long as it is not ready."""
        label, now_s = totals["period"], time.monotonic()
        kept, failed = self._kept.get(label), self._failed.get(label)
        if kept is None and failed is not None and failed.stands(now_s):
            raise failed.error.with_traceback(None)
        if kept is None or not (kept.serves((totals, before), now_s) or (failed is not None and failed.stands(now_s))):
            task = self._made.get(label) or self._make(stamp, totals, before, plans)
            if kept is None:
                done, _ = await asyncio.wait([task], timeout=WAIT_S)
                kept = task.result() if done else None
        return None if kept is None else (kept.stamp_at(time.monotonic()), kept.document)

    def _make(
        self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]
    ) -> asyncio.Task[Kept]:
        label, began_s = totals["period"], time.monotonic()
        task = asyncio.get_running_loop().create_task(self._fold(stamp, totals, before, plans))
        self._made[label] = task
        task.add_done_callback(lambda task: self._keep(label, task, began_s))
        return task

    async def _fold(self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]) -> Kept:
        began_s = time.monotonic()
        async with self._one:
            found = await self._hours(stamp, totals["period"], before["period"])
        document = pace(totals, before, found, plans, stamp.watermark_us)
        now_s = time.monotonic()
        return Kept(stamp, (totals, before), document, now_s, now_s - began_s)

    def _keep(self, label: str, task: asyncio.Task[Kept], began_s: float) -> None:
        del self._made[label]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failed.pop(label, None)
            _put(self._kept, label, task.result())
        else:
            now_s = time.monotonic()
            _put(self._failed, label, Failed(error, now_s, now_s - began_s))

    async def _hours(self, stamp: Stamp, *labels: str) -> Hours:
        stop = str(stamp.position[PARTITION])
        command = [sys.executable, "-m", "stateside.billing.answers.hours", str(self._layout.root), stop, *labels]
        try:
            code, output, errors = await processes.run(command, FOLD_S_MAX)
        except TimeoutError:
            raise StateError(f"Adding up the hours of {labels[0]} took more than {FOLD_S_MAX} s") from None
        if code:
            last = (errors.strip().splitlines() or ["without a word"])[-1]
            raise StateError(f"The hours of {labels[0]} cannot be added up: {last}")
        return Hours.parse(output)


def _put(among: OrderedDict[str, Any], label: str, value: Kept | Failed) -> None:
    """Remember it, and no more than so many."""
    among[label] = value
    among.move_to_end(label)
    while len(among) > PERIODS_KEPT:
        among.popitem(last=False)
