"""Reading undisturbed by retention: what is read while segments go is read again, so that nobody takes it for a loss.

A drop lays the journal's base and deletes segments, the oldest first (`retention`). So it came between if the base or
the first segment is another one than before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stateside.errors import EventsGone, JournalCorrupt
from stateside.journal import base, segment
from stateside.journal.nodes.log import node_logs
from stateside.journal.upkeep.place import Place

Result = TypeVar("Result")


def anything(found: object) -> bool:
    """Whatever was read is right."""
    return True


def undisturbed(place: Place, read: Callable[[], Result], is_right: Callable[[Result], bool] = anything) -> Result:
    """What `read` gives; once more if it misses something, or that is not right, and a drop came between."""
    while True:
        before = _beginnings(place)
        try:
            found = read()
        except (FileNotFoundError, EventsGone):
            if _beginnings(place) == before:
                raise
        else:
            if is_right(found) or _beginnings(place) == before:
                return found


def _beginnings(place: Place) -> list[tuple[int | None, int | None]]:
    """Where each of the place's journals begins: by its segments, and by its base."""
    logs = node_logs(place.directory).values() if place.has_nodes else ()
    directories = [*(part.directory for part in place.partitions().values()), *(log.directory for log in logs)]
    return [(_first(directory), _base(directory)) for directory in directories]


def _first(directory: Path) -> int | None:
    return next(iter(segment.segment_offsets(directory)), None)


def _base(directory: Path) -> int | None:
    """None if it cannot be read: who reads the journal tells that."""
    with suppress(JournalCorrupt):
        return base.offset(directory)
    return None
