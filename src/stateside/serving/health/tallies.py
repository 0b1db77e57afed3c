"""Tallies: how many answers there were, and how long they took, counted by each process where all of them can read it.

    PROCESS.json    the series, in order: [[route, method, status], …]
    PROCESS.cells   for each series, in the same order, 8-byte numbers: answers in each of the buckets of `SECONDS`,
                    those that took longer, and the microseconds of all of them together

A count is one number in a file that is mapped into memory: nothing is written at a request, nothing is lost with a
process that is killed, and what a process counted stays when it has ended. Bounded: a method that is not one of HTTP's
own, and what finds no room any more, are counted as `other`.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from stateside.storage import write_atomically

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SERIES_MAX: Final = 1_024
OTHER: Final = "other"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SUM: Final = len(SECONDS) + 1  # behind the buckets, and the one without an end
_WIDTH: Final = _SUM + 1
_CELL_BYTES: Final = 8

Series = tuple[str, str, str]
Counts = list[int]


class Tallies:
    """What this process counts: for itself, or in a folder where others read it."""

    def __init__(self, folder: Path | None = None) -> None:
        size = SERIES_MAX * _WIDTH * _CELL_BYTES
        self._names = None if folder is None else folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        content = bytearray(size) if self._names is None else _mapped(self._names.with_suffix(".cells"), size)
        self._cells = memoryview(content).cast("Q")
        self._places: dict[tuple[str, str, int], int] = {}  # as an answer is told, where its series begins
        self._series: dict[Series, int] = {}

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """One more answer, which took so long."""
        at = self._places.get((route, method, status))
        if at is None:
            at = self._place(route, method, status)
        self._cells[at + bisect_left(SECONDS, seconds)] += 1
        self._cells[at + _SUM] += int(seconds * 1_000_000)

    def all(self) -> Mapping[Series, Counts]:
        """What this process has counted; of a folder, what all have that count there."""
        if self._names is None:
            return dict(_read(list(self._series), self._cells))
        added: dict[Series, Counts] = defaultdict(lambda: [0] * _WIDTH)
        for names in self._names.parent.glob("*.json"):
            series = [(route, method, status) for route, method, status in json.loads(names.read_bytes())]
            cells = memoryview(names.with_suffix(".cells").read_bytes()).cast("Q")
            for each, counts in _read(series, cells):
                added[each] = [a + b for a, b in zip(added[each], counts, strict=True)]
        return added

    def _place(self, route: str, method: str, status: int) -> int:
        wanted = route, method if method in _METHODS else OTHER, str(status)
        series = wanted if wanted in self._series or len(self._series) < SERIES_MAX - 1 else (OTHER, OTHER, OTHER)
        if series not in self._series:
            self._series[series] = len(self._series) * _WIDTH
            if self._names is not None:
                write_atomically(self._names, json.dumps(list(self._series)).encode(), durable=False)
        at = self._series[series]
        if series == wanted and method in _METHODS:  # anything else is as many as askers think of
            self._places[route, method, status] = at
        return at


def _mapped(path: Path, size: int) -> mmap.mmap:
    with path.open("w+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _read(series: list[Series], cells: memoryview) -> Iterator[tuple[Series, Counts]]:
    for number, each in enumerate(series):
        yield each, cells[number * _WIDTH : (number + 1) * _WIDTH].tolist()
