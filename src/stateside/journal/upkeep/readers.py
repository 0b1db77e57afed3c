"""Readers: who still needs a journal's events, and from which position on. Retention drops nothing that one needs.

A reader that is not part of Stateside registers itself, as `readers/NAME.json` in the journal's folder, and again
whenever it has come further. Others are known anyway: the views of queries here, those of Spark to who collects them
(`ops.journal_readers`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import JournalCorrupt, PositionInvalid, RequestInvalid
from stateside.journal.queries import generation
from stateside.journal.queries.views import Views
from stateside.journal.upkeep.place import Place
from stateside.positions import Position
from stateside.storage import write_atomically

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a journal, and up to where it has."""

    name: str
    position: Position


def register(place: Place, name: str, position: Position) -> None:
    """Let nothing be dropped that this reader has not read: it has read up to the position."""
    write_atomically(_path(place, name), json.dumps({"position": str(position)}).encode())


def unregister(place: Place, name: str) -> None:
    """Forget a reader that reads no more."""
    _path(place, name).unlink(missing_ok=True)


def readers(place: Place) -> list[Reader]:
    """The registered ones, and the journal's own views, if there are any."""
    found = registered(place)
    if generation.current(place.views) is not None:
        with Views(place.stream(), place.views) as views:
            found.append(Reader("the views of queries", views.position()))
    return found


def registered(place: Place) -> list[Reader]:
    """Those that registered themselves."""
    return [Reader(path.stem, _position(path)) for path in sorted((place.directory / "readers").glob("*.json"))]


def _path(place: Place, name: str) -> Path:
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise RequestInvalid(f"{name!r:.120} is no name of a reader", next_step="Use letters, digits, '.', '_', '-'")
    return place.directory / "readers" / f"{name}.json"


def _position(path: Path) -> Position:
    try:
        return Position.parse(json.loads(path.read_bytes())["position"])
    except (ValueError, LookupError, TypeError, AttributeError, PositionInvalid) as error:
        raise JournalCorrupt(
            f"A reader's position cannot be read: {error!r}",
            where=str(path),
            next_step="Let the reader register itself again, or delete the file if it reads no more",
        ) from error
