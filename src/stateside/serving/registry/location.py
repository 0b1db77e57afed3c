"""Locations: which of the announced servers have a key, and which of them together have all keys. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stateside.replica.shard import Share
from stateside.serving.registry.announcement import Announcement, HeldShare


@dataclass(frozen=True, slots=True)
class Holding:
    """A server that has some of a view's keys."""

    server: Announcement
    held: HeldShare

    @property
    def url(self) -> str:
        """Where it is reached."""
        return self.server.url

    @property
    def share(self) -> str | None:
        """The share that it has; None for all keys."""
        return None if self.held.share is None else str(self.held.share)

    def as_dict(self, now_us: int) -> dict[str, Any]:
        """As it stands in the answer to who asks for a location: its age is that of the answers it would give now."""
        age_ms = self.held.age_ms + self.server.silent_ms(now_us)
        told = {"url": self.url, "name": self.server.name, "share": self.share, "replica": self.held.replica}
        return told | {"batch": self.held.batch, "age_ms": age_ms}


def holdings(servers: Iterable[Announcement], view: str, leading: bytes | None = None) -> list[Holding]:
    """The servers that have the view's keys that begin so; without `leading`, those that have all keys of the view.

    The newest batch comes first.
    """
    found = [Holding(server, server.views[view]) for server in servers if view in server.views]
    if leading is None:
        found = [each for each in found if each.held.share is None]
    else:
        found = [each for each in found if each.held.has(leading)]
    return sorted(found, key=lambda each: (-each.held.batch, each.server.name))


def location(servers: Iterable[Announcement], view: str, leading: bytes | None, now_us: int) -> dict[str, Any]:
    """What is told of where a key is: the share that it is in, as the first server has it, and the servers."""
    found = [each.as_dict(now_us) for each in holdings(servers, view, leading)]
    return {"share": found[0]["share"] if found else None, "servers": found}


def cover(servers: Iterable[Announcement], view: str) -> list[list[Holding]] | None:
    """Servers that together have every key of the view once: for each share, its copies. None if a share is missing.

    As few shares as can be: one server that has all keys is best.
    """
    copies: dict[Share, list[Holding]] = defaultdict(list)
    for server in servers:
        if view in server.views:
            held = server.views[view]
            copies[held.share or Share(1, 1)].append(Holding(server, held))
    for count in sorted({share.count for share in copies}):
        shares = [Share(index, count) for index in range(1, count + 1)]
        if all(share in copies for share in shares):
            return [copies[share] for share in shares]
    return None


def missing(servers: Iterable[Announcement], view: str) -> str:
    """For people: which shares of a view nobody has, where some have others."""
    shares = {held.share for server in servers if (held := server.views.get(view)) and held.share}
    if not shares:
        return f"no server announces the view {view!r}"
    count = min(share.count for share in shares)
    absent = [str(share) for index in range(1, count + 1) if (share := Share(index, count)) not in shares]
    return f"no server announces the shares {', '.join(absent[:8])} of the view {view!r}"
