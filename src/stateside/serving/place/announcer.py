"""The announcer: tells every second that this server is there, and what it holds.

It runs in the workers, since they are who answers: a server whose workers are dead or hang falls silent. Of several
workers the first one that finds the announcement old writes it. The main process takes it away when all have ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import TYPE as COMPUTED_TYPE
from stateside.clock import Clock, SystemClock
from stateside.errors import SettingInvalid, SetupError, StatesideError
from stateside.replica.share import Share
from stateside.serving.place.announcement import ANNOUNCE_S, Announcement, Held
from stateside.serving.place.servers import Servers
from stateside.serving.reading.views import Floor, Views
from stateside.storage import write_atomically

Columns = tuple[tuple[str, str], ...]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_WILDCARDS: Final = ("0.0.0.0", "::")
_OWN_LOOK: Final = Floor(wait_ms=0)

log = logging.getLogger(__name__)


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

    def __init__(self, identity: Identity, views: Views, clock: Clock | None = None) -> None:
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

    async def _held(self) -> AsyncIterator[tuple[str, Held]]:
        """The views that have a batch, each with what is here of it."""
        for name in self._views.names():
            try:
                reader = self._views.get(name)
                stamp = await reader.stamp(_OWN_LOOK)
            except StatesideError:  # no batch yet, or it is refused: whoever asks is told, nobody is sent here for it
                continue
            share = None if stamp.share is None else Share.parse(stamp.share)
            yield name, Held(share, stamp.batch, stamp.age_ms, stamp.replica, *_columns(reader.shape.catalogue))


def _columns(catalogue: Catalogue) -> tuple[Columns, Columns]:
    """The key's columns with the types that they are asked by, and all columns with those that rows have."""
    key = tuple((column.name, column.asked_type) for column in catalogue.key)
    shown = [(column.name, column.type) for column in catalogue.key]
    shown += [(column.name, column.type) for column in catalogue.columns]
    return key, (*shown, *((column.name, COMPUTED_TYPE) for column in catalogue.computed))
