"""Reaching the disk: its refusals as errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateside.errors import JournalAway


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
