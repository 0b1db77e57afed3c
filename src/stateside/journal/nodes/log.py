"""Logs: what a node's owners wrote, a journal for each epoch, and how a successor closes one for good."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from stateside.errors import JournalAway
from stateside.journal import segment
from stateside.journal.nodes.epoch import Owner
from stateside.journal.reader import Journal
from stateside.journal.recovery import NODES as NODES
from stateside.journal.recovery import recover
from stateside.journal.segment import DurableEnd
from stateside.journal.writing import write_again
from stateside.storage import write_atomically

_SEALED = "sealed"


class NodeLog(Journal):
    """The log of one epoch, read only. Where it is sealed it ends there, whatever a fenced owner still wrote."""

    def durable_end(self) -> DurableEnd:
        """The seal if there is one, else the end mark: which never goes beyond a seal, as `seal` argues."""
        return DurableEnd.read(self.directory / _SEALED) or super().durable_end()


def log_name(node: str, epoch: int) -> str:
    """What a log is called in positions: `NAME.E`."""
    return f"{node}.{epoch}"


def node_logs(folder: Path) -> dict[str, NodeLog]:
    """All logs of all nodes, by name: nodes in alphabetical order, epochs as they followed each other."""
    return {
        log_name(node.name, epoch): NodeLog(node / str(epoch))
        for node in sorted((folder / NODES).glob("*/"))
        for epoch in epochs(node)
    }


def complete_logs(folder: Path, nodes: Iterable[str]) -> dict[str, NodeLog]:
    """As `node_logs`; JournalAway if a log is missing that these nodes, or any others there, must have.

    For whoever gives sequences: a log that is overlooked would have its sequences given a second time.
    """
    found = node_logs(folder)
    for name in sorted({*nodes, *(path.name for path in (folder / NODES).glob("*/"))}):
        owner = Owner.read(folder / NODES / name)
        for epoch in range(1, 2 if owner is None else owner.epoch + 1):
            if log_name(name, epoch) not in found and (owner is not None or name in nodes):
                raise JournalAway(
                    f"The log {log_name(name, epoch)} is missing",
                    where=str(folder / NODES / name / str(epoch)),
                    next_step="Nothing was stored. Bring it back: its sequences must not be given a second time",
                )
    return found


def epochs(node: Path) -> list[int]:
    """The epochs of a node that have a log, ascending."""
    return sorted(int(path.name) for path in node.glob("*/") if path.name.isdecimal())


def is_sealed(directory: Path) -> bool:
    """Whether a log is closed for good."""
    return (directory / _SEALED / segment.END_NAME).exists()


def seal(directory: Path) -> DurableEnd:
    """Close the log of an earlier epoch for good, without its owner, who may be paused anywhere; returns its end.

    To be called when the next epoch is durable already, and by nobody else at the same time.

    1. The last segment is read up to where its whole frames end; a torn one is set aside (`recovery`).
    2. What lies behind the end mark is written again, as it is, and synced: its writer may not have come so far.
    3. That end is written down as the seal, durably.

    Why an acknowledged event lies before the seal: its owner found itself in `epoch` when its frame was durable. So the
    frame was whole before the epoch changed, and step 1, which comes after that, reads it.

    Why the end mark never goes beyond the seal: the owner looks into `epoch` before it moves the mark, too. If it finds
    itself there, the frame lies before the seal, as above; if not, it leaves the mark where it is. So who reads up to
    the mark reads nothing that the seal then leaves out, at whatever moment.

    A frame that was whole but not acknowledged may come before the seal or, if its owner still wrote on it, behind it.
    Its owner is fenced in both cases. What such an owner still writes or cuts off lies behind the seal.

    A crash before step 3 is durable leaves no seal, or one that is lost again. The next owner seals anew, at the same
    place or behind it: whole frames do not go away. So what somebody read before the first seal is before the second.
    """
    marked = DurableEnd.read(directory) or DurableEnd(0, 0, 0)
    _, end = recover(directory, uuid4())
    _write_again(directory, marked, end)
    write_atomically(directory / _SEALED / segment.END_NAME, end.pack())
    return end


def _write_again(directory: Path, marked: DurableEnd, end: DurableEnd) -> None:
    """Step 2."""
    handle = os.open(segment.segment_path(directory, end.segment_offset), os.O_RDWR)
    try:
        write_again(handle, marked, end)
        os.fdatasync(handle)
    finally:
        os.close(handle)
