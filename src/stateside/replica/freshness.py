"""Freshness: which heartbeat tells until when a replica's batch was up to date."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from stateside.checkpoint.heartbeat import Heartbeat
from stateside.replica.applied import AppliedBatch

HEARTBEATS_MAX = 10_000  # so many heartbeats may wait for a batch that covers them: about half an hour


class Freshness:
    """The heartbeats of one view, of which the newest ones wait for a batch that covers them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heartbeats: deque[Heartbeat] = deque(maxlen=HEARTBEATS_MAX)

    def hear(self) -> bool:
        """Look for the newest heartbeat; whether it was a new one."""
        heartbeat = Heartbeat.load(self._path)
        if heartbeat is None or heartbeat.source_end is None:
            return False
        last = self._heartbeats[-1] if self._heartbeats else None
        if last == heartbeat:
            return False
        if last is not None and not follows(heartbeat, last):
            self._heartbeats.clear()  # those of a job that was replaced: no batch may ever cover them
        self._heartbeats.append(heartbeat)
        return True

    def fresh_us(self, applied: AppliedBatch | None) -> int | None:
        """Until when the batch was up to date, as the newest heartbeat says whose source's end it covers."""
        found = None
        while applied and self._heartbeats and covered(applied, self._heartbeats[0]):
            found = self._heartbeats.popleft()
        if found is None:
            return None
        self._heartbeats.appendleft(found)
        return found.time_us if found.end_us is None else found.end_us

    def forget(self) -> None:
        """Begin anew: another query's heartbeats say nothing of this one."""
        self._heartbeats.clear()


def covered(applied: AppliedBatch, heartbeat: Heartbeat) -> bool:
    """Whether the batch has all that the source had at the heartbeat.

    The position alone does not say so: of a source whose offsets are not understood every batch has the same one.
    """
    if heartbeat.source_end is None or (heartbeat.batch is not None and applied.batch < heartbeat.batch):
        return False
    return applied.position.covers(heartbeat.source_end)


def follows(heartbeat: Heartbeat, last: Heartbeat) -> bool:
    """Whether the job went on from the last heartbeat to this one."""
    assert heartbeat.source_end is not None and last.source_end is not None, "others are not kept"
    went_on = last.batch is None or (heartbeat.batch is not None and heartbeat.batch >= last.batch)
    return went_on and heartbeat.source_end.covers(last.source_end)
