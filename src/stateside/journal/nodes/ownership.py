"""Ownership: how a process becomes the owner of a node. `NodeWriter` numbers the steps; these are 1 to 4 of opening."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateside.errors import JournalLocked, SettingInvalid
from stateside.journal.nodes.epoch import Owner
from stateside.journal.nodes.log import epochs, is_sealed, seal
from stateside.journal.segment import segment_offsets
from stateside.storage import sync_directory, try_lock

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
