"""Logs: what a node's owners wrote, a journal for each epoch, and how a successor closes one for good.

Epochs: who owns a node's log. The file `epoch` says it, and an owner that is not in it any more is fenced.

    epoch := "EPOCH TOKEN"      the epoch, from 1 on, and the token that its owner drew at random

The epoch grows with every takeover. An owner that goes on with the log of one that is surely gone (`NodeWriter`) keeps
the epoch and writes its own token. The file is replaced in one step and durably, so it is always one or the other.

The log of an epoch as its owner writes it: a journal whose end mark moves for the owner only.

Reaching the disk: its refusals as errors that say what to do.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import JournalAway, JournalCorrupt, JournalFenced
from stateside.core.storage import write_atomically
from stateside.journal import segment
from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd, write_again
from stateside.journal.writer import NODES, SEGMENT_BYTES_MAX, JournalWriter, recover

FILE_NAME = "epoch"


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner of a node: equal to no other one, not even of the same epoch."""

    epoch: int
    token: str

    @classmethod
    def of(cls, epoch: int) -> Owner:
        """A new owner for this epoch."""
        return cls(epoch, secrets.token_hex(8))

    @classmethod
    def read(cls, node: Path) -> Owner | None:
        """Who owns the node in this folder; None before the first owner."""
        path = node / FILE_NAME
        try:
            epoch, token = path.read_text().split()
            return cls(int(epoch), token)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise JournalCorrupt(
                "A node's epoch cannot be read",
                where=str(path),
                next_step="Restore the file; or write into it, with any second word, the number of the newest folder "
                "beside it, and then take the node over",
            ) from error

    def write(self, node: Path) -> None:
        """Be the owner, durably. Whoever was it before is fenced from now on."""
        write_atomically(node / FILE_NAME, f"{self.epoch} {self.token}\n".encode())


@dataclass(frozen=True, slots=True)
class Fence:
    """Stands between a write that is durable and its acknowledgement: only the owner passes."""

    node: Path
    owner: Owner

    def check(self) -> None:
        """JournalFenced if somebody else owns the node by now."""
        found = Owner.read(self.node)
        if found == self.owner:
            return
        now = "nobody" if found is None else f"the owner of epoch {found.epoch}"
        raise JournalFenced(
            f"This owner of epoch {self.owner.epoch} was paused, and {now} has the node now",
            where=str(self.node),
            next_step="Nothing was acknowledged, but the last append may have been stored. Repeat it with the same "
            "event ids where the node is written now; end this process",
        )


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


class FencedLog(JournalWriter):
    """A journal's writer that looks into `epoch` between the sync of a frame and its end mark: JournalFenced.

    Whatever moves the mark goes by there: an append, a new segment, and what recovery finds behind the mark.
    """

    def __init__(
        self, directory: Path, fence: Fence, *, clock: Clock, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self._fence = fence
        super().__init__(directory, clock=clock, segment_bytes_max=segment_bytes_max)

    @contextmanager
    def turn(self) -> Iterator[DurableEnd]:
        """A turn in which the caller looks, decides and then perhaps stores; tells where the log ends."""
        with self._turn():
            yield self._end

    def store(self, batch: pa.RecordBatch) -> None:
        """Store a batch that has its sequences already, in a turn."""
        self._store(batch)

    def sync_mark(self) -> None:
        """Have the end mark durable: it does not go back any more, not even by a loss of power."""
        with self._breaking("The end mark failed to sync"):
            os.fdatasync(self._mark)

    def _publish(self) -> None:
        """The frame is stored by now: who cannot look does not know whether it counts, and takes nothing more."""
        with self._breaking("The node's epoch cannot be read"):
            self._fence.check()
        super()._publish()

    def _open_mark(self) -> None:
        """Which makes the mark if there is none yet."""
        self._fence.check()
        super()._open_mark()


@contextmanager
def reaching(folder: Path) -> Iterator[None]:
    """JournalAway for what the operating system refuses in this folder."""
    try:
        yield
    except OSError as error:
        raise JournalAway(
            f"The journal cannot be reached: {error.strerror}",
            where=str(error.filename or folder),
            next_step="Nothing was acknowledged. Make room or mend the disk, then try again",
        ) from error
