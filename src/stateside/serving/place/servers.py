"""The servers that announce themselves in a folder, as one of them sees it."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path

from stateside.clock import Clock, SystemClock
from stateside.errors import StatesideError
from stateside.serving.place.announcement import Announcement

LOOK_S = 0.25  # for so long a look at the folder is good enough
_FOLDER = "servers"

log = logging.getLogger(__name__)


class Servers:
    """Looks into the folder, at most every quarter of a second, and leaves out whoever was silent for too long."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder, self._clock = folder / _FOLDER, clock or SystemClock()
        self._seen: list[Announcement] = []
        self._looked_s = float("-inf")
        self._told: set[str] = set()

    def now(self) -> list[Announcement]:
        """Those that count now, by name. It reads files: not to be called where requests wait for each other."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._seen = [found for path in sorted(self.folder.glob("*.json")) if (found := self.read(path))]
            self._looked_s = time.monotonic()
        now_us = self._clock.now_us()
        return [announcement for announcement in self._seen if announcement.counts(now_us)]

    def file(self, name: str) -> Path:
        """Where the server of this name announces itself."""
        return self.folder / f"{name}.json"

    def read(self, path: Path) -> Announcement | None:
        """The announcement in a file; None if it is gone meanwhile, or is none, which the log is told once."""
        try:
            return Announcement.of(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError, AttributeError, StatesideError) as error:
            if str(path) not in self._told:
                log.warning("%s is no announcement, and is left out: %r", path, error)
            self._told.add(str(path))
            return None

    def withdraw(self, name: str, url: str) -> None:
        """Take a server's announcement away, if it is its own."""
        found = self.read(self.file(name))
        if found is not None and found.url == url:
            with suppress(FileNotFoundError):
                self.file(name).unlink()
