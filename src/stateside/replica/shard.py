"""Shares: a replica may hold only its share of a view's keys, so that several replicas together hold them all.

A key's share is told by its leading column alone, so that all rows of a customer are in one place:

    place = blake2b, 64 bits, big-endian, of the leading column as `keys` encodes it
    share = place * count / 2**64, rounded down; counted from 1

So a share is a range of places, and twice as many shares are the halves of these. The hash is no secret and must never
change: replicas and clients on other machines reckon with it too.

What a replica that holds only its share takes over: of all that Spark stored, the rows of its keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from stateside.core.errors import SettingInvalid
from stateside.replica.keys import KeyCodec
from stateside.replica.translation import AnySnapshot, Rows, Translator
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import Changelog

SHARES_MAX = 4_096
_PLACE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` shares, counted from 1; as text `1/4`."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count <= SHARES_MAX:
            raise _invalid(str(self))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """The share that this text names; SettingInvalid if it names none."""
        index, slash, count = text.partition("/")
        if not slash or not (index.isascii() and index.isdigit() and count.isascii() and count.isdigit()):
            raise _invalid(text)
        return cls(int(index), int(count))

    def has(self, leading: bytes) -> bool:
        """Whether keys with this leading column, encoded, are in this share."""
        place = int.from_bytes(blake2b(leading, digest_size=_PLACE_BYTES).digest(), "big")
        return place * self.count >> 8 * _PLACE_BYTES == self.index - 1


def _invalid(text: str) -> SettingInvalid:
    return SettingInvalid(
        f"{text[:40]!r} is no share",
        next_step=f"Give it as NUMBER/COUNT, for example 1/4: the first of four, of at most {SHARES_MAX}",
    )


class SharedTranslator:
    """A view's translator that leaves out the keys of other shares, in changes and in snapshots alike."""

    def __init__(self, translator: Translator, share: Share, codec: KeyCodec) -> None:
        self._translator, self._share, self._codec = translator, share, codec

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        """What a partition's changelog changes in the replica."""
        return self._own(self._translator.changes(commit, partition, changelog))

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        """The replica's rows in a snapshot of a partition."""
        return self._own(self._translator.snapshot(partition, snapshot))

    def _own(self, rows: Rows) -> Rows:
        has, leading = self._share.has, self._codec.leading
        return ((key, row) for key, row in rows if has(leading(key)))
