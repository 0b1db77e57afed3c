"""The probe: whether an application's folder can hold a lease at all, found out before anybody leads."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from stateside.errors import LeaseInvalid, SettingInvalid
from stateside.leadership.lease import FOLDER_NAME

Scope = Literal["shared", "machine"]

# What no other machine sees. Everything else is taken for shared, if it can do what a lease needs.
LOCAL_TYPES = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


def check_folder(root: Path, scope: Scope) -> None:
    """SettingInvalid if standbys on other machines would not see the folder's lease, LeaseInvalid if it cannot be kept.

    With the scope `machine` all candidates are on this machine, and a local disk will do.
    """
    folder = root / FOLDER_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_scope(root, scope)
        _check_abilities(folder / f".probe-{secrets.token_hex(8)}")
    except OSError as error:
        raise _unable(folder, str(error)) from error


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the file system that a folder is on; None where that cannot be told (not on Linux)."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    place = str(folder.resolve())
    found = [(len(line[4]), at, line[line.index("-") + 1]) for at, line in enumerate(lines) if _within(place, line[4])]
    return max(found)[2] if found else None  # the deepest mount point; of several there the last one covers the others


def _check_scope(root: Path, scope: Scope) -> None:
    kind = file_system(root)
    if scope == "shared" and kind in LOCAL_TYPES:
        raise SettingInvalid(
            f"The folder {root} is on a local disk ({kind}): a standby on another machine does not see its lease, and "
            "would lead beside this one",
            next_step="Put it on storage that all machines share; or say --standby-scope machine, if all standbys are "
            "on this machine",
        )


def _check_abilities(own: Path) -> None:
    """Links that one alone can make; a rename that puts one in another's place, after which no path leads through."""
    file, name, gate, shut = (own / each for each in ("file", "name", "gate", "shut"))
    own.mkdir()
    try:
        file.write_bytes(b"")
        name.hardlink_to(file)
        if not _refused(FileExistsError, lambda: name.hardlink_to(file)):
            raise _unable(own.parent, "two files can have one name there")
        gate.symlink_to(Path(".."), target_is_directory=True)
        (gate / own.name).stat()
        shut.symlink_to(gate.name)
        os.replace(shut, gate)  # noqa: PTH105 - a rename replaces the link itself
        if not _refused(OSError, lambda: (gate / "through").write_bytes(b"")):
            raise _unable(own.parent, "paths lead through a gate that is shut")
    finally:
        for path in (file, name, gate, shut):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            own.rmdir()


def _refused(kind: type[OSError], act: Callable[[], object]) -> bool:
    try:
        act()
    except kind:
        return True
    return False


def _within(place: str, mount_point: str) -> bool:
    point = mount_point.replace("\\040", " ")
    return place == point or place.startswith(point.rstrip("/") + "/")


def _unable(folder: Path, why: str) -> LeaseInvalid:
    return LeaseInvalid(
        f"This folder cannot hold a lease: {why}",
        where=str(folder),
        next_step="It needs the right to write, links, symbolic links and atomic renames. Mend that, or choose another "
        "--dir; without --standby no lease is needed",
    )
