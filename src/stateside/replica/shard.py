"""Shards: a replica may hold only one shard of a view's keys, so that several replicas together hold them all.

A key's shard depends on its leading column alone, so that all rows of a customer are in one place:

    place = blake2b, 64 bits, big-endian, of the leading column as `keys` encodes it
    shard = place * count / 2**64, rounded down; counted from 1

So a shard is a range of places, and with twice as many shards each splits in half. The hash is no secret and must never
change: replicas and clients on other machines compute it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from stateside.core.errors import SettingInvalid

SHARES_MAX = 4_096
_PLACE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` shards, counted from 1; as text `1/4`."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count <= SHARES_MAX:
            raise _invalid(str(self))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """The shard named by a text; SettingInvalid if there is none."""
        index, slash, count = text.partition("/")
        if not slash or not (index.isascii() and index.isdigit() and count.isascii() and count.isdigit()):
            raise _invalid(text)
        return cls(int(index), int(count))

    def has(self, leading: bytes) -> bool:
        """Whether keys with this leading column, encoded, are in this shard."""
        place = int.from_bytes(blake2b(leading, digest_size=_PLACE_BYTES).digest(), "big")
        return place * self.count >> 8 * _PLACE_BYTES == self.index - 1


def _invalid(text: str) -> SettingInvalid:
    return SettingInvalid(
        f"{text[:40]!r} is no share",
        next_step=f"Give it as NUMBER/COUNT, for example 1/4: the first of four, of at most {SHARES_MAX}",
    )
