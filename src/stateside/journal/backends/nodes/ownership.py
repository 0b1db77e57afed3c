"""Ownership of nodes and of entities: how a process owns a node, and how slots of entities move between nodes.

The functions for a node are steps 1 to 4 of opening, as numbered in `NodeWriter`. An entity belongs to a slot by its
hash, a slot to one node at a time. The folder `slots/` has the owners as *grants*, numbered from 1 on for each slot;
the newest one counts:

    slots/SLOT-NUMBER -> NAME       a dangling symbolic link: its target is the node that has the slot
    slots/SLOT-NUMBER -> -          the slot is free

Making a link is atomic, with its content, and fails if the number exists. A new grant's number is the successor of the
grant read by its maker. So of two makers with the same grant one fails, and no grant in between is overlooked. Grants
are never deleted.

How an entity moves from node A to node B while A is alive:

1. A takes no more appends for the slot, has none under way, and settles the remains of a failed append in its log.
2. A syncs its end mark. Otherwise a loss of power might hide A's last events from B.
3. A frees the slot by a grant. From here on A refuses its entities. A crash before: A still has the slot. After: the
   slot is free.
4. B grants the free slot to itself. A crash before: the slot is free. After: B has the slot once B is opened again.
5. B reads all logs, and continues with each entity's next sequence. All events acknowledged by A are there: they lie
   before A's end mark since before step 3.

Where A is dead or paused, a takeover of A comes first (`NodeWriter`), then steps 1 to 5.

Why a paused former owner cannot disturb slots: before each grant an owner reads the newest grant, then checks `epoch`,
and only then makes the next grant. A new owner writes `epoch` first, and then grants all of the node's slots to the
node again, before its first append. So a former owner's grant succeeds a grant older than the new owner's: either the
former owner's grant came first, and the new owner has read it; or its number is taken, and the link fails.
"""

from __future__ import annotations

import fcntl
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateside.core.errors import JournalLocked, SettingInvalid
from stateside.core.lease import Held, Owner, hold, holders, note_holders
from stateside.core.storage import sync_directory, try_lock
from stateside.journal.backends.files.segment import segment_offsets
from stateside.journal.backends.nodes.log import epochs, is_sealed, node_lease, seal
from stateside.journal.topic_note import check_none

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)


@contextmanager
def opening(node: Path, wait_s_max: float) -> Iterator[None]:
    """Step 1: exclude other processes that open this node."""
    node.mkdir(parents=True, exist_ok=True)
    handle = hold(
        node / "opening",
        lambda pids: JournalLocked(
            f"Process {pids} has been opening this node for {wait_s_max:g} s",
            where=str(node),
            next_step="Let that process go on if it is paused, or end it, then open the node again",
        ),
        wait_s=wait_s_max,
    )
    try:
        yield
    finally:
        os.close(handle)


def check_folder(folder: Path) -> None:
    """SettingInvalid for the folder of a journal with one log or topic for all writers, which cannot have nodes."""
    check_none(folder)
    if segment_offsets(folder):
        raise SettingInvalid(
            "This journal has one log, which its writers share by turns",
            where=str(folder),
            next_step="Append with JournalWriter, or give the nodes a folder of their own",
        )


def become_owner(node: Path, take_over: bool, shared: bool = False) -> tuple[Held[Owner], int, bool]:
    """Steps 2 and 3: returns the node's lease, the lock to hold while the owner lives, and whether it joined others.

    JournalLocked if there is a live owner and `take_over` is not set, or the live owner does not share the node.
    """
    lease = node_lease(node)
    found = lease.newest()
    owner = Owner.of(1 if found is None else found.epoch + take_over)
    (node / str(owner.epoch)).mkdir(exist_ok=True)
    sync_directory(node)
    lock, alone = _lock(node, owner.epoch, shared)
    with giving_back(lock):
        if not alone:
            assert found is not None, "the living processes claimed the node before they released `opening`"
            return Held(lease, found), lock, True
        held = lease.claim(owner, after=found)
        if held is None:
            raise lease.lost(owner, lease.newest())
        if shared:
            fcntl.flock(lock, fcntl.LOCK_SH)  # not atomic, but `opening` excludes all who would take it meanwhile
    return held, lock, False


