"""Bars for people: how far the replicas are that have to be loaded before they answer with the newest batch."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from stateside.replica.progress import LoadProgress


class LoadBars:
    """A bar for each view that is being loaded, shown while there is any. Called by the tails, each in its thread."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[rows]:,} rows"), console=console)
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, told: LoadProgress) -> None:
        """Show how far a load is; its bar goes once it is done."""
        with self._lock:
            if told.view not in self._tasks:
                self._progress.start()
                self._tasks[told.view] = self._progress.add_task(told.view, total=1.0, rows=told.rows)
            self._progress.update(self._tasks[told.view], completed=told.done, rows=told.rows)
            if told.done >= 1.0:
                self._progress.remove_task(self._tasks.pop(told.view))
            if not self._tasks:
                self._progress.stop()

    def close(self) -> None:
        """Take the bars away: a load that was given up never says so."""
        self._progress.stop()
