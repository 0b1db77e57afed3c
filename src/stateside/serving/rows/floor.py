"""The floor: the minimum freshness that a reader asks for. An answer below the floor is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from stateside.core.clock import age_text
from stateside.core.positions import Position
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.rows.node_receipts import Sought
from stateside.serving.stamp import Stamp

WAIT_MS_DEFAULT = 5_000
WAIT_MS_MAX = 30_000
STUCK = ". Its replica does not move: the server's log has the cause"  # not in the answer: the cause may name paths


@dataclass(frozen=True, slots=True)
class Floor:
    """The least position, the greatest age, and how long the reader waits for both."""

    min_position: Position | None = None
    max_age_ms: int | None = None
    wait_ms: int = WAIT_MS_DEFAULT
    sought: Sought | None = field(default=None, compare=False, repr=False)  # if `min_position` is in node logs
    positions: PositionCodec = field(default=PLAIN, compare=False, repr=False)  # encodes positions for the reader

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
