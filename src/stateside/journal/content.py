"""Content: what an event says, by which the same event again is told from another one under its id.

That is entity, type, time, payload, tags and the schema's version; not what the journal gives (sequence, time of the
append), nor metadata, which tell of a delivery: a producer that repeats an append may give it another trace id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from stateside.errors import EventsGone, IdConflict, JournalCorrupt, StatesideError

GAP_MAX = 1_000  # events that are read over rather than looked up by themselves
_SHOWN_MAX = 5


class Place(NamedTuple):
    """Where an event stands: the partition or the node's log, and the offset there."""

    log: str
    offset: int


class Content(NamedTuple):
    """What an event says."""

    entity: str
    type: str
    time_us: int
    tags: tuple[str, ...]
    version: int
    payload: str
    data: bytes | None


Found = Content | StatesideError  # of a stored event; an error if it cannot be read
Read = Callable[[int, int], Iterator[tuple[Sequence[int], pa.RecordBatch]]]  # events of an offset range, with offsets


def content_of(batch: pa.RecordBatch, row: int) -> Content:
    """The content of one event of a batch in the journal's schema."""
    entity, type_, time, tags, version, payload, data = (batch.column(name)[row] for name in _NAMES)
    return Content(
        entity.as_py(), type_.as_py(), time.value, tuple(tags.as_py()), version.as_py(), payload.as_py(), data.as_py()
    )


def is_same(one: Content, other: Content, *, any_time: bool = False) -> bool:
    """Whether two events say the same. `any_time`: the producer gave none, so that each append has its own."""
    if any_time:
        other = other._replace(time_us=one.time_us)
    if one == other:
        return True
    return one._replace(payload="") == other._replace(payload="") and _plain(one.payload) == _plain(other.payload)


def read_contents(read: Read, log: str, offsets: Collection[int]) -> dict[Place, Found]:
    """The contents of the events at these offsets of a log. One that was dropped is left out: its content is gone.

    Events that lie near each other are read at once.
    """
    found: dict[Place, Found] = {}
    for near in _runs(sorted(offsets)):
        found |= _read_run(read, log, near)
    return found


def _read_run(read: Read, log: str, offsets: Sequence[int]) -> dict[Place, Found]:
    wanted, found = frozenset(offsets), dict[Place, Found]()
    try:
        for stand_at, batch in read(offsets[0], offsets[-1] + 1):
            for row, offset in enumerate(stand_at):
                if offset in wanted:
                    found[Place(log, offset)] = content_of(batch, row)
    except (EventsGone, JournalCorrupt) as error:
        if len(offsets) > 1:  # each by itself: what others of them say can be told
            for offset in offsets:
                found |= _read_run(read, log, [offset])
        elif isinstance(error, JournalCorrupt):
            found[Place(log, offsets[0])] = error
    return found


def conflict(events: Mapping[int, str], stored: bool = True) -> IdConflict:
    """The error for events of an append, by their numbers in it, whose ids belong to events that say something else."""
    ids = list(events.values())
    more = f" and {len(ids) - _SHOWN_MAX} more" if len(ids) > _SHOWN_MAX else ""
    shown = ", ".join(map(repr, ids[:_SHOWN_MAX])) + more
    whose = "is that of an event that is stored already" if stored else "is there twice in one append"
    return IdConflict(
        f"The id {shown} {whose}, with other content",
        next_step="Nothing of the append was stored. Give a new event an id of its own; "
        "repeat a stored one exactly as it was",
        events=tuple(events),
        ids=tuple(ids),
    )


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    """The offsets, in order, in groups of those that lie near each other."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > GAP_MAX:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run


def _plain(payload: str) -> Any:
    """The same for all ways to write one JSON object."""
    return json.dumps(json.loads(payload), sort_keys=True)


_NAMES = ("entity", "type", "time", "tags", "version", "payload", "data")
