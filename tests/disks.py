"""A small disk of its own, which a test may fill."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until


@contextmanager
def mounted(folder: Path, size: str = "6m", *, image: bool = False) -> Iterator[Path]:
    """An empty disk of this size at a new folder; the test is skipped where none can be mounted.

    With an `image` it can be `frozen`.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(folder)]
    if image:
        file = folder.with_suffix(".img")
        made = "truncate -s {0} {1} && mkfs.ext4 -q {1} && mount -o loop {1} {2}"
        command = ["sh", "-c", made.format(size.upper(), shlex.quote(str(file)), shlex.quote(str(folder)))]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Whoever writes to the disk waits meanwhile, without an error."""
    subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)


def remount(disk: Path, option: str) -> None:
    """Let it be written to or not: `rw` or `ro`. A disk on which a file is just being written is busy for a moment."""
    done = subprocess.CompletedProcess[bytes]([], 0)

    def remounted() -> bool:
        nonlocal done
        done = subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], capture_output=True)
        return done.returncode == 0

    wait_until(remounted, lambda: done.stderr.decode())


def fill(disk: Path) -> Path:
    """To the last block; the file that takes it all."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))
    return disk / "ballast"
