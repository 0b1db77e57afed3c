"""Server-sent events, as watchers are told them.

    event: snapshot     {"stamp", "rows": […], "last"}                               in pages; the last one has the id
    event: changes      {"stamp", "after", "changed": […], "removed": […], "last"}   the same
    event: pulse        {"stamp", "job"}          nothing changed, and how old it is now; every second, if asked for
    event: reset        {"reason", "detail"}      what you have does not count any more: a snapshot follows
    event: cut          {"reason", "detail", …}   you are told no more, and why; go on with the last id
    event: end          {"reason", "detail"}      the server stops, or the view is another one: connect again
    : text              a comment, so that the connection stays alive

An id is `BATCH-FINGERPRINT8`: with it, as `Last-Event-ID`, a watcher goes on where it was. Only the event that
completes a batch has one, so that nobody goes on in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from stateside.core.errors import HistoryGone, RequestInvalid
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.store import Snapshot
from stateside.serving.stamp import Stamp

KIND = "text/event-stream"
RETRY_MS = 1_000  # how long a client waits before it connects again

_ID = re.compile(r"([0-9]{1,18})-([!-~]{0,8})")

Json = bytes  # a value that is JSON already


@dataclass(frozen=True, slots=True)
class EventId:
    """A batch by its number, and the first characters of its fingerprint: of this very run of it."""

    batch: int
    fingerprint: str

    @classmethod
    def of(cls, batch: AppliedBatch) -> EventId:
        """The id of what brings a watcher to this batch."""
        return cls(batch.batch, batch.fingerprint[:8].replace(" ", "_"))

    @classmethod
    def parse(cls, text: str) -> EventId:
        """The id that `str` made this text of; RequestInvalid if it is none."""
        found = _ID.fullmatch(text)
        if found is None:
            raise RequestInvalid(f"{text[:80]!r} is no event's id", next_step="Give one as an event had it, or none")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.batch}-{self.fingerprint}"

    def find(self, snapshot: Snapshot) -> AppliedBatch:
        """The batch, if the snapshot's history has it.

        HistoryGone if it does not, or has another run of it; NotFreshEnough if the replica does not have it yet.
        """
        found = snapshot.as_of(self.batch).batch()
        if found is None or EventId.of(found) != self:
            raise HistoryGone(
                f"Batch {self.batch} is not the one that it was: the checkpoint was replaced, or rolled back",
                next_step="Begin anew at the newest batch",
            )
        return found


def event(kind: str, document: Mapping[str, Any], id_: EventId | None = None) -> bytes:
    """One event. JSON has no line ends of its own, so it is one line of data."""
    head = f"event: {kind}\n" if id_ is None else f"event: {kind}\nid: {id_}\n"
    return b"".join((head.encode(), b"data: ", orjson.dumps(document), b"\n\n"))


def snapshot_event(stamp: Stamp, rows: Sequence[Json], last: EventId | None) -> bytes:
    """A page of the rows that a watcher begins with; the last one has the id."""
    return event("snapshot", {"stamp": _stamped(stamp), "rows": listed(rows), "last": last is not None}, last)


def changes_event(
    stamp: Stamp, after: int, changed: Sequence[Json], removed: Sequence[Json], last: EventId | None
) -> bytes:
    """What changed after a batch up to the stamp's, or a page of it; the last one has the id."""
    document = {"stamp": _stamped(stamp), "after": after, "changed": listed(changed), "removed": listed(removed)}
    return event("changes", {**document, "last": last is not None}, last)


def pulse_event(stamp: Stamp, job: Mapping[str, Any]) -> bytes:
    """How old what a watcher has is by now, and how its job is."""
    return event("pulse", {"stamp": stamp.as_dict(), "job": job})


@lru_cache(maxsize=128)
def _stamped(stamp: Stamp) -> orjson.Fragment:
    """The stamp as JSON: a thousand watchers are told of the same batch."""
    return orjson.Fragment(orjson.dumps(stamp.as_dict()))


def listed(values: Sequence[Json]) -> orjson.Fragment:
    """These values as a list that stands in a document."""
    return orjson.Fragment(b"[" + b",".join(values) + b"]")


def told(kind: str, reason: str, detail: str) -> bytes:
    """An event that says why there is something else to come than changes."""
    return event(kind, {"reason": reason, "detail": detail})


def comment(text: str) -> bytes:
    """What clients pass over, but what keeps the connection alive."""
    return f": {text}\n\n".encode()


OPENING = f"retry: {RETRY_MS}\n\n".encode()
