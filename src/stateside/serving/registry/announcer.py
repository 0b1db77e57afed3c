"""The announcer: tells every second that this server is there, and what it holds.

It runs in the workers, since they are who answers: a server whose workers are dead or hang falls silent. Of several
workers the first one that finds the announcement old writes it. The main process takes it away when all have ended.

The servers that announce themselves in a folder, as one of them sees it.
"""

from __future__ import annotations

import asyncio
import json
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
from stateside.core.errors import SettingInvalid, SetupError, StatesideError
from stateside.core.storage import write_atomically
from stateside.replica.shard import Share
from stateside.serving.registry.announcement import ANNOUNCE_S, Announcement, HeldShare
from stateside.serving.rows.view_readers import Floor, ViewReaders
from stateside.views.catalogue import Catalogue
from stateside.views.computed import TYPE as COMPUTED_TYPE

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


Columns = tuple[tuple[str, str], ...]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_WILDCARDS: Final = ("0.0.0.0", "::")
_OWN_LOOK: Final = Floor(wait_ms=0)


@dataclass(frozen=True, slots=True)
class Identity:
    """Under which name, where, and in which folder a server announces itself. Made by the main process."""

    folder: Path
    name: str
    url: str

    def check(self, clock: Clock | None = None) -> None:
        """SettingInvalid for a name that no file can have; SetupError if another server has it."""
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
        """Take the announcement away: the server has stopped."""
        Servers(self.folder).withdraw(self.name, self.url)


def reached_at(scheme: str, address: str, port: int) -> str:
    """The URL by which others reach who listens there; on all addresses that is the machine's own name."""
    host = socket.getfqdn() if address in _WILDCARDS else address
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Announcer:
    """Announces one server, in a worker."""

    def __init__(self, identity: Identity, views: ViewReaders, clock: Clock | None = None) -> None:
        self._identity, self._views, self._clock = identity, views, clock or SystemClock()
        self._servers = Servers(identity.folder, self._clock)
        self._trouble = ""

    async def run(self) -> None:
        """Announce until it is cancelled. Trouble is told the log once, and it is tried again."""
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
        """Announce, unless another worker has just done it; whether it was done."""
        last = await asyncio.to_thread(self._servers.read, self._servers.file(self._identity.name))
        now_us = self._clock.now_us()
        if last is not None and last.url == self._identity.url and last.silent_ms(now_us) < ANNOUNCE_S * 750:
            return False
        views = {name: held async for name, held in self._held()}
        told = Announcement(self._identity.name, self._identity.url, now_us, views)
        await asyncio.to_thread(write_atomically, self._servers.file(told.name), told.as_json(), durable=False)
        return True

    async def _held(self) -> AsyncIterator[tuple[str, HeldShare]]:
        """The views that have a batch, each with what is here of it."""
        for name in self._views.names():
            try:
                reader = self._views.get(name)
                stamp = await reader.stamp(_OWN_LOOK)
            except StatesideError:  # no batch yet, or it is refused: whoever asks is told, nobody is sent here for it
                continue
            share = None if stamp.share is None else Share.parse(stamp.share)
            yield name, HeldShare(share, stamp.batch, stamp.age_ms, stamp.replica, *_columns(reader.shape.catalogue))


def _columns(catalogue: Catalogue) -> tuple[Columns, Columns]:
    """The key's columns with the types that they are asked by, and all columns with those that rows have."""
    key = tuple((column.name, column.asked_type) for column in catalogue.key)
    shown = [(column.name, column.type) for column in catalogue.key]
    shown += [(column.name, column.type) for column in catalogue.columns]
    return key, (*shown, *((column.name, COMPUTED_TYPE) for column in catalogue.computed))
