"""Delivery: sends every document to an HTTP endpoint, in the order of the numbers, across crashes and outages.

How a document is delivered exactly once:

1. The mark, a durable file, has the last delivered number of each series.
2. The documents after the mark are read from the archive, invoices first, then notes. Documents never change.
3. One request each: the document as JSON, with `Idempotency-Key`: its number. The next one is sent only after a 2xx.
4. The endpoint stores the document together with its number, and answers 2xx; a document stored before is ignored.
5. The mark is moved, after a few documents or a moment. A crash before that sends these again, with the same numbers.

While the endpoint is away (no connection, a timeout, 408, 429, 5xx) delivery is held, retries with growing pauses, and
resumes at the same document. Anything else is a refusal: delivery ends there, because no document may overtake another.

Delivery only reads the archive: Spark's batches and delivery never wait for each other.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from stateside.billing.answers.document_store import Document, DocumentStore
from stateside.billing.model import VIEW
from stateside.core import JsonFile, Layout, try_lock
from stateside.core.errors import PipelineRunning, SinkAway, SinkRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK_EVERY: Final = 100  # documents
MARK_EVERY_S: Final = 1.0
POLL_S: Final = 1.0  # how often the archive is polled for new documents
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 60.0

log = logging.getLogger(__name__)

Wait = Callable[[float], bool]  # waits so many seconds; True if asked to end meanwhile


class DocumentEndpoint(Protocol):
    """The endpoint: accepts a body under a key, or raises SinkAway or SinkRefused."""

    def post(self, body: bytes, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """The mark: the last delivered sequences of invoices and notes."""

    invoices: int = 0
    notes: int = 0

    @classmethod
    def load(cls, path: Path) -> Delivered:
        """The mark in a file; zero without a file. StateError for an unreadable file."""
        return _MARK.read(path) or cls()

    def with_document(self, document: Document) -> Delivered:
        return replace(self, **{"invoices" if document.is_invoice else "notes": document.sequence})

    def save(self, path: Path) -> None:
        """Store the mark durably."""
        _MARK.write(path, self)


_MARK = JsonFile(
    "The mark of delivered documents",
    lambda document: Delivered(**document),
    next_step="Bring it back, or delete it: then all documents are sent again, under the same keys",
)


def mark_of(layout: Layout, name: str) -> Path:
    """The mark of the delivery with this name."""
    return layout.root / "deliveries" / f"{name}.json"


def take_over(layout: Layout, name: str) -> None:
    """Make the mark from that of an earlier Stateside, which lies in the folder of some generation of the view."""
    if not mark_of(layout, name).exists():
        places = [each.mark(f"delivery-{name}") for each in layout.folders() if each.name == VIEW]
        if found := [mark for mark in map(_MARK.read, places) if mark is not None]:
            max(found, key=lambda mark: (mark.invoices, mark.notes)).save(mark_of(layout, name))


class DocumentDelivery:
    """Delivers a folder's documents, by the steps above."""

    def __init__(
        self,
        issued: DocumentStore,
        endpoint: DocumentEndpoint,
        mark: Path,
        *,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`told` receives a text for people when delivery is held and when delivery resumes."""
        self._issued, self._endpoint, self._mark, self._told = issued, endpoint, mark, told
        self.delivered = Delivered.load(mark)
        self.count = 0
        self._saved, self._saved_s = self.delivered, time.monotonic()

    def run(self, wait: Wait) -> None:
        """Deliver present and future documents, until `wait` returns True. SinkRefused also ends the run."""
        pause_s = PAUSE_S_MIN
        while True:
            before = self.count
            try:
                self.step()
                if pause_s > PAUSE_S_MIN:
                    self._told("The endpoint is back: delivery goes on.")
                pause_s, next_s = PAUSE_S_MIN, POLL_S
            except SinkAway as error:
                pause_s = PAUSE_S_MIN if self.count > before else pause_s
                self._told(f"{error.what}: delivery is held, and tried again in {pause_s:.0f} s.")
                next_s, pause_s = pause_s, min(2 * pause_s, PAUSE_S_MAX)
            if wait(next_s):
                return

    def step(self) -> int:
        """Deliver all present documents; returns their number. SinkAway or SinkRefused at the first failure."""
        before = self.count
        mark = self.delivered
        try:
            for document in self._issued.after(mark.invoices, mark.notes):
                self._send(document)
        finally:
            self._save()
        return self.count - before

    def _send(self, document: Document) -> None:
        try:
            self._endpoint.post(body_of(document), document.number)
        except SinkRefused as error:
            raise SinkRefused(
                f"The endpoint refuses {document.number}: {error.what}",
                where=error.where,
                next_step="Mend the endpoint, then deliver again: it goes on with this document",
            ) from error
        self.delivered = self.delivered.with_document(document)
        self.count += 1
        if self.count % MARK_EVERY == 0 or time.monotonic() - self._saved_s > MARK_EVERY_S:
            self._save()

    def _save(self) -> None:
        if self.delivered != self._saved:
            self.delivered.save(self._mark)
            self._saved, self._saved_s = self.delivered, time.monotonic()


def body_of(document: Document) -> bytes:
    """The request body: the document as in the API, without a stamp. The same bytes each time."""
    content: Mapping[str, object] = document.as_dict()
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


@contextmanager
def only_one(mark: Path) -> Iterator[None]:
    """Hold the lock of this mark's only delivery; PipelineRunning if there is another."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    handle = try_lock(mark.with_suffix(".lock"))
    if handle is None:
        raise PipelineRunning(
            "Another delivery of the same name runs on this folder",
            where=str(mark),
            next_step="Stop that one first, or give this one another --name if it is for another endpoint",
        )
    try:
        yield
    finally:
        os.close(handle)
