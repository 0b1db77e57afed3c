"""The follower: moves the replicas of a folder's views, a thread each, in the server's main process.

Bars for people: how far the replicas are that have to be loaded before they answer with the newest batch.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from stateside.core.errors import StatesideError
from stateside.core.layout import Layout, ViewLayout
from stateside.replica.load_progress import LoadProgress
from stateside.replica.tail import Tail
from stateside.serving.foreign import Foreign
from stateside.serving.rows.foreign_job import ForeignJob
from stateside.views.catalogue import Catalogue

DISCOVERY_S = 0.5
FOREIGN_S = 2.0  # how often a foreign checkpoint is looked at for other views, once it has some
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """A view that is followed: of which query, by which file of a catalogue, by which tail in which thread."""

    query: str | None
    catalogue_file: tuple[int, int]
    tail: Tail
    thread: threading.Thread
    stop: threading.Event


class Follower:
    """Follows every view of a folder, also those that appear later, a thread each.

    A view whose catalogue becomes that of another query is followed anew, one that has none any more is let go.
    """

    def __init__(self, layout: Layout, foreign: Foreign | None = None, **tailing: Any) -> None:
        self._layout, self._foreign, self._tailing = layout, foreign, tailing
        self._stop = threading.Event()
        self._followed: dict[str, Followed] = {}
        self._troubles: dict[str, str] = {}
        self._note = ""  # what the foreign checkpoint is waited for
        self._looked_s = -FOREIGN_S
        self._known = {view.name for view in layout.views()}  # reported at the start, or since

    def __enter__(self) -> Follower:
        self._discovery = threading.Thread(target=self._discover, name="discovery", daemon=True)
        self._discovery.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._discovery.join()
        for followed in self._followed.values():
            followed.stop.set()
        for followed in self._followed.values():
            followed.thread.join()

    def suspect_replicas(self) -> None:
        """Have all replicas read: a process that read them was ended by a signal."""
        for followed in list(self._followed.values()):
            followed.tail.suspect()

    def _discover(self) -> None:
        while not self._stop.wait(DISCOVERY_S):
            try:
                self._look()
            except Exception as error:  # whatever it is, it is tried again
                self._tell("the folder", error)

    def _look(self) -> None:
        if self._foreign is not None and (self._note or time.monotonic() - self._looked_s >= FOREIGN_S):
            self._tell_note(self._foreign.step())
            self._looked_s = time.monotonic()
        views = {view.name: view for view in self._layout.views()}
        for name in [name for name in self._followed if name not in views]:
            self._let_go(name)
        for view in views.values():
            self._follow(view)

    def _follow(self, view: ViewLayout) -> None:
        try:
            found, followed = view.catalogue.stat(), self._followed.get(view.name)
            catalogue_file = found.st_ino, found.st_mtime_ns
            if followed is not None and followed.catalogue_file == catalogue_file:
                return
            query = Catalogue.load(view.catalogue).query
            if followed is not None and followed.query == query:
                self._followed[view.name] = replace(followed, catalogue_file=catalogue_file)
                return
            self._let_go(view.name)
            tail, stop = Tail(view, **self._tailing), threading.Event()
        except Exception as error:  # whatever it is, other views are followed, and this one is tried again
            self._tell(f"view {view.name}", error)
            return
        thread = threading.Thread(target=tail.run, args=(stop,), name=f"tail {view.name}", daemon=True)
        self._followed[view.name] = Followed(query, catalogue_file, tail, thread, stop)
        if view.name not in self._known:
            self._known.add(view.name)
            log.warning("view %s: it is new, and served from now on", view.name)
        thread.start()

    def _let_go(self, name: str) -> None:
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.stop.set()
            followed.thread.join()

    def _tell(self, of: str, error: Exception) -> None:
        """Tell the log, once. An OSError may name another temporary file every time, and is the same all the same."""
        trouble = f"{error.errno}" if isinstance(error, OSError) else str(error)
        if self._troubles.get(of) != trouble:
            self._troubles[of] = trouble
            unexpected = None if isinstance(error, StatesideError | OSError) else error
            log.error("%s: %s", of, error, exc_info=unexpected)

    def _tell_note(self, told: ForeignJob) -> None:
        """Tell the log, once, what the foreign checkpoint waits for, or that it does not any more."""
        if self._note != (told.note or ""):
            self._note = told.note or ""
            log.warning("%s", self._note or f"Views served: {', '.join(view.name for view in self._layout.views())}")


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
