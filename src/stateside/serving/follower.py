"""Keeps the replicas of a folder's views up to date, one thread per view, in the server's main process."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateside.core.errors import StatesideError
from stateside.core.layout import Layout, ViewLayout
from stateside.replica.tail import Tail
from stateside.serving.foreign import Foreign
from stateside.serving.rows.foreign_job import ForeignJob
from stateside.views.catalogue import Catalogue

DISCOVERY_S = 0.5
FOREIGN_S = 2.0  # interval between two checks of a foreign checkpoint for further views, once it has some
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """A followed view: its query, its catalogue file (inode, modification time), its tail and the tail's thread."""

    query: str | None
    catalogue_file: tuple[int, int]
    tail: Tail
    thread: threading.Thread
    stop: threading.Event


class Follower:
    """Follows every view of a folder, including views that appear later, and generations that are being filled.

    A view whose catalogue changes to another query gets a new tail; a view whose catalogue disappears loses its tail.
    """

    def __init__(self, layout: Layout, foreign: Foreign | None = None, **tailing: Any) -> None:
        self._layout, self._foreign, self._tailing = layout, foreign, tailing
        self._stop = threading.Event()
        self._followed: dict[Path, Followed] = {}
        self._troubles: dict[str, str] = {}
        self._note = ""  # what the foreign checkpoint waits for
        self._looked_s = -FOREIGN_S
        self._known = {view.name for view in layout.views()}  # views that were logged, at the start or since

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
        """Have all replicas verified: a process that had mapped the replicas was ended by a signal."""
        for followed in list(self._followed.values()):
            followed.tail.suspect()

    def _discover(self) -> None:
        while not self._stop.wait(DISCOVERY_S):
            try:
                self._look()
            except Exception as error:  # any error is logged, and the next round tries again
                self._tell("the folder", error)

    def _look(self) -> None:
        if self._foreign is not None and (self._note or time.monotonic() - self._looked_s >= FOREIGN_S):
            self._tell_note(self._foreign.step())
            self._looked_s = time.monotonic()
        served, filling = self._layout.views(), self._layout.filling()
        roots = {view.root for view in (*served, *filling)}
        for root in [root for root in self._followed if root not in roots]:
            self._let_go(root)
        for view in (*served, *filling):
            self._follow(view)
        for view in served:
            if view.name not in self._known:
                self._known.add(view.name)
                log.warning("view %s: it is new, and served from now on", view.name)

    def _follow(self, view: ViewLayout) -> None:
        try:
            found, followed = view.catalogue.stat(), self._followed.get(view.root)
            catalogue_file = found.st_ino, found.st_mtime_ns
            if followed is not None and followed.catalogue_file == catalogue_file:
                return
            query = Catalogue.load(view.catalogue).query
            if followed is not None and followed.query == query:
                self._followed[view.root] = replace(followed, catalogue_file=catalogue_file)
                return
            self._let_go(view.root)
            tail, stop = Tail(view, **self._tailing), threading.Event()
        except Exception as error:  # any error: the other views go on, and the next round tries this view again
            self._tell(f"view {view.name}", error)
            return
        thread = threading.Thread(target=tail.run, args=(stop,), name=f"tail {view.name}", daemon=True)
        self._followed[view.root] = Followed(query, catalogue_file, tail, thread, stop)
        thread.start()

    def _let_go(self, root: Path) -> None:
        followed = self._followed.pop(root, None)
        if followed is not None:
            followed.stop.set()
            followed.thread.join()

    def _tell(self, of: str, error: Exception) -> None:
        """Log an error once. Two OSErrors with one errno count as equal, because a temporary file's name may differ."""
        trouble = f"{error.errno}" if isinstance(error, OSError) else str(error)
        if self._troubles.get(of) != trouble:
            self._troubles[of] = trouble
            unexpected = None if isinstance(error, StatesideError | OSError) else error
            log.error("%s: %s", of, error, exc_info=unexpected)

    def _tell_note(self, told: ForeignJob) -> None:
        """Log once what the foreign checkpoint waits for, or that the waiting is over."""
        if self._note != (told.note or ""):
            self._note = told.note or ""
            log.warning("%s", self._note or f"Views served: {', '.join(view.name for view in self._layout.views())}")
