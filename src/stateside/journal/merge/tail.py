"""The tail: events that are durable in a node's log and not in the merged stream yet.

For who must not wait for the merger: an entity that reads what it wrote just now. What the stream's last frames say is
done lies before the tail of each log; behind it everything is read, and what the stream has already is there twice.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.nodes.log import node_logs
from stateside.positions import Position


def tail(folder: Path, done: Position, entity: str, first: int, last: int) -> list[Event]:
    """Of the entity's events with the sequences from one to another, both included, those that follow without a gap.

    `done`: up to where all of the logs is in the stream. Memory: these events, and one append.
    """
    found: dict[int, Event] = {}
    for name, log in node_logs(folder).items():
        for _, batch in log.batches(done[name], log.durable_end().offset):
            wanted = batch.filter(pc.equal(batch.column("entity"), entity))
            found.update((event.sequence, event) for event in decode(wanted) if event.sequence is not None)
    following = []
    for sequence in range(first, last + 1):
        if sequence not in found:
            break
        following.append(found[sequence])
    return following
