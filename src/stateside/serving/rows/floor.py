"""The floor: what a reader asks for at least. An answer that has less is not given."""

from __future__ import annotations

from dataclasses import dataclass, field

from stateside.core.clock import age_text
from stateside.core.positions import Position
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.rows.node_receipts import Sought
from stateside.serving.stamp import Stamp

WAIT_MS_DEFAULT = 5_000
WAIT_MS_MAX = 30_000
STUCK = ". Its replica does not move: the server's log has the cause"  # which may name paths: not for everybody


@dataclass(frozen=True, slots=True)
class Floor:
    """What the reader asks for at least: events up to a position, an age at most, and how long it would wait for it."""

    min_position: Position | None = None
    max_age_ms: int | None = None
    wait_ms: int = WAIT_MS_DEFAULT
    sought: Sought | None = field(default=None, compare=False, repr=False)  # of a `min_position` of nodes
    positions: PositionCodec = field(default=PLAIN, compare=False, repr=False)  # how who asks is shown them

    def missing(self, stamp: Stamp) -> str | None:
        """What the stamp lacks, if anything."""
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
    """At which batch to read: the newest one, or this one, and with a fingerprint this very run of it."""

    batch: int | None = None
    fingerprint: str | None = None


NEWEST = AsOf()
