"""A small disk of its own, which a test may fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until


@contextmanager
def mounted(folder: Path, size: str = "6m") -> Iterator[Path]:
    """An empty disk of this size at a new folder; the test is skipped where none can be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


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
