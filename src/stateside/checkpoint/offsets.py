"""Sources' offsets, as they stand in `offsets/N`, read as a position. What a source writes there is its own affair:

    source         its offset                                position
    the journal    {"journal": "6f7e…", "0": 7}              0:7
    merged logs    {"journal": …, "0": 7, "1": 9, "a.2": 4}  0:7,1:9,a.2:4        (partitions; then logs of nodes)
    Kafka          {"calls": {"0": 12, "1": 9}}              calls-0:12,calls-1:9
    files          {"logOffset": 3}                          files:4              (so many batches of files)
    rate, socket   5                                         offset:5             (rate: so many seconds)
    rate by batch  {"offset": 20, "timestamp": 1000}         offset:20            (format rate-micro-batch)
    in Python      {"a": 7}, whole numbers from 0 on         a:7
    any            - (nothing was read yet)                  start
    any other                                                start

A position is a promise that everything before it is in the answer. So of an offset that is not understood it promises
nothing, and a reader who asks for more waits in vain but is never told a lie.

A query with several sources has a line for each, and partitions are told apart by the line's number: `s0.calls-0`,
`s1.files`; or by the source's name, where it was given one: `orders.calls-0`. Only the journal's keep their names, so
that its receipts can be waited for; if several sources read it (a join of its events with one another), it stands where
the slowest of them does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stateside.errors import PositionInvalid
from stateside.positions import Position

NOTHING_YET = "-"
_JOURNAL_UNREAD = {"0": 0}  # where there was no journal yet, there was no id either


def read_position(lines: Sequence[str]) -> Position:
    """The position that a batch ends at, of the lines of its sources.

    ValueError for a line that is no JSON, PositionInvalid for a journal's offset that is none: such a file is damaged.
    """
    return _position(lines, [f"s{number}" for number in range(len(lines))])


def read_named_position(lines: Sequence[str]) -> Position:
    """The same of lines that begin with the source's name, or its number if it has none, and a colon."""
    pairs = [line.partition(":") for line in lines]
    if not all(colon for _, colon, _ in pairs):
        raise ValueError("a source's line has no name")
    pairs.sort(key=lambda pair: (not pair[0].isdigit(), len(pair[0]), pair[0]))
    names = [f"s{name}" if name.isdigit() else name for name, _, _ in pairs]
    return _position([offset for _, _, offset in pairs], names)


def read_journals(lines: Sequence[str]) -> set[str]:
    """The ids of the journals that a batch has read from, of the lines of its sources, without their names.

    ValueError for a line that is no JSON.
    """
    offsets = [json.loads(line) for line in lines if line != NOTHING_YET]
    return {str(offset["journal"]) for offset in offsets if isinstance(offset, dict) and offset.get("journal")}


def _position(lines: Sequence[str], names: Sequence[str]) -> Position:
    offsets = [None if line == NOTHING_YET else json.loads(line) for line in lines]
    if len(offsets) == 1:
        return _understood(_parts(offsets[0]))
    of_journal = [_is_journal(offset) for offset in offsets] if _journals(offsets) == 1 else [False] * len(offsets)
    journals = [_parts(offset) for offset, is_journal in zip(offsets, of_journal, strict=True) if is_journal]
    position = _slowest(journals) if journals else Position.start()
    for source, offset, is_journal in zip(names, offsets, of_journal, strict=True):
        if not is_journal:
            named = {f"{source}.{partition}": at for partition, at in _parts(offset).items()}
            position = position.joined(_understood(named))
    return position


def _parts(offset: Any) -> dict[str, Any]:
    """One source's partitions with their offsets."""
    match offset:
        case {"journal": str()}:
            partitions = {name: at for name, at in offset.items() if name != "journal"}
            return Position.of(partitions).as_dict()  # refuses what is no offset: this format is our own
        case {"logOffset": int(number)} if len(offset) == 1:
            return {"files": number + 1}
        case {"offset": int(number), "timestamp": int()} if len(offset) == 2:
            return {"offset": number}
        case dict() if offset and all(isinstance(part, dict) for part in offset.values()):
            return {f"{topic}-{number}": at for topic, part in offset.items() for number, at in part.items()}
        case dict():
            return offset
        case bool():
            return {}
        case int():
            return {"offset": offset}
    return {}


def _understood(parts: Mapping[str, Any]) -> Position:
    """The position of partitions that somebody else named and counted; what is no position promises nothing."""
    try:
        return Position.of(parts)
    except PositionInvalid:
        return Position.start()


def _is_journal(offset: Any) -> bool:
    return isinstance(offset, dict) and ("journal" in offset or offset == _JOURNAL_UNREAD)


def _journals(offsets: Iterable[Any]) -> int:
    """How many journals are read."""
    return len({offset["journal"] for offset in offsets if isinstance(offset, dict) and "journal" in offset})


def _slowest(journals: Sequence[Mapping[str, int]]) -> Position:
    """The position that every one of them covers."""
    first, *others = journals
    return Position.of({name: min([at, *(other.get(name, 0) for other in others)]) for name, at in first.items()})
