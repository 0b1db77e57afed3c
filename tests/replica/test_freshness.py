"""Which heartbeats make a batch fresh, and which must not."""

from __future__ import annotations

from stateside.core.positions import Position
from stateside.replica.store import AppliedBatch
from stateside.replica.tail import covered, follows
from stateside.views.heartbeat import Heartbeat


def applied(batch: int, position: Position) -> AppliedBatch:
    return AppliedBatch("query", batch, position, 0, 0, "fingerprint")


def test_a_replica_that_is_behind_is_not_fresh_whatever_the_position_says() -> None:
    """Of a source whose offsets are not understood, every batch has the same position: the start."""
    idle = Heartbeat(5, Position.start(), "idle", batch=7)
    assert not covered(applied(6, Position.start()), idle)
    assert covered(applied(7, Position.start()), idle)


def test_a_heartbeat_of_a_job_that_was_replaced_does_not_stand_in_the_way() -> None:
    old = Heartbeat(5, Position.of({"0": 900}), "stopped", batch=40)
    assert not follows(Heartbeat(9, Position.of({"0": 3}), "idle", batch=0), old)
    assert not follows(Heartbeat(9, Position.of({"0": 900}), "running"), old)
    assert follows(Heartbeat(9, Position.of({"0": 901}), "running", batch=40), old)