def seal_earlier(node: Path, epoch: int) -> None:
    """Step 4: seal the logs of all earlier epochs; as a rule all but the last one are sealed already."""
    for earlier in epochs(node):
        if earlier < epoch and not is_sealed(node / str(earlier)):
            seal(node / str(earlier))


@contextmanager
def giving_back(lock: int) -> Iterator[None]:
    """Release the node's lock if the body fails."""
    try:
        yield
    except BaseException:
        os.close(lock)
        raise


def check_name(name: str) -> None:
    """SettingInvalid for an invalid name of a node."""
    if not _NAME.fullmatch(name):
        raise SettingInvalid(
            f"{name!r} is no name of a node",
            next_step="Use 1 to 63 letters, digits, '_' and '-', with a letter or a digit first",
        )


def _lock(node: Path, epoch: int, shared: bool) -> tuple[int, bool]:
    """The owner's lock, and whether no other process has it."""
    path = node / str(epoch) / "owner"

    def owned(pids: str) -> JournalLocked:
        return JournalLocked(
            f"Process {pids} owns this node",
            where=str(node),
            next_step="Use another name for this node, or end that process. If it is paused, or on a machine that is "
            "away, open the node with take_over=True: it is fenced then",
        )

    handle = try_lock(path)
    if handle is not None:
        note_holders(handle, os.getpid())
        return handle, True
    if not shared:
        raise owned(holders(path))
    return hold(path, owned, shared=True), False


SLOTS = 64  # of a folder, for its whole life: the maximum number of nodes that share its entities
_NOBODY = "-"


@dataclass(frozen=True, slots=True)
class Grant:
    """The node that has a slot, and the number of the grant; no node before the first grant."""

    number: int = 0
    node: str | None = None


class NodeSlots:
    """The slots of one folder, for all its nodes."""

    def __init__(self, folder: Path) -> None:
        self._directory = folder / "slots"
        self._directory.mkdir(parents=True, exist_ok=True)

    def grants(self) -> list[Grant]:
        """The current grant of each slot."""
        found = [Grant() for _ in range(SLOTS)]
        for entry in os.scandir(self._directory):
            slot, number = map(int, entry.name.split("-"))
            if number > found[slot].number:
                target = os.readlink(entry.path)  # noqa: PTH115 - there are many of them
                found[slot] = Grant(number, None if target == _NOBODY else target)
        return found

    def nodes(self) -> set[str]:
        """All nodes that ever had a slot."""
        return {os.readlink(entry.path) for entry in os.scandir(self._directory)} - {_NOBODY}  # noqa: PTH115

    def claim(self, slot: int, node: str, check: Callable[[], None]) -> str:
        """Grant a free slot, or the node's own, to a node; returns the slot's node. `check`: the node's fence."""
        while (before := self._grant_of(slot)).node in (None, node):
            check()
            if self._grant(slot, before, node):
                return node
        return before.node or node

    def release(self, slot: int, node: str, check: Callable[[], None]) -> None:
        """Free a slot if it is this node's."""
        while (before := self._grant_of(slot)).node == node:
            check()
            self._grant(slot, before, None)

    def renew(self, node: str, check: Callable[[], None]) -> set[int]:
        """Grant a node's slots to the node again; returns the slots."""
        return {slot for slot in self.of(node) if self.claim(slot, node, check) == node}

    def of(self, node: str) -> set[int]:
        """The slots of a node."""
        return {slot for slot, grant in enumerate(self.grants()) if grant.node == node}

    def _grant_of(self, slot: int) -> Grant:
        return self.grants()[slot]

    def _grant(self, slot: int, before: Grant, node: str | None) -> bool:
        """Make the grant after `before`, to a node or to none; False if another grant came first."""
        try:
            (self._directory / f"{slot}-{before.number + 1}").symlink_to(node or _NOBODY)
        except FileExistsError:
            return False
        sync_directory(self._directory)
        return True


def slot_of(entity: str) -> int:
    """The slot of an entity, for good."""
    return zlib.crc32(entity.encode()) % SLOTS
