"""Positions: vectors of offsets into the partitions of a journal.

A position says, for each partition of a journal, how many of its events lie before the position: `{partition: offset}`.
Offsets count from 0, so the position of an empty journal, the *start*, is 0 everywhere; a partition without an entry
stands at 0. (A journal on Kafka has its topic's offsets, of which some have no event.) Positions are partially ordered:
one *covers* another if its offset is at least as large in every partition.

Short text form, for headers, URLs and logs, sorted by partition and without zeros:

    0:1234            1,234 events of partition 0
    calls-0:7,calls-1:12
    start             no event yet
    ~Zk3v…            an *opaque* position, for a reader who must not learn how much others write: only the server
                      that issued the text knows the offsets. Usable as `min_position` and in tests for equality
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stateside.core.errors import PositionInvalid

OFFSET_MAX = 2**63 - 1
PARTITIONS_MAX = 10_000
START_TEXT = "start"

_PART = re.compile(r"(?P<partition>[A-Za-z0-9._-]{1,255}):(?P<offset>[0-9]{1,19})", re.ASCII)
_PARTITION = re.compile(r"[A-Za-z0-9._-]{1,255}", re.ASCII)
_OPAQUE = re.compile(r"~[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """A vector of offsets; make one with `of`, `parse` or `start`. Equal if the offsets are equal.

    An opaque position has the server's texts and no parts: operations that need offsets raise PositionInvalid.
    """

    parts: tuple[tuple[str, int], ...] = ()
    opaque: tuple[str, ...] = ()

    @classmethod
    def start(cls) -> Position:
        return cls()

    @classmethod
    def of(cls, offsets: Mapping[str, int]) -> Position:
        """The position with these offsets; PositionInvalid for an invalid name or offset."""
        for partition, offset in offsets.items():
            _check(partition, offset)
        return cls(tuple(sorted((p, o) for p, o in offsets.items() if o)))

    @classmethod
    def parse(cls, text: str) -> Position:
        """The inverse of `str`."""
        if text == START_TEXT:
            return cls.start()
        if text.startswith("~"):
            return cls._parse_opaque(text)
        offsets: dict[str, int] = {}
        for part in text.split(",", PARTITIONS_MAX - 1):
            match = _PART.fullmatch(part)
            if match is None or match["partition"] in offsets:
                raise PositionInvalid(f"{text[:80]!r} is no position", next_step="Write it like 0:1234 or a-0:7,a-1:9")
            offsets[match["partition"]] = int(match["offset"])
        return cls.of(offsets)

    @classmethod
    def _parse_opaque(cls, text: str) -> Position:
        texts = text.split(",")
        if not all(map(_OPAQUE.fullmatch, texts)):
            raise PositionInvalid(f"{text[:80]!r} is no position", next_step="Give it as the server gave it")
        return cls(opaque=tuple(sorted(set(texts))))

    def __str__(self) -> str:
        shown = self.opaque or (f"{partition}:{offset}" for partition, offset in self.parts)
        return ",".join(shown) or START_TEXT

    def __getitem__(self, partition: str) -> int:
        return self.as_dict().get(partition, 0)

    def as_dict(self) -> dict[str, int]:
        """The offsets by partition, without zeros."""
        self._check_plain()
        return dict(self.parts)

    def covers(self, other: Position) -> bool:
        """Whether everything before `other` also lies before this position."""
        mine = self.as_dict()
        other._check_plain()
        return all(mine.get(partition, 0) >= offset for partition, offset in other.parts)

    def joined(self, other: Position) -> Position:
        """The least position that covers both. Of opaque positions, both texts: the server joins them."""
        if (self.opaque or other.opaque) and not (self.parts or other.parts):
            return Position(opaque=tuple(sorted({*self.opaque, *other.opaque})))
        mine = self.as_dict()
        other._check_plain()
        return Position.of(mine | {p: max(o, mine.get(p, 0)) for p, o in other.parts})

    def one(self) -> int:
        """The offset in a stream of one partition, whatever its name; PositionInvalid for several partitions."""
        self._check_plain()
        if len(self.parts) > 1:
            raise PositionInvalid(
                f"{str(self)[:80]!r} names several partitions, where one was expected",
                next_step="Ask for a position of the journal that is read here",
            )
        return self.parts[0][1] if self.parts else 0

    def events(self) -> int:
        """The number of events before this position, over all partitions."""
        self._check_plain()
        return sum(offset for _, offset in self.parts)

    def _check_plain(self) -> None:
        if self.opaque:
            raise PositionInvalid(
                "This position is opaque: what it stands for only the server knows that gave it",
                next_step="Give it as min_position to a server, or ask with a token that is not scoped",
            )


def _check(partition: str, offset: int) -> None:
    if not isinstance(partition, str) or not _PARTITION.fullmatch(partition):
        raise PositionInvalid(
            f"{partition!r} is no name of a partition", next_step="Use letters, digits, '.', '_', '-'"
        )
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= OFFSET_MAX:
        raise PositionInvalid(f"{offset!r} is no offset in partition {partition}", next_step="Offsets count from 0")
