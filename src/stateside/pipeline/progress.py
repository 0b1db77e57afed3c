"""The progress of every batch, as Spark reports it, kept beside the checkpoint: the newest ones, a JSON line each.

progress.jsonl      the newest batches, up to LINES_MAX
progress.1.jsonl    the LINES_MAX before them
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINES_MAX = 2_000  # about 3 KB each: two such files are 12 MB a view


class ProgressFile:
    """Appends to the file, and begins a new one when it is full. One writer; readers may come at any time."""

    def __init__(self, path: Path, lines_max: int = LINES_MAX) -> None:
        self._path = path
        self._lines_max = lines_max
        self._lines = _count(path)

    def append(self, progress: dict[str, Any]) -> None:
        """Keep one batch's progress."""
        if self._lines >= self._lines_max:
            self._path.replace(older(self._path))
            self._lines = 0
        with self._path.open("a") as file:
            file.write(json.dumps(progress, separators=(",", ":")) + "\n")
        self._lines += 1


def read_progress(path: Path) -> Iterator[dict[str, Any]]:
    """The batches that are kept, oldest first; a line that a crash cut short is left out."""
    for file in (older(path), path):
        if file.exists():
            for line in file.read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def older(path: Path) -> Path:
    """The file before this one."""
    return path.with_suffix(".1.jsonl")


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):  # a crash cut the last line short: the next one begins anew
        with path.open("ab") as file:
            file.write(b"\n")
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
