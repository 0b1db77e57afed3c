"""The stamp: the view, batch, position and age of an answer. An answer without a stamp is a bug.

    view            the view that was read
    batch           the Spark batch of the replica: all of the batch and nothing later
    position        the journal position up to which the batch has read: covers(receipt) reports whether an event is
                    included. Where nodes write, the merged stream's partitions and, beside them, the nodes' logs
    watermark       event time up to which periods are closed
    committed       when Spark committed the batch
    age_ms          how long the answer may be out of date: the time since the last heartbeat at which the journal held
                    nothing newer (basis `heartbeat`) or, without a heartbeat, since the commit (`commit`)
    age_basis       `heartbeat` or `commit`
    replica         the name of the replica that answered
    source          where the rows come from: `live`, a replica of the running state; `archive`, the rows sealed up to
                    this batch; or `both`
    generation      which fold of the view the rows are from: 1, until a changed view was applied (`docs/change.md`)
    share           only from a replica that holds one shard of the keys, like 1/4: the answer covers that shard

In HTTP answers the stamp is in the body; its first three parts and its age are also in the headers `Stateside-View`,
`Stateside-Batch`, `Stateside-Position` and `Stateside-Age-Ms`, and so is a generation after the first one
(`Stateside-Generation`).

One part is not shown: `edition`, which distinguishes two states with the same batch number: after a rollback (another
run), or after a new declaration of the view's columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from stateside.core.positions import Position

Source = Literal["live", "archive", "both"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The module's docstring is the contract."""

    view: str
    batch: int
    position: Position
    watermark_us: int
    committed_us: int
    age_ms: int
    age_basis: Literal["heartbeat", "commit"]
    replica: str
    source: Source = "live"
    share: str | None = None
    edition: str = ""
    generation: int = 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "batch": self.batch,
            "position": str(self.position),
            "watermark": iso_time(self.watermark_us),
            "committed": iso_time(self.committed_us),
            "age_ms": self.age_ms,
            "age_basis": self.age_basis,
            "replica": self.replica,
            "source": self.source,
            "generation": self.generation,
            **({} if self.share is None else {"share": self.share}),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Stamp:
        """The stamp of an `as_dict` document, for clients; LookupError, TypeError or ValueError for anything else."""
        return cls(
            view=document["view"],
            batch=document["batch"],
            position=Position.parse(document["position"]),
            watermark_us=parse_time(document["watermark"]),
            committed_us=parse_time(document["committed"]),
            age_ms=document["age_ms"],
            age_basis=document["age_basis"],
            replica=document["replica"],
            source=document["source"],
            share=document.get("share"),
            generation=document.get("generation", 1),
        )

    def headers(self) -> list[tuple[str, str]]:
        parts = (("view", self.view), ("batch", str(self.batch)), ("position", str(self.position)))
        later = () if self.generation == 1 else (("generation", str(self.generation)),)
        return [(f"stateside-{name}", value) for name, value in (*parts, *later, ("age-ms", str(self.age_ms)))]


@lru_cache(maxsize=1_024)  # many answers share a batch's times, many rows share a period
def iso_time(time_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 text in UTC."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


@lru_cache(maxsize=1_024)  # many keys share a period
def parse_time(text: str) -> int:
    """Microseconds since 1970 of an ISO 8601 text; UTC if the text has no zone. ValueError for any other text."""
    moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
