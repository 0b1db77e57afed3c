"""Ownership: how a process becomes the owner of a node. `NodeWriter` numbers the steps; these are 1 to 4 of opening.

Slots: which node writes which entities. An entity belongs to a slot by its hash, a slot to one node at a time.

Who has a slot stands in `slots/`, as *grants*, numbered from 1 on for each slot; the newest one counts:

    slots/SLOT-NUMBER -> NAME       a symbolic link to nowhere: its target is the node that has the slot
    slots/SLOT-NUMBER -> -          nobody has it

A grant is made in one step, with its content, and only if there is none of that number yet: that is what links are
good at. Its number is the one after the grant that its maker went by. So of two that go by the same grant one comes too
late, and nothing that happened in between is overlooked. Grants are never deleted.

How an entity moves from node A to node B; A is alive:

1. A takes no more appends for the slot, has none under way, and settles what one that failed left in its log.
2. A syncs its end mark. Without that a loss of power might hide A's last events from B.
3. A grants the slot to nobody. From here on A refuses its entities. A crash before: A still has it. After: nobody has.
4. B grants the free slot to itself. A crash before: nobody has it. After: B has it, as soon as it is opened again.
5. B reads what all logs have by now, and goes on with each entity's next sequence. All that A acknowledged is there:
   it lies before A's end mark since before step 3.

Where A is dead or paused, a takeover of A comes first (`NodeWriter`), then steps 1 to 5.

What an owner that was paused does to slots when it wakes: before each grant an owner reads the newest one, then looks
into `epoch`, and only then grants, by the one that it read. A successor writes `epoch` first, and then grants all of
the node's slots to the node anew, before its first append. So what a former owner grants goes by a grant from before
that: either it came before the successor's, which goes by it then; or its number is taken, and nothing happens.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateside.core.errors import JournalLocked, SettingInvalid
from stateside.core.storage import sync_directory, try_lock
from stateside.journal.nodes.log import Owner, epochs, is_sealed, seal
from stateside.journal.segment import segment_offsets

_LOOK_S = 0.02
_NOTE_BYTES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)


@contextmanager
def opening(node: Path, wait_s_max: float) -> Iterator[None]:
    """Step 1: nobody else opens this node meanwhile."""
    node.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s_max
    while (handle := try_lock(node / "opening")) is None:
        if time.monotonic() >= deadline:
            raise JournalLocked(
                f"Another process has been opening this node for {wait_s_max:g} s",
                where=str(node),
                next_step="Let that process go on if it is paused, or end it, then open the node again",
            )
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        os.close(handle)


def check_folder(folder: Path) -> None:
    """SettingInvalid for the folder of a journal that has one log for all writers: nodes' logs are another journal."""
    if segment_offsets(folder):
        raise SettingInvalid(
            "This journal has one log, which its writers share by turns",
            where=str(folder),
            next_step="Append with JournalWriter, or give the nodes a folder of their own",
        )


def become_owner(node: Path, take_over: bool) -> tuple[Owner, int]:
    """Steps 2 and 3: the owner from now on, and the lock that it holds while it lives.

    JournalLocked if there is another owner, and it is not to be taken over from.
    """
    found = Owner.read(node)
    owner = Owner.of(1 if found is None else found.epoch + take_over)
    (node / str(owner.epoch)).mkdir(exist_ok=True)
    sync_directory(node)
    if take_over:
        owner.write(node)
    lock = _lock(node, owner.epoch)
    if not take_over:
        owner.write(node)
    return owner, lock


def seal_earlier(node: Path, epoch: int) -> None:
    """Step 4: close the logs of all earlier epochs; all but the last one are closed already, as a rule."""
    for earlier in epochs(node):
        if earlier < epoch and not is_sealed(node / str(earlier)):
            seal(node / str(earlier))


@contextmanager
def giving_back(lock: int) -> Iterator[None]:
    """Own the node no longer if this fails."""
    try:
        yield
    except BaseException:
        os.close(lock)
        raise


def check_name(name: str) -> None:
    """SettingInvalid for what is no name of a node."""
    if not _NAME.fullmatch(name):
        raise SettingInvalid(
            f"{name!r} is no name of a node",
            next_step="Use 1 to 63 letters, digits, '_' and '-', with a letter or a digit first",
        )


def _lock(node: Path, epoch: int) -> int:
    path = node / str(epoch) / "owner"
    handle = try_lock(path)
    if handle is None:
        raise _owned(path)
    os.pwrite(handle, str(os.getpid()).encode().ljust(_NOTE_BYTES), 0)
    return handle


def _owned(path: Path) -> JournalLocked:
    return JournalLocked(
        f"Process {path.read_text().strip()} owns this node",
        where=str(path.parent.parent),
        next_step="Use another name for this node, or end that process. If it is paused, or on a machine that is away, "
        "open the node with take_over=True: it is fenced then",
    )


SLOTS = 64  # of a folder, for its whole life: the most nodes that can share its entities
_NOBODY = "-"


@dataclass(frozen=True, slots=True)
class Grant:
    """Who has a slot, and the number of the grant that says so; nobody before the first one."""

    number: int = 0
    node: str | None = None


class NodeSlots:
    """The slots of one folder, as all its nodes see them."""

    def __init__(self, folder: Path) -> None:
        self._directory = folder / "slots"
        self._directory.mkdir(parents=True, exist_ok=True)

    def grants(self) -> list[Grant]:
        """Who has each slot now."""
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
        """Give a slot to a node if it is that one's or nobody's; whose it is then. `check` is the node's fence."""
        while (before := self._grant_of(slot)).node in (None, node):
            check()
            if self._grant(slot, before, node):
                return node
        return before.node or node

    def release(self, slot: int, node: str, check: Callable[[], None]) -> None:
        """Give a slot to nobody if it is this node's."""
        while (before := self._grant_of(slot)).node == node:
            check()
            self._grant(slot, before, None)

    def renew(self, node: str, check: Callable[[], None]) -> set[int]:
        """Grant a node's slots to it anew; which those are."""
        return {
            slot
            for slot, grant in enumerate(self.grants())
            if grant.node == node and self.claim(slot, node, check) == node
        }

    def _grant_of(self, slot: int) -> Grant:
        return self.grants()[slot]

    def _grant(self, slot: int, before: Grant, node: str | None) -> bool:
        """Give a slot, which stands as `before` says, to a node or to nobody; False if that is not so any more."""
        try:
            (self._directory / f"{slot}-{before.number + 1}").symlink_to(node or _NOBODY)
        except FileExistsError:
            return False
        sync_directory(self._directory)
        return True


def slot_of(entity: str) -> int:
    """The slot that an entity belongs to, for good."""
    return zlib.crc32(entity.encode()) % SLOTS
