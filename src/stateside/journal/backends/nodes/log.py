"""Node logs: a journal for each epoch of a node, the lease of the node, and the seal of a closed log.

The file `epoch` is the claim of the node's lease (`core.lease`). An owner that is no longer in the file is fenced.

    epoch := "EPOCH TOKEN"      the epoch, from 1 on, and the random token of its owner

The epoch grows with every takeover. An owner that continues the log of a surely dead one (`NodeWriter`) keeps the epoch
and writes its own token.

`FencedLog` is the owner's writer of a log: it moves the end mark only while it owns the node. `reaching` turns errors
of the operating system into JournalAway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import JournalAway, JournalCorrupt, JournalFenced
from stateside.core.lease import Held, Lease, Owner
from stateside.core.storage import LocalObjects, write_atomically
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.file_writer import NODES, SEGMENT_BYTES_MAX, JournalWriter, recover
from stateside.journal.backends.files.segment import DurableEnd, write_again

FILE_NAME = "epoch"


def node_lease(node: Path) -> Lease[Owner]:
    """The lease of the node in this folder. Its owner calls `check` between a durable write and its acknowledgement."""

    def lost(own: Owner, found: Owner | None) -> JournalFenced | JournalAway:
        if found is None:
            return JournalAway(
                "The node's folder is gone",
                where=str(node),
                next_step="Nothing was acknowledged. Bring its disk back, then append again",
            )
        return JournalFenced(
            f"This owner of epoch {own.epoch} was paused, and the owner of epoch {found.epoch} has the node now",
            where=str(node),
            next_step="Nothing was acknowledged, but the last append may have been stored. Repeat it with the same "
            "event ids where the node is written now; end this process",
        )

    return Lease(LocalObjects(node), FILE_NAME, lambda own: f"{own.epoch} {own.token}\n".encode(), _owner, lost)


def _owner(content: bytes, where: str) -> Owner:
    try:
        epoch, token = content.decode().split()
        return Owner(int(epoch), token)
    except ValueError as error:
        raise JournalCorrupt(
            "A node's epoch cannot be read",
            where=where,
            next_step="Restore the file; or write into it, with any second word, the number of the newest folder "
            "beside it, and then take the node over",
        ) from error


_SEALED = "sealed"


class NodeLog(FileLog):
    """The log of one epoch, read only. A sealed log ends at the seal, regardless of later writes by a fenced owner."""

    def durable_end(self) -> DurableEnd:
        """The seal if there is one, else the end mark, which never goes beyond a seal (see `seal`)."""
        return DurableEnd.read(self.directory / _SEALED) or super().durable_end()


def log_name(node: str, epoch: int) -> str:
    """The name of a log in positions: `NAME.E`."""
    return f"{node}.{epoch}"


def node_logs(folder: Path) -> dict[str, NodeLog]:
    """All logs of all nodes, by name: nodes in alphabetical order, epochs ascending."""
    return {
        log_name(node.name, epoch): NodeLog(node / str(epoch))
        for node in sorted((folder / NODES).glob("*/"))
        for epoch in epochs(node)
    }


def complete_logs(folder: Path, nodes: Iterable[str]) -> dict[str, NodeLog]:
    """As `node_logs`; JournalAway if a log is missing that these nodes, or others in the folder, must have.

    For the assignment of sequences: an overlooked log would have its sequences assigned a second time.
    """
    found = node_logs(folder)
    for name in sorted({*nodes, *(path.name for path in (folder / NODES).glob("*/"))}):
        owner = node_lease(folder / NODES / name).newest()
        for epoch in range(1, 2 if owner is None else owner.epoch + 1):
            if log_name(name, epoch) not in found and (owner is not None or name in nodes):
                raise JournalAway(
                    f"The log {log_name(name, epoch)} is missing",
                    where=str(folder / NODES / name / str(epoch)),
                    next_step="Nothing was stored. Bring it back: its sequences must not be given a second time",
                )
    return found


def epochs(node: Path) -> list[int]:
    """The epochs of a node with a log, ascending."""
    return sorted(int(path.name) for path in node.glob("*/") if path.name.isdecimal())


def is_sealed(directory: Path) -> bool:
    """Whether a log is closed for good."""
    return (directory / _SEALED / segment.END_NAME).exists()


def seal(directory: Path) -> DurableEnd:
    """Close the log of an earlier epoch for good, without its owner, which may be paused anywhere; returns its end.

    Precondition: the next epoch is durable already, and no other process seals this log at the same time.

    1. Read the last segment up to the end of its whole frames; a torn frame is set aside (`recover`).
    2. Write the part beyond the end mark again, unchanged, and sync: its writer may not have synced it.
    3. Write this end as the seal, durably.

    Why an acknowledged event lies before the seal: its owner found itself in `epoch` when the event's frame was
    durable. So the frame was whole before the epoch changed, and step 1, which comes after the change, reads the frame.

    Why the end mark never goes beyond the seal: the owner also checks `epoch` before it moves the mark. If the owner
    finds itself there, the frame lies before the seal, as above; if not, the owner leaves the mark in place. So a
    reader up to the mark never reads an event beyond the seal, at any moment.

    A whole but unacknowledged frame may lie before the seal or, if its owner was still writing it, beyond. The owner is
    fenced in both cases, and all that a fenced owner still writes or cuts off lies beyond the seal.

    A crash before step 3 is durable leaves no seal, or a seal that is lost again. The next owner seals again, at the
    same offset or later: whole frames do not disappear. So events read before the first seal are before the second.
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


class FencedLog(JournalWriter):
    """A journal writer that checks `epoch` between the sync of a frame and the move of the end mark: JournalFenced.

    Every move of the mark passes this check: an append, a new segment, and frames that recovery finds beyond the mark.
    """

    def __init__(
        self, directory: Path, held: Held[Owner], *, clock: Clock, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self._held = held
        super().__init__(directory, clock=clock, segment_bytes_max=segment_bytes_max)

    @contextmanager
    def turn(self) -> Iterator[DurableEnd]:
        """A turn in which the caller looks, decides and perhaps stores; yields the log's end."""
        with self._turn():
            yield self._end

    def store(self, batch: pa.RecordBatch) -> None:
        """Store a batch with sequences, within a turn."""
        self._store_frame(batch)

    def sync_mark(self) -> None:
        """Sync the end mark, so that it does not move back even after a loss of power."""
        with self._breaking("The end mark failed to sync"):
            os.fdatasync(self._mark)

    def _publish(self) -> None:
        """Check the fence first.

        The frame is stored by now: if `epoch` is unreadable, the frame may or may not count, so the writer breaks.
        """
        with self._breaking("The node's epoch cannot be read"):
            self._held.check()
        super()._publish()

    def _open_mark(self) -> None:
        """Check the fence first, as opening creates a missing mark."""
        self._held.check()
        super()._open_mark()


@contextmanager
def reaching(folder: Path) -> Iterator[None]:
    """JournalAway for errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise JournalAway(
            f"The journal cannot be reached: {error.strerror}",
            where=str(error.filename or folder),
            next_step="Nothing was acknowledged. Make room or mend the disk, then try again",
        ) from error
