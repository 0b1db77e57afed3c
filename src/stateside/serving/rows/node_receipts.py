"""Receipts of nodes: for a reader who waits for its own event where many write.

A batch's position says how far it has each node's log, up to the first event there that is not in it. So behind an
event that waits to be merged nothing is said to be covered, though it may be. Where a stamp does not cover a receipt
for a while, the place of its events in the merged stream is looked up instead: aside, as that reads a segment or more.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from stateside.core.errors import PositionAhead, StatesideError
from stateside.core.positions import Position
from stateside.journal.merge import MergedStream
from stateside.journal.merge.receipts import Wanted
from stateside.journal.nodes.log import node_logs
from stateside.journal.partitions import StoredStream, is_merged

LOOK_S = 0.1  # a receipt is looked up if it is not covered after so long, and so often

log = logging.getLogger(__name__)


class Sought:
    """A position that a reader asks for, some of it of nodes' logs. Any number of threads may ask, of one request."""

    def __init__(self, folder: Path, position: Position, logs: frozenset[str]) -> None:
        self._folder = folder
        self._receipt = Position(tuple(part for part in position.parts if part[0] in logs))
        self._rest = Position(tuple(part for part in position.parts if part[0] not in logs))
        self._wanted: Wanted | None = None
        self._place: Position | None = None
        self._thread: threading.Thread | None = None
        self._look_at_s: float | None = None

    def covered_by(self, position: Position) -> bool:
        """Whether all of it lies before a position in the merged stream. Does not wait: asked again it may know."""
        if not position.covers(self._rest):
            return False
        if self._place is None and not position.covers(self._receipt):
            self._look()
            return False
        return self._place is None or position.covers(self._place)

    def _look(self) -> None:
        """Look it up, unless that was done just now."""
        now_s = time.monotonic()
        self._look_at_s = now_s + LOOK_S if self._look_at_s is None else self._look_at_s
        if now_s < self._look_at_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._look_at_s = now_s + LOOK_S
        self._thread = threading.Thread(target=self._search, name="receipt", daemon=True)
        self._thread.start()

    def _search(self) -> None:
        try:
            self._wanted = self._wanted or MergedStream(self._folder).wanted(self._receipt)
            self._place = None if self._wanted is None else self._wanted.position()
        except (OSError, StatesideError) as error:
            log.warning("the place of %s in the merged stream is not known: %s", self._receipt, error)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was found: another process looks for itself."""
        return self.__dict__ | {"_wanted": None, "_place": None, "_thread": None, "_look_at_s": None}


def sought(folder: Path, position: Position) -> Sought | None:
    """What is asked for, if some of it is of nodes' logs. PositionAhead if one of them, or the stream, ends before it.

    Of a folder without nodes nothing is said.
    """
    if not is_merged(folder):
        return None
    logs = {name: found.durable_end().offset for name, found in node_logs(folder).items()}
    ends = StoredStream.at(folder).end().as_dict() | logs
    for name, offset in position.parts:
        if name in ends and offset > ends[name]:
            raise PositionAhead(
                f"{name} ends at {ends[name]}, and {str(position)[:80]!r} was asked for: that is no receipt of it, or "
                "not of what is left of it",
                next_step="Give the receipt that appending here returned, or ask without min_position",
            )
    return Sought(folder, position, frozenset(logs)) if any(name in logs for name, _ in position.parts) else None
