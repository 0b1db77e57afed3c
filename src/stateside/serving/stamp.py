"""The stamp: on every answer, what it is an answer of. An answer without a stamp is a bug.

    view            the view that was asked
    batch           the Spark batch that the replica stood at, all of it and nothing else
    position        up to where in the journal that batch has read: covers(receipt) tells whether your event is in it.
                    Where nodes write, it has the merged stream's partitions and, beside them, the nodes' logs
    watermark       event time up to which periods are closed
    committed       when Spark committed the batch
    age_ms          for how long the answer may be out of date: the time since it was last known that nothing newer
                    waited in the journal (basis `heartbeat`) or, without a heartbeat, since the commit (`commit`)
    age_basis       which of the two
    replica         the name of the replica that answered
    source          where rows were looked for: `live`, in a replica of the running state; `archive`, among those that
                    were sealed up to this batch; or `both`
    share           only of a replica that holds a share of the keys, like 1/4: the answer is that share's

In HTTP answers the stamp stands in the body, and its first three parts and its age in the headers `Stateside-View`,
`Stateside-Batch`, `Stateside-Position` and `Stateside-Age-Ms` as well.

One part is not shown: `edition`, which tells two states apart that have the same batch's number: it is of another run
(after a rollback), or the view's columns were declared anew.
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
    """See the module's text, which is the contract."""

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

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an answer's body."""
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
            **({} if self.share is None else {"share": self.share}),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Stamp:
        """What `as_dict` gave, as a client reads it; LookupError, TypeError, ValueError if it is something else."""
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
        )

    def headers(self) -> list[tuple[str, str]]:
        """As it stands in an answer's headers."""
        parts = (("view", self.view), ("batch", str(self.batch)), ("position", str(self.position)))
        return [(f"stateside-{name}", value) for name, value in (*parts, ("age-ms", str(self.age_ms)))]


@lru_cache(maxsize=1_024)  # of a batch that has many answers, and of periods that many rows have
def iso_time(time_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 text in UTC."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


@lru_cache(maxsize=1_024)  # of periods that many keys have
def parse_time(text: str) -> int:
    """The microseconds since 1970 of an ISO 8601 text; without a zone it is taken as UTC. ValueError if it is none."""
    moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
