"""Guarantees: what holds when a batch comes a second time.

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
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from stateside.layout import ViewLayout
from stateside.pipeline.sinks.sink import BatchId, Guarantee, Sink
from stateside.storage import write_atomically

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
