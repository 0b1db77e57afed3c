"""The contract of a sink, and the delivery guarantees.

Spark repeats a batch that crashed before `commits/N` was written, and hands the sink the same rows under the same
number. A sink therefore stores rows and (query, batch) in one atomic step, or in repeatable steps.

Guarantees for a repeated batch:

    exactly-once    the sink unchanged: it recognises a stored batch
    at-least-once   every attempt has its own name, so nothing is recognised: a repeated batch is stored twice
    at-most-once    a batch is noted as begun before the sink is called, and never passed again: a crash loses it

The two weaker guarantees are negative controls (a test that cannot find doubles or losses proves nothing), and options
for users: at-least-once for an endpoint that remembers no keys, at-most-once where a repeat is worse than a gap.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import pyarrow as pa

from stateside.core.json_file import JsonFile
from stateside.core.layout import Layout, ViewLayout

Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
OnStep = Callable[[int], None]  # called at each numbered step of a protocol: tests crash there


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query: the key under which a sink remembers its writes."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The arguments for opening a sink, once per run, before its query starts."""

    layout: Layout
    view: str
    schema: pa.Schema  # of the rows to come

    @property
    def again(self) -> bool:
        """Whether a changed view is being folded again: the sink has rows of the generation before, as declared."""
        before = Layout(self.layout.root).view(self.view)
        return before != self.layout.view(self.view) and (before.checkpoint / "metadata").exists()


class Sink(Protocol):
    """Takes a query's rows, batch by batch."""

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows, once: a call with an already stored batch changes nothing.

        Called before Spark commits the batch, so a crash between the two repeats the call with the same rows, perhaps
        in another order. Batches of a query come one after the other, never two at a time. SinkAway if the destination
        cannot be reached: the batch is held, and the call repeated until it succeeds.
        """


SinkFactory = Callable[[SinkContext], Sink]
Opens = TypeVar("Opens", bound=Callable[..., Sink])
_KEYED, _INSIDE, _SWEEPS_LATE = "recognises_rows", "stays_inside", "sweeps_late"


def keyed(factory: Opens) -> Opens:
    """Declare that the factory's sinks recognise rows by their own identity, whichever query brings them.

    So a view with such a sink can be folded again: of a new query, which cuts the same events into other batches, the
    sink stores nothing that it has. The old query may still run meanwhile, and store rows in another process.
    """
    setattr(factory, _KEYED, True)
    return factory


def is_keyed(factory: SinkFactory) -> bool:
    """Whether the factory was declared as `keyed`."""
    return getattr(factory, _KEYED, False) is True


def inside(factory: Opens) -> Opens:
    """Declare that all that the factory's sinks write lies in the application's folder, and a fork's in the fork."""
    setattr(factory, _INSIDE, True)
    return factory


def is_inside(factory: SinkFactory) -> bool:
    """Whether the factory was declared as `inside`."""
    return getattr(factory, _INSIDE, False) is True


def sweeps_late(factory: Opens) -> Opens:
    """Declare that the factory's sinks find the late events of a batch themselves: none is lost, whatever `late` is."""
    setattr(factory, _SWEEPS_LATE, True)
    return factory


def is_sweeping_late(factory: SinkFactory | None) -> bool:
    """Whether the factory was declared as `sweeps_late`."""
    return getattr(factory, _SWEEPS_LATE, False) is True


def ignore_step(step: int) -> None:
    """The default step handler outside of tests."""


log = logging.getLogger(__name__)


def with_guarantee(sink: Sink, guarantee: Guarantee, places: ViewLayout) -> Sink:
    """The sink, weakened to the chosen guarantee; `places` is the layout of the sink's view."""
    match guarantee:
        case "exactly-once":
            return sink
        case "at-least-once":
            return AtLeastOnce(sink)
        case "at-most-once":
            return AtMostOnce(sink, places.begun)


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """Passes every attempt as a new batch: nothing is lost, repeated batches are doubled.

    A sink that identifies rows by their own key (insert-if-absent) still stores each row once.
    """

    sink: Sink

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.sink.write(rows, replace(batch, query=f"{batch.query}~{secrets.token_hex(8)}"))


_NOTE: JsonFile[BatchId] = JsonFile(
    "The last batch given to the sink",
    lambda document: BatchId(document["query"], document["batch"]),
    lambda batch: {"query": batch.query, "batch": batch.batch},
)


@dataclass(frozen=True, slots=True)
class AtMostOnce:
    """Passes every batch once, and never again, whatever its outcome: nothing is doubled.

    1. A batch that was noted before is skipped, with a warning in the log.
    2. The batch is noted as begun, durably.
    3. The sink is called. A crash in the sink, or an error (SinkAway too), loses the rows not stored yet.
    """

    sink: Sink
    note: Path

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows, unless this batch or a later one of the query was begun before."""
        if self._begun(batch):
            log.warning("batch %d of %s was begun before: at-most-once skips it", batch.batch, batch.query)
            return
        _NOTE.write(self.note, batch)
        self.sink.write(rows, batch)

    def _begun(self, batch: BatchId) -> bool:
        last = _NOTE.read(self.note)
        return last is not None and last.query == batch.query and last.batch >= batch.batch
