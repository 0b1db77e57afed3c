"""The announcer: publishes the server's address and shards every second; `Servers` reads all announcements.

The announcer runs in the workers, which answer the requests: a server with dead or hanging workers falls silent. Of
several workers the first to find the announcement old writes the next one. The main process deletes the announcement
when all workers have ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import SettingInvalid, SetupError, StateError, StatesideError
from stateside.replica.shard import Share
from stateside.serving.registry.announcement import ANNOUNCE_S, ANNOUNCEMENT, Announcement, HeldShare
from stateside.serving.rows.view_readers import Floor, ViewReaders
from stateside.views.catalogue import Catalogue
from stateside.views.functions import TYPE as COMPUTED_TYPE

LOOK_S = 0.25  # how long a reading of the folder is cached
_FOLDER = "servers"
log = logging.getLogger(__name__)


class Servers:
    """Reads the folder, at most every quarter of a second, and omits servers after SILENCE_S."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder, self._clock = folder / _FOLDER, clock or SystemClock()
        self._seen: list[Announcement] = []
        self._looked_s = float("-inf")
        self._told: set[str] = set()

    def now(self) -> list[Announcement]:
        """The live servers, by name. Reads files: not for the event loop."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._seen = [found for path in sorted(self.folder.glob("*.json")) if (found := self.read(path))]
            self._looked_s = time.monotonic()
        now_us = self._clock.now_us()
        return [announcement for announcement in self._seen if announcement.counts(now_us)]

    def file(self, name: str) -> Path:
        """The file of a server's announcement."""
        return self.folder / f"{name}.json"

    def read(self, path: Path) -> Announcement | None:
        """The announcement in a file; None if the file is gone or invalid; an invalid file is logged once."""
        try:
            return ANNOUNCEMENT.read(path)
        except StateError as error:
            if str(path) not in self._told:
                log.warning("left out: %s", error)
            self._told.add(str(path))
            return None

    def withdraw(self, name: str, url: str) -> None:
        """Delete a server's announcement, unless another server has taken the name."""
        found = self.read(self.file(name))
        if found is not None and found.url == url:
            with suppress(FileNotFoundError):
                self.file(name).unlink()


Columns = tuple[tuple[str, str], ...]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_WILDCARDS: Final = ("0.0.0.0", "::")
_OWN_LOOK: Final = Floor(wait_ms=0)


@dataclass(frozen=True, slots=True)
class Identity:
    """The name, URL and folder of a server's announcement. Made by the main process."""

    folder: Path
    name: str
    url: str

    def check(self, clock: Clock | None = None) -> None:
        """Raise SettingInvalid for an unsuitable name; SetupError if another server has the name."""
        if not _NAME.fullmatch(self.name):
            raise SettingInvalid(
                f"{self.name[:100]!r} is no name for a server", next_step="Use letters, digits, '.', '_', '-'"
            )
        servers = Servers(self.folder, clock)
        for found in servers.now():
            if found.name == self.name and found.url != self.url:
                raise SetupError(
                    f"Another server is called {self.name!r}, at {found.url}",
                    where=str(servers.file(self.name)),
                    next_step="Give this one another --name, or stop that one",
                )

    def withdraw(self) -> None:
        """Delete the announcement: the server has stopped."""
        Servers(self.folder).withdraw(self.name, self.url)


def reached_at(scheme: str, address: str, port: int) -> str:
    """The URL of a server at an address; with the machine's name for a wildcard address."""
    host = socket.getfqdn() if address in _WILDCARDS else address
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Announcer:
    """Announces one server, in a worker."""

    def __init__(self, identity: Identity, views: ViewReaders, clock: Clock | None = None) -> None:
        self._identity, self._views, self._clock = identity, views, clock or SystemClock()
        self._servers = Servers(identity.folder, self._clock)
        self._trouble = ""

    async def run(self) -> None:
        """Announce until cancelled. An error is logged once, and the next round tries again."""
        while True:
            try:
                await self.step()
                self._trouble = ""
            except (OSError, StatesideError) as error:
                if str(error) != self._trouble:
                    log.error("This server cannot announce itself: %s", error)
                self._trouble = str(error)
            await asyncio.sleep(ANNOUNCE_S / 2)

    async def step(self) -> bool:
        """Announce, unless another worker has just done so; returns whether the file was written."""
        last = await asyncio.to_thread(self._servers.read, self._servers.file(self._identity.name))
        now_us = self._clock.now_us()
        if last is not None and last.url == self._identity.url and last.silent_ms(now_us) < ANNOUNCE_S * 750:
            return False
        views = {name: held async for name, held in self._held()}
        told = Announcement(self._identity.name, self._identity.url, now_us, views)
        await asyncio.to_thread(ANNOUNCEMENT.write, self._servers.file(told.name), told)
        return True

    async def _held(self) -> AsyncIterator[tuple[str, HeldShare]]:
        """The views with a batch, each with its shard here."""
        for name in self._views.names():
            try:
                reader = self._views.get(name)
                stamp = await reader.stamp(_OWN_LOOK)
            except StatesideError:  # no batch yet, or refused: a client here gets the error, and none is sent here
                continue
            share = None if stamp.share is None else Share.parse(stamp.share)
            yield name, HeldShare(share, stamp.batch, stamp.age_ms, stamp.replica, *_columns(reader.shape.catalogue))


def _columns(catalogue: Catalogue) -> tuple[Columns, Columns]:
    """The key's columns with the types used in requests, and all columns with the types of rows."""
    key = tuple((column.name, column.asked_type) for column in catalogue.key)
    shown = [(column.name, column.type) for column in catalogue.key]
    shown += [(column.name, column.type) for column in catalogue.columns]
    return key, (*shown, *((column.name, COMPUTED_TYPE) for column in catalogue.computed))
