"""The floor: the minimum freshness that a reader asks for. An answer below the floor is refused.

A floor may be a receipt of a node's log, where several nodes write the journal. A batch's position covers each node's
log up to the first event that is missing from the batch, so events after an unmerged event are not reported as covered,
even if the batch has them. If a stamp does not cover such a receipt for a while, a background thread looks up the place
of the receipt's events in the merged stream; a lookup reads a segment or more.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateside.core.clock import age_text
from stateside.core.errors import PositionAhead, StatesideError
from stateside.core.positions import Position
from stateside.journal import open_journal
from stateside.journal.backends.nodes import MergedJournal
from stateside.journal.backends.nodes.receipts import Wanted
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.stamp import Stamp

WAIT_MS_DEFAULT = 5_000
WAIT_MS_MAX = 30_000
STUCK = ". Its replica does not move: the server's log has the cause"  # not in the answer: the cause may name paths
LOOK_S = 0.1  # delay before the first lookup of an uncovered receipt, and between lookups

log = logging.getLogger(__name__)


class Sought:
    """A position asked for, partly in node logs. Thread-safe; one per request."""

    def __init__(self, folder: Path, position: Position, logs: frozenset[str]) -> None:
        self._folder = folder
        self._receipt = Position(tuple(part for part in position.parts if part[0] in logs))
        self._rest = Position(tuple(part for part in position.parts if part[0] not in logs))
        self._wanted: Wanted | None = None
        self._place: Position | None = None
        self._thread: threading.Thread | None = None
        self._look_at_s: float | None = None

    def covered_by(self, position: Position) -> bool:
        """Whether a position in the merged stream covers the whole receipt. Never waits: a later call may know more."""
        if not position.covers(self._rest):
            return False
        if self._place is None and not position.covers(self._receipt):
            self._look()
            return False
        return self._place is None or position.covers(self._place)

    def _look(self) -> None:
        """Start a lookup, at most one per `LOOK_S`."""
        now_s = time.monotonic()
        self._look_at_s = now_s + LOOK_S if self._look_at_s is None else self._look_at_s
        if now_s < self._look_at_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._look_at_s = now_s + LOOK_S
        self._thread = threading.Thread(target=self._search, name="receipt", daemon=True)
        self._thread.start()

    def _search(self) -> None:
        try:
            self._wanted = self._wanted or MergedJournal(self._folder).wanted(self._receipt)
            self._place = None if self._wanted is None else self._wanted.position()
        except (OSError, StatesideError) as error:
            log.warning("the place of %s in the merged stream is not known: %s", self._receipt, error)

    def __getstate__(self) -> dict[str, Any]:
        """The state without search results: another process searches for itself."""
        return self.__dict__ | {"_wanted": None, "_place": None, "_thread": None, "_look_at_s": None}


def sought(folder: Path, position: Position) -> Sought | None:
    """The search for a position that is partly in node logs; None without such parts, or in a folder without nodes.

    PositionAhead if a log or the stream ends before the position.
    """
    journal = open_journal(folder)
    if not isinstance(journal, MergedJournal):
        return None
    logs = journal.log_ends()
    ends = journal.end().as_dict() | logs
    for name, offset in position.parts:
        if name in ends and offset > ends[name]:
            raise PositionAhead(
                f"{name} ends at {ends[name]}, and {str(position)[:80]!r} was asked for: that is no receipt of it, or "
                "not of what is left of it",
                next_step="Give the receipt that appending here returned, or ask without min_position",
            )
    return Sought(folder, position, frozenset(logs)) if any(name in logs for name, _ in position.parts) else None


@dataclass(frozen=True, slots=True)
class Floor:
    """The least position, the greatest age, and how long the reader waits for both."""

    min_position: Position | None = None
    max_age_ms: int | None = None
    wait_ms: int = WAIT_MS_DEFAULT
    sought: Sought | None = field(default=None, compare=False, repr=False)  # if `min_position` is in node logs
    positions: PositionCodec = field(default=PLAIN, compare=False, repr=False)  # encodes positions for the reader

    @property
    def is_none(self) -> bool:
        """Whether any batch will do."""
        return not self.min_position and self.max_age_ms is None

    def missing(self, stamp: Stamp) -> str | None:
        """What the stamp lacks of the floor; None if nothing."""
        if self.min_position and not self._covers(stamp.position, self.min_position):
            stands, asked = (self.positions.encode(each) for each in (stamp.position, self.min_position))
            return f"it stands at position {stands}, {asked} was asked for"
        if self.max_age_ms is not None and stamp.age_ms > self.max_age_ms:
            return f"it is {age_text(stamp.age_ms)} old, and max_age_ms={self.max_age_ms} was asked for"
        return None

    def _covers(self, position: Position, wanted: Position) -> bool:
        return position.covers(wanted) or (self.sought is not None and self.sought.covered_by(position))


@dataclass(frozen=True, slots=True)
class AsOf:
    """The batch to read at: the newest, or a given one; with a fingerprint, one run of the batch."""

    batch: int | None = None
    fingerprint: str | None = None


NEWEST = AsOf()
