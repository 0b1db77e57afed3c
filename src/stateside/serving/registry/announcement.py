"""Announcements: what a server tells the others, and clients, of itself. One small file in a folder that they share.

    servers/NAME.json
    {
      "name": "a",                          what the server is called
      "url": "http://10.0.0.7:8471",        where it is reached
      "time": 1767225600000000,             when it said so, in microseconds since 1970
      "views": {"bill": {
        "share": "1/4",                     the share of the keys that its replica holds; null: all of them
        "batch": 12,                        the batch that it stands at
        "age_ms": 40,                       how old its answers are
        "replica": "r-3f…",                 the replica's own name
        "key": [["customer", "string"]],    the key's columns with their types: by the first one's value goes the share
        "columns": [["customer", "string"], ["total", "long"]]      all columns, as rows have them
      }}
    }

A server writes it every second, and takes it away when it stops. One that is older than five seconds does not count:
its server is gone, or hangs. Machines whose clocks differ by more than that do not see each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from stateside.core.errors import KeyInvalid
from stateside.replica.keys import KeyCodec
from stateside.replica.shard import Share
from stateside.serving.rows.values import KeyTexts
from stateside.spark_state.types import parse_type

ANNOUNCE_S: Final = 1.0
SILENCE_S: Final = 5.0  # after which a server counts as gone


@dataclass(frozen=True)
class HeldShare:
    """What a server holds of one view."""

    share: Share | None
    batch: int
    age_ms: int
    replica: str
    key: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...] = ()

    def leading(self, parts: Sequence[str]) -> bytes | None:
        """What the share of a key goes by, told from the texts of its first parts; None if they do not tell it.

        KeyInvalid if they are not of the key's types.
        """
        columns = [(name, parse_type(type_)) for name, type_ in self.key]
        return self.codec.leading_of(self.codec.encode(KeyTexts("the view", columns).parse(parts)))

    def has(self, leading: bytes) -> bool:
        """Whether keys that begin so are here."""
        return self.share is None or self.share.has(leading)

    @cached_property
    def codec(self) -> KeyCodec:
        """How the view's keys are encoded."""
        return KeyCodec([type_ for _, type_ in self.key])

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an announcement."""
        share = None if self.share is None else str(self.share)
        document = {"share": share, "batch": self.batch, "age_ms": self.age_ms, "replica": self.replica}
        key, columns = ([list(column) for column in each] for each in (self.key, self.columns))
        return document | {"key": key, "columns": columns}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> HeldShare:
        """What `as_dict` gave."""
        share = None if document["share"] is None else Share.parse(document["share"])
        key, columns = (tuple((str(name), str(type_)) for name, type_ in document[each]) for each in ("key", "columns"))
        return cls(share, int(document["batch"]), int(document["age_ms"]), str(document["replica"]), key, columns)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A server, and what it holds of each view."""

    name: str
    url: str
    time_us: int
    views: Mapping[str, HeldShare] = field(default_factory=dict)

    def silent_ms(self, now_us: int) -> int:
        """For how long nothing was heard of the server."""
        return max(0, (now_us - self.time_us) // 1_000)

    def counts(self, now_us: int) -> bool:
        """Whether the server is still there, as far as one can tell."""
        return self.silent_ms(now_us) <= SILENCE_S * 1_000

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        views = {name: held.as_dict() for name, held in self.views.items()}
        return {"name": self.name, "url": self.url, "time": self.time_us, "views": views}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Announcement:
        """What `as_dict` gave; ValueError, TypeError, LookupError or a StatesideError if it is something else."""
        views = {str(name): HeldShare.of(held) for name, held in document["views"].items()}
        return cls(str(document["name"]), str(document["url"]), int(document["time"]), views)

    def as_json(self) -> bytes:
        """The file's content."""
        return json.dumps(self.as_dict()).encode()


def leading_or_none(held: HeldShare, parts: Sequence[str]) -> bytes | None:
    """As `HeldShare.leading`, and None for parts that are not of the key's types: whoever is asked refuses them."""
    try:
        return held.leading(parts)
    except KeyInvalid:
        return None
