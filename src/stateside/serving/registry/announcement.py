"""Announcements: a server's address and shards, as one small file in a folder shared with other servers.

    servers/NAME.json
    {
      "name": "a",                          the server's name
      "url": "http://10.0.0.7:8471",        its address
      "time": 1767225600000000,             when the file was written, in microseconds since 1970
      "views": {"bill": {
        "share": "1/4",                     the shard of the keys in its replica; null: all keys
        "batch": 12,                        the replica's batch
        "age_ms": 40,                       the age of its answers
        "replica": "r-3f…",                 the replica's own name
        "key": [["customer", "string"]],    the key's columns with their types: the first one's value decides the shard
        "columns": [["customer", "string"], ["total", "long"]]      all columns, with the types in rows
      }}
    }

A server writes the file every second, and deletes the file when stopping. An announcement older than five seconds does
not count: its server is gone, or hangs. Machines whose clocks differ by more than five seconds do not see each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from stateside.core.errors import KeyInvalid
from stateside.core.json_file import JsonFile
from stateside.replica.keys import KeyCodec
from stateside.replica.shard import Share
from stateside.serving.rows.values import KeyTexts
from stateside.spark_state.types import parse_type

ANNOUNCE_S: Final = 1.0
SILENCE_S: Final = 5.0  # after this silence a server counts as gone


@dataclass(frozen=True)
class HeldShare:
    """A server's shard of one view."""

    share: Share | None
    batch: int
    age_ms: int
    replica: str
    key: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...] = ()

    def leading(self, parts: Sequence[str]) -> bytes | None:
        """The encoded first part of a key, which decides the shard; None if the parts are too few.

        KeyInvalid if the parts are not of the key's types.
        """
        columns = [(name, parse_type(type_)) for name, type_ in self.key]
        return self.codec.leading_of(self.codec.encode(KeyTexts("the view", columns).parse(parts)))

    def has(self, leading: bytes) -> bool:
        """Whether the shard contains keys with this first part."""
        return self.share is None or self.share.has(leading)

    @cached_property
    def codec(self) -> KeyCodec:
        """The codec of the view's keys."""
        return KeyCodec([type_ for _, type_ in self.key])

    def as_dict(self) -> dict[str, Any]:
        share = None if self.share is None else str(self.share)
        document = {"share": share, "batch": self.batch, "age_ms": self.age_ms, "replica": self.replica}
        key, columns = ([list(column) for column in each] for each in (self.key, self.columns))
        return document | {"key": key, "columns": columns}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> HeldShare:
        """The inverse of `as_dict`."""
        share = None if document["share"] is None else Share.parse(document["share"])
        key, columns = (tuple((str(name), str(type_)) for name, type_ in document[each]) for each in ("key", "columns"))
        return cls(share, int(document["batch"]), int(document["age_ms"]), str(document["replica"]), key, columns)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A server, and its shard of each view."""

    name: str
    url: str
    time_us: int
    views: Mapping[str, HeldShare] = field(default_factory=dict)

    def silent_ms(self, now_us: int) -> int:
        """The time since the announcement."""
        return max(0, (now_us - self.time_us) // 1_000)

    def counts(self, now_us: int) -> bool:
        """Whether the announcement is recent enough."""
        return self.silent_ms(now_us) <= SILENCE_S * 1_000

    def as_dict(self) -> dict[str, Any]:
        views = {name: held.as_dict() for name, held in self.views.items()}
        return {"name": self.name, "url": self.url, "time": self.time_us, "views": views}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Announcement:
        """The inverse of `as_dict`; ValueError, TypeError, LookupError or a StatesideError for any other document."""
        views = {str(name): HeldShare.of(held) for name, held in document["views"].items()}
        return cls(str(document["name"]), str(document["url"]), int(document["time"]), views)


ANNOUNCEMENT = JsonFile("The announcement of a server", Announcement.of, Announcement.as_dict, durable=False)


def leading_or_none(held: HeldShare, parts: Sequence[str]) -> bytes | None:
    """As `HeldShare.leading`, but None for parts of other types: the server refuses such a key."""
    try:
        return held.leading(parts)
    except KeyInvalid:
        return None
