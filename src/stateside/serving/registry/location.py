"""Locations: the announced servers of a key, and a set of servers that covers all keys. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stateside.replica.shard import Share
from stateside.serving.registry.announcement import Announcement, HeldShare


@dataclass(frozen=True, slots=True)
class Holding:
    """A server with its shard of a view."""

    server: Announcement
    held: HeldShare

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def share(self) -> str | None:
        """The shard, as text; None for all keys."""
        return None if self.held.share is None else str(self.held.share)

    def as_dict(self, now_us: int) -> dict[str, Any]:
        """The holding in a location answer; the age counts up to now."""
        age_ms = self.held.age_ms + self.server.silent_ms(now_us)
        told = {"url": self.url, "name": self.server.name, "share": self.share, "replica": self.held.replica}
        return told | {"batch": self.held.batch, "age_ms": age_ms}


def holdings(servers: Iterable[Announcement], view: str, leading: bytes | None = None) -> list[Holding]:
    """The servers with the keys of this first part; without `leading`, the servers with all keys of the view.

    The newest batch comes first.
    """
    found = [Holding(server, server.views[view]) for server in servers if view in server.views]
    if leading is None:
        found = [each for each in found if each.held.share is None]
    else:
        found = [each for each in found if each.held.has(leading)]
    return sorted(found, key=lambda each: (-each.held.batch, each.server.name))


def location(servers: Iterable[Announcement], view: str, leading: bytes | None, now_us: int) -> dict[str, Any]:
    """The location of a key: its shard, by the first server's partitioning, and the servers."""
    found = [each.as_dict(now_us) for each in holdings(servers, view, leading)]
    return {"share": found[0]["share"] if found else None, "servers": found}


def cover(servers: Iterable[Announcement], view: str) -> list[list[Holding]] | None:
    """Servers that together have every key of the view once: per shard, its copies. None if a shard is missing.

    Prefers the fewest shards: one server with all keys is best.
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
    """For people: the shards of a view that no server announces."""
    shares = {held.share for server in servers if (held := server.views.get(view)) and held.share}
    if not shares:
        return f"no server announces the view {view!r}"
    count = min(share.count for share in shares)
    absent = [str(share) for index in range(1, count + 1) if (share := Share(index, count)) not in shares]
    return f"no server announces the shares {', '.join(absent[:8])} of the view {view!r}"
