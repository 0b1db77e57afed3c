"""Counters of the processes of a server, each in a file of its own, and the use of CPU, memory and files.

A server creates a folder for its worker processes at its start; the process that is asked adds the files up:

    PROCESS.json    the series, in order: [[route, method, status], …]
    PROCESS.cells   8-byte numbers: the requests under way of each kind in `Gauge`; then, for each series in the same
                    order, answers in each of the buckets of `SECONDS`, longer answers, and the sum of all durations in
                    microseconds

A count is one number in a memory-mapped file: a request writes nothing, a killed process loses nothing, and the counts
of an ended process stay. Requests under way count only while their process lives. Bounded: unknown methods, and series
beyond SERIES_MAX, are counted as `other`.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from stateside.core.json_file import JsonFile

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SERIES_MAX: Final = 1_024
FOLDER_VARIABLE: Final = "STATESIDE_METRICS_DIR"  # passes the folder from the server to its workers
OTHER: Final = "other"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SUM: Final = len(SECONDS) + 1  # after the buckets, including the unbounded one
_WIDTH: Final = _SUM + 1
_CELL_BYTES: Final = 8


class Gauge(IntEnum):
    """What is counted while it is under way; the place of its cell."""

    WATCHERS = 0
    SQL_STATEMENTS = 1


Series = tuple[str, str, str]
Counts = list[int]
_NAMES: Final[JsonFile[list[Series]]] = JsonFile(
    "The names of the series",
    lambda document: [(route, method, status) for route, method, status in document],
    list,
    durable=False,
)


class Tallies:
    """The counters of this process: private, or in a folder shared with other processes."""

    def __init__(self, folder: Path | None = None) -> None:
        size = (len(Gauge) + SERIES_MAX * _WIDTH) * _CELL_BYTES
        self._names = None if folder is None else folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        content = bytearray(size) if self._names is None else _mapped(self._names.with_suffix(".cells"), size)
        self._cells = memoryview(content).cast("Q")
        self._places: dict[tuple[str, str, int], int] = {}  # cache: an answer's labels to the first cell of its series
        self._series: dict[Series, int] = {}

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer and its duration."""
        at = self._places.get((route, method, status))
        if at is None:
            at = self._place(route, method, status)
        self._cells[at + bisect_left(SECONDS, seconds)] += 1
        self._cells[at + _SUM] += int(seconds * 1_000_000)

    @contextmanager
    def under_way(self, gauge: Gauge) -> Iterator[None]:
        """Count one more during the context."""
        self._cells[gauge] += 1
        try:
            yield
        finally:
            self._cells[gauge] -= 1

    def now_under_way(self, processes: Collection[int]) -> dict[Gauge, int]:
        """The requests under way in this process, or in these processes of those that share the folder."""
        files = [] if self._names is None else self._names.parent.glob("*.cells")
        living = [path for path in files if int(path.name.partition("-")[0]) in processes]
        found = [memoryview(path.read_bytes()).cast("Q") for path in living] or [self._cells]
        return {gauge: sum(cells[gauge] for cells in found) for gauge in Gauge}

    def all(self) -> Mapping[Series, Counts]:
        """The counts of this process, or of all processes that share the folder."""
        if self._names is None:
            return dict(_read(list(self._series), self._cells))
        added: dict[Series, Counts] = defaultdict(lambda: [0] * _WIDTH)
        for names in self._names.parent.glob("*.json"):
            series = _NAMES.load(names)
            cells = memoryview(names.with_suffix(".cells").read_bytes()).cast("Q")
            for each, counts in _read(series, cells):
                added[each] = [a + b for a, b in zip(added[each], counts, strict=True)]
        return added

    def _place(self, route: str, method: str, status: int) -> int:
        wanted = route, method if method in _METHODS else OTHER, str(status)
        series = wanted if wanted in self._series or len(self._series) < SERIES_MAX - 1 else (OTHER, OTHER, OTHER)
        if series not in self._series:
            self._series[series] = len(Gauge) + len(self._series) * _WIDTH
            if self._names is not None:
                _NAMES.write(self._names, list(self._series))
        at = self._series[series]
        if series == wanted and method in _METHODS:  # clients can invent any other method, so it is not cached
            self._places[route, method, status] = at
        return at


def _mapped(path: Path, size: int) -> mmap.mmap:
    with path.open("w+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _read(series: list[Series], cells: memoryview) -> Iterator[tuple[Series, Counts]]:
    for number, each in enumerate(series):
        at = len(Gauge) + number * _WIDTH
        yield each, cells[at : at + _WIDTH].tolist()


@contextmanager
def shared_metrics() -> Iterator[None]:
    """Share the counters between this process and its child processes, for the duration of the context."""
    with tempfile.TemporaryDirectory(prefix="stateside-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The use of a process and its ended children: seconds of CPU, resident bytes, open files, time of its start."""

    cpu_s: float
    resident_bytes: int
    open_files: int
    start_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessUse | None:
        """None for a process that has ended, or of another user; and on systems without /proc."""
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()  # from the third one on
            files = len(os.listdir(_PROC / str(pid) / "fd"))  # noqa: PTH208 - only their number
        except OSError:
            return None
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        cpu_s = sum(map(int, fields[11:15])) / ticks  # of user and system; then of ended children
        return cls(cpu_s, int(fields[21]) * page, files, _boot_s() + int(fields[19]) / ticks)


def _boot_s() -> int:
    lines = (_PROC / "stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime"))


def with_children(pid: int) -> set[int]:
    """A process and all processes below it."""
    found, waiting = set[int](), {pid}
    while waiting:
        found.add(one := waiting.pop())
        waiting |= {child for task in (_PROC / str(one) / "task").glob("*") for child in _children(task)} - found
    return found


def _children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []
