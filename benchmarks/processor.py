"""The processor's time of this process and all its descendants: what Spark's JVM and Python workers used is in it.

On a machine that others use too, time by the clock says little; this says what the work itself took.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessorWatch:
    """The processor's time, `used_s`, from when something `has_begun`, which is looked at all the time, to the end."""

    def __init__(self, has_begun: Callable[[], bool]) -> None:
        self._has_begun = has_begun
        self._began_s: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.used_s = 0.0

    def __enter__(self) -> ProcessorWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._began_s is not None:
            self.used_s = processor_s() - self._began_s

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_S):
            if self._has_begun():
                self._began_s = processor_s()
                return


def processor_s() -> float:
    """Seconds so far, of processes that have ended as well, if their parents have taken note of it."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))  # its own and its ended children's, user and system
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(process, 0) for process in ours) / _TICKS_PER_S
