"""The contract of a sink.

Spark runs a batch again if it crashed before `commits/N` was written, and hands the sink the same rows under the same
number. A sink therefore stores rows and (query, batch) in one atomic step, or in steps that can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from stateside.layout import Layout

Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
OnStep = Callable[[int], None]  # told each numbered step of a protocol as it is reached: tests crash there


@dataclass(frozen=True, slots=True)
class BatchId:
    """Which batch of which query: the name under which a sink remembers what it has written."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is opened with, once a run, before its query starts."""

    layout: Layout
    view: str
    schema: pa.Schema  # of the rows that it will be given


class Sink(Protocol):
    """Takes a query's rows, batch by batch."""

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows, once: called again with a batch that is already stored, it changes nothing.

        Called before Spark commits the batch, so a crash between the two repeats the call with the same rows, which may
        then stand in another order. Batches of a query come one after the other, never two at a time. SinkAway if the
        other side cannot be reached: the batch is held, and the call repeated until it succeeds.
        """


SinkFactory = Callable[[SinkContext], Sink]


def ignore_step(step: int) -> None:
    """What a sink does with its steps outside of tests."""
