"""Trimming: from the nodes' logs goes what the merged stream has, by the rules of retention (`retention`).

The merger is a log's reader: what it says is done lies in the stream for good, and its last frames say so durably. The
newest segment of a log stays, and so does what a reader needs that registered itself with the log's own folder. Of what
is gone the log's base keeps every entity's last sequence, so that nodes go on giving sequences without gaps, even if
their indexes are made anew. The ids of trimmed events they find in the stream (`nodes.trimmed`).
"""

from __future__ import annotations

from pathlib import Path

from stateside.errors import RequestInvalid, StatesideError
from stateside.journal.merge import MergedStream
from stateside.journal.nodes.log import node_logs
from stateside.journal.upkeep.place import Place
from stateside.journal.upkeep.readers import registered
from stateside.journal.upkeep.retention import Dropped, drop, offset_before


def trim(folder: Path, appended_before_us: int | None = None) -> dict[str, Dropped]:
    """Drop the segments of all logs that are wholly merged, and wholly appended before a time; what went, by log.

    If a log cannot be trimmed, the others are all the same, and then its error is raised.
    """
    stream = MergedStream(folder)
    if stream.id() is None:
        raise RequestInvalid(
            "There is no merged stream here, so all of the logs is needed",
            where=str(folder),
            next_step="Start `stateside journal merge` first",
        )
    done, dropped = stream.sources().done, {}
    errors: list[StatesideError] = []
    for name, log in node_logs(folder).items():
        place = Place(log.directory)
        try:
            before = done[name] if appended_before_us is None else offset_before(place, appended_before_us)
            dropped[name] = drop(place, min(before, done[name]), registered(place))
        except StatesideError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return dropped
