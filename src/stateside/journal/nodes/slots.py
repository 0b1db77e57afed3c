"""Slots: which node writes which entities. An entity belongs to a slot by its hash, a slot to one node at a time.

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
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stateside.storage import sync_directory

SLOTS = 64  # of a folder, for its whole life: the most nodes that can share its entities
_NOBODY = "-"


@dataclass(frozen=True, slots=True)
class Grant:
    """Who has a slot, and the number of the grant that says so; nobody before the first one."""

    number: int = 0
    node: str | None = None


class Slots:
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
