"""The gate: which documents and dead letters count in an answer. It goes by the answer's stamp, by no batch's number.

With P the position and W the watermark of the stamp:

- An invoice counts if its period ends at W or earlier.
- A note, or an invoice made by late events, counts if besides `sealed_position <= P`: its last event stands before P.
- A dead letter counts if its offset is below P.

Why every event then counts once. The live rows at (P, W) are the events before P whose periods end after W: Spark
evicts a row once W has come to its period's end, and drops none before. So documents must have the events before P
whose periods end up to W, and no others. For a query that was never begun anew, batch N at (P_N, W_N) is right exactly:

- Invoices of batch M are of periods that end after W_{M-1} and up to W_M, which is also what `M <= N` says: for M <= N
  the period ends at or before W_M <= W_N, for M > N after W_{M-1} >= W_N. A batch without data has the position of the
  one before and another watermark; so this decides by the watermark alone.
- Late events of batch M stand in [P_{M-1}, P_M), and their periods end up to W_{M-1}. For M <= N both conditions hold;
  for M > N the last one stands at or behind P_{M-1} >= P_N, so that the second does not.
- The sink stores documents before Spark commits the batch, and the replica has it after that: who reads the documents
  after the live rows has all of batch N. Those of N+1, which may be there, do not count by the above.

A query that is begun anew, or brought back to an older checkpoint, finds documents of other batches. For the periods
that end at one moment, documents have the events of the journal without gaps: the invoice those up to its
`sealed_position`, each late document some of those behind it (see `sealing.frontier`). So at (P, W) it is right too,
but for two windows, in which the query has closed a period and is inside of what one document has, which cannot be cut:

- The period's invoice was sealed at a position behind P. It counts as a whole: the answer is ahead by those events that
  stand between P and there. For this query they come late, so they are few; without the invoice all would be missing.
- P lies between two late events that one note has. The note does not count yet: the answer is behind by its first ones.

Each window ends where the query comes to the document's `sealed_position`, and no event ever counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.model import APPLICATION, VIEW
from stateside.billing.sealing.dead_letters import DEAD_LETTERS
from stateside.billing.sealing.documents import DOCUMENTS, INVOICE, TIME
from stateside.serving.sql.sealed import GatedTable
from stateside.serving.stamp import Stamp

ON_TIME = 0  # from this position on a document counts whose events came in time


@dataclass(frozen=True, slots=True)
class Gate:
    """Where an answer stands: at which offset of the journal, under which watermark."""

    position: int
    watermark_us: int

    @classmethod
    def of(cls, stamp: Stamp) -> Gate:
        """That of an answer with this stamp."""
        return cls(stamp.position.one(), stamp.watermark_us)

    def lets(self, period_end_us: int, counts_from: int) -> bool:
        """Whether a document counts; `counts_from` is its `sealed_position` if it is of late events, else `ON_TIME`."""
        return period_end_us <= self.watermark_us and counts_from <= self.position


def sql_tables() -> list[GatedTable]:
    """Billing's tables in SQL, with the same gate."""
    return [
        GatedTable(APPLICATION, VIEW, DOCUMENTS.name, _documents, ("sealed_position",)),
        GatedTable(APPLICATION, VIEW, DEAD_LETTERS.name, _dead_letters, ("offset",)),
    ]


def _documents(stamp: Stamp) -> pc.Expression:
    gate = Gate.of(stamp)
    closed = pc.field("period_end") <= pa.scalar(gate.watermark_us, TIME)
    on_time = (pc.field("kind") == INVOICE) & ~pc.field("late")
    return closed & (on_time | (pc.field("sealed_position") <= gate.position))


def _dead_letters(stamp: Stamp) -> pc.Expression:
    return pc.field("offset") < Gate.of(stamp).position
