"""Epochs: who owns a node's log. The file `epoch` says it, and an owner that is not in it any more is fenced.

    epoch := "EPOCH TOKEN"      the epoch, from 1 on, and the token that its owner drew at random

The epoch grows with every takeover. An owner that goes on with the log of one that is surely gone (`NodeWriter`) keeps
the epoch and writes its own token. The file is replaced in one step and durably, so it is always one or the other.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import JournalCorrupt, JournalFenced
from stateside.storage import write_atomically

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
