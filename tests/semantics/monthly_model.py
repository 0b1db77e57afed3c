"""Totals by month as they should come out of many batches, from the rows alone; and a run with a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row

from .harness import Feed, Lab
from .months import local_ms, month_end_ms, totals, totals_in_state

Event = dict[str, Any]
Totals = dict[tuple[str, int], int]  # by customer and the period's end


class Model:
    """What should happen, from the rows alone."""

    def __init__(self) -> None:
        self.state: Totals = {}
        self._next_batch = 0
        self._watermark_ms, self._watermark_before_ms = 0, 0
        self._newest_ms = 0

    def run(self, batches: list[list[Event]]) -> Iterator[tuple[int, Totals]]:
        """All batches of one run: those with rows, and one without if the watermark moved in the last."""
        for rows in batches:
            yield self._batch(rows)
        if self._newest_ms > self._watermark_ms:
            yield self._batch([])

    def _batch(self, rows: list[Event]) -> tuple[int, Totals]:
        self._watermark_before_ms, self._watermark_ms = self._watermark_ms, self._newest_ms
        for row in rows:
            self._newest_ms = max(self._newest_ms, row["at_ms"])
            key = (row["customer"], month_end_ms(row["at_ms"]))
            if key[1] > self._watermark_before_ms and self._counts(row, key[1]):
                self.state[key] = self.state.get(key, 0) + row["amount"]
        sealed = {key: total for key, total in self.state.items() if key[1] <= self._watermark_ms}
        self.state = {key: total for key, total in self.state.items() if key not in sealed}
        self._close(self._watermark_ms)
        self._next_batch += 1
        return self._next_batch - 1, sealed

    def _counts(self, row: Event, end_ms: int) -> bool:
        """Whether a row that is not late counts in its period."""
        return True

    def _close(self, watermark_ms: int) -> None:
        """The periods up to the watermark are over."""


class UniqueModel(Model):
    """The same where each id counts once a period."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, int]] = set()

    def _counts(self, row: Event, end_ms: int) -> bool:
        if (row["id"], end_ms) in self.seen:
            return False
        self.seen.add((row["id"], end_ms))
        return True

    def _close(self, watermark_ms: int) -> None:
        self.seen = {key for key in self.seen if key[1] > watermark_ms}


def compared_runs(
    lab: Lab,
    feed: Feed,
    model: Model,
    query: Callable[[DataFrame], DataFrame],
    draw: Callable[[list[int]], list[Event]],
) -> Iterator[None]:
    """Four runs of three batches of rows near more and more months' ends, each with a crash, all as the model says."""
    ends_ms = [local_ms(2026, month) for month in (4, 5, 6)]
    for number in range(4):
        batches = [draw(ends_ms[: number + 1]) for _ in range(3)]
        for rows in batches:
            feed.add(*rows)
        expected = dict(model.run(batches))
        emitted = _run_with_a_crash(lab, query(feed.stream()), crash_in=min(expected) + number % 3)
        assert {batch: totals(rows) for batch, rows in emitted.items()} == expected
        assert totals_in_state(lab.state()) == model.state
        yield


def _run_with_a_crash(lab: Lab, query: DataFrame, crash_in: int) -> dict[int, list[Row]]:
    """Let one batch fail after its rows were computed, then restart. Returns what each batch emitted at last."""
    emitted: dict[int, list[Row]] = {}

    def sink(frame: DataFrame, batch: int) -> None:
        is_first_attempt = batch not in emitted
        emitted[batch] = frame.collect()
        if batch == crash_in and is_first_attempt:
            raise RuntimeError("crash")

    with pytest.raises(StreamingQueryException, match="crash"):
        lab.run_into(sink, query)
    lab.run_into(sink, query)
    return emitted
