"""A small disk for an application's folder, to be filled to the last block."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateside.core.errors import SetupError

SIZE = "256m"
_BLOCK_BYTES = 4_096


def refusal() -> str | None:
    """Why no disk can be mounted here; None if one can."""
    with tempfile.TemporaryDirectory(prefix="stateside-disk-") as folder:
        try:
            with mounted(Path(folder)):
                return None
        except SetupError as error:
            return error.sentence()


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """An empty disk at this folder; SetupError where none can be mounted, as for any user but root."""
    folder.mkdir(parents=True, exist_ok=True)
    why = _mount(folder)
    if why:
        raise SetupError(
            f"A small disk, to be filled, cannot be mounted here: {why}",
            where=str(folder),
            next_step="Run this scenario as root on Linux, or leave it out",
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk of this folder to the last block; returns the file that fills it."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        block = bytes(_BLOCK_BYTES)
        while True:
            file.write(block)
    return ballast


def _mount(folder: Path) -> str:
    """Mount the disk; returns the reason of a failure, or an empty text."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "stateside-chaos", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
