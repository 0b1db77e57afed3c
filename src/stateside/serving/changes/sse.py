"""The server-sent events of a change stream.

    event: snapshot     {"stamp", "rows": […], "last"}                               in pages; the last one has the id
    event: changes      {"stamp", "after", "changed": […], "removed": […], "last"}   the same
    event: pulse        {"stamp", "job"}          no change; the present age of the data, every second, on request
    event: reset        {"reason", "detail"}      the rows received so far are void: a snapshot follows
    event: cut          {"reason", "detail", …}   the stream ends, and why; resume with the last id
    event: end          {"reason", "detail"}      the server stops, or the view was replaced: connect again
    : text              a comment, which keeps the connection alive

An id is `BATCH-FINGERPRINT8`; sent as `Last-Event-ID`, the stream resumes after the event with this id. Only the event
that completes a batch has an id, so that no stream resumes in the middle of a batch.
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

EVENTS = "text/event-stream"
RETRY_MS = 1_000  # how long a client waits before reconnecting

_ID = re.compile(r"([0-9]{1,18})-([!-~]{0,8})")

Json = bytes  # a value already encoded as JSON


@dataclass(frozen=True, slots=True)
class EventId:
    """A batch number and the first 8 characters of the batch's fingerprint, which identifies this run of the batch."""

    batch: int
    fingerprint: str

    @classmethod
    def of(cls, batch: AppliedBatch) -> EventId:
        """The id of the event that completes this batch."""
        return cls(batch.batch, batch.fingerprint[:8].replace(" ", "_"))

    @classmethod
    def parse(cls, text: str) -> EventId:
        """The inverse of `str`; RequestInvalid for any other text."""
        found = _ID.fullmatch(text)
        if found is None:
            raise RequestInvalid(f"{text[:80]!r} is no event's id", next_step="Give one as an event had it, or none")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.batch}-{self.fingerprint}"

    def find(self, snapshot: Snapshot) -> AppliedBatch:
        """The batch, if the snapshot's history has the batch.

        HistoryGone if the batch is gone, or is another run's; NotFreshEnough if the replica does not have the batch
        yet.
        """
        found = snapshot.as_of(self.batch).batch()
        if found is None or EventId.of(found) != self:
            raise HistoryGone(
                f"Batch {self.batch} is not the one that it was: the checkpoint was replaced, or rolled back",
                next_step="Begin again at the newest batch",
            )
        return found


def event(kind: str, document: Mapping[str, Any] | orjson.Fragment, id_: EventId | None = None) -> bytes:
    """One event. JSON contains no line ends, so the data is one line."""
    head = f"event: {kind}\n" if id_ is None else f"event: {kind}\nid: {id_}\n"
    return b"".join((head.encode(), b"data: ", orjson.dumps(document), b"\n\n"))


def snapshot_event(stamp: Stamp, rows: Sequence[Json], last: EventId | None) -> bytes:
    """A page of the initial rows; the last page has the id."""
    return event("snapshot", {"stamp": _stamped(stamp), "rows": listed(rows), "last": last is not None}, last)


def changes_event(
    stamp: Stamp, after: int, changed: Sequence[Json], removed: Sequence[Json], last: EventId | None
) -> bytes:
    """The changes after a batch up to the stamp's, or a page of them; the last page has the id."""
    document = {"stamp": _stamped(stamp), "after": after, "changed": listed(changed), "removed": listed(removed)}
    return event("changes", {**document, "last": last is not None}, last)


def pulse_event(stamp: Stamp, job: Mapping[str, Any]) -> bytes:
    """The present age of the subscriber's data, and the state of the job."""
    return event("pulse", {"stamp": stamp.as_dict(), "job": job})


@lru_cache(maxsize=128)
def _stamped(stamp: Stamp) -> orjson.Fragment:
    """The stamp as JSON, cached: a thousand watchers get the same batch."""
    return orjson.Fragment(orjson.dumps(stamp.as_dict()))


def listed(values: Sequence[Json]) -> orjson.Fragment:
    """These JSON values as a list, for embedding in a document."""
    return orjson.Fragment(b"[" + b",".join(values) + b"]")


def told(kind: str, reason: str, detail: str) -> bytes:
    """An event with a reason, in place of changes."""
    return event(kind, {"reason": reason, "detail": detail})


def comment(text: str) -> bytes:
    """A comment, which clients ignore, and which keeps the connection alive."""
    return f": {text}\n\n".encode()


NO_ID = b"id:\n"  # before an event: the client connects again without an id, for no batch of the stream is known then
OPENING = f"retry: {RETRY_MS}\n\n".encode()
