"""The contract of a sink.

Spark runs a batch again if it crashed before `commits/N` was written, and hands the sink the same rows under the same
number. A sink therefore stores rows and (query, batch) in one atomic step, or in steps that can be repeated.

Guarantees: what holds when a batch comes a second time.

    exactly-once    the sink as it is: it recognises a batch that it has stored
    at-least-once   every attempt has a name of its own, so nothing is recognised: a repeated batch is stored twice
    at-most-once    a batch is noted as begun before the sink is called, and never given to it again: a crash loses it

The two weaker ones are negative controls (a test that cannot find doubles or losses proves nothing) and for those who
want them: at-least-once for an endpoint that remembers no keys, at-most-once where a repeat is worse than a gap.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import write_atomically

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


log = logging.getLogger(__name__)


def with_guarantee(sink: Sink, guarantee: Guarantee, places: ViewLayout) -> Sink:
    """The sink, weakened to what was asked for; `places` are those of the view whose rows it gets."""
    match guarantee:
        case "exactly-once":
            return sink
        case "at-least-once":
            return AtLeastOnce(sink)
        case "at-most-once":
            return AtMostOnce(sink, places.begun)


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """Gives the sink every attempt as a batch that it has never seen: nothing is lost, what is repeated is doubled.

    A sink that knows rows by a key of their own (insert-if-absent) still stores each of them once.
    """

    sink: Sink

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows, whether they are there already or not."""
        self.sink.write(rows, replace(batch, query=f"{batch.query}~{secrets.token_hex(8)}"))


@dataclass(frozen=True, slots=True)
class AtMostOnce:
    """Gives the sink every batch once, and never again, whatever became of it: nothing is doubled.

    1. A batch that was noted before is skipped, and the log says so.
    2. The batch is noted as begun, durably.
    3. The sink is called. A crash in it, or an error (SinkAway too), loses what it had not stored yet.
    """

    sink: Sink
    note: Path

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows, unless this batch or a later one of the query was begun before."""
        if self._begun(batch):
            log.warning("batch %d of %s was begun before: at-most-once skips it", batch.batch, batch.query)
            return
        write_atomically(self.note, json.dumps({"query": batch.query, "batch": batch.batch}).encode())
        self.sink.write(rows, batch)

    def _begun(self, batch: BatchId) -> bool:
        try:
            last = json.loads(self.note.read_bytes())
        except FileNotFoundError:
            return False
        return bool(last["query"] == batch.query and last["batch"] >= batch.batch)
