"""Gaps: entities whose next event is missing, published by the merger for other processes.

The file `gaps.json` in the folder of the merged stream has the number of gaps and the oldest 1,000 of them. The merger
writes the file when the gaps change, without a sync: after a loss of power the next merger writes the file again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from stateside.core.json_file import JsonFile

SHOWN_MAX: Final = 1_000
_NAME: Final = "gaps.json"


@dataclass(frozen=True, slots=True)
class Gap:
    """An entity whose next event is missing. `since_us`: when the entity's first waiting event was appended."""

    entity: str
    missing_sequence: int
    since_us: int


@dataclass(frozen=True, slots=True)
class Gaps:
    """The number of gaps, and the oldest ones in `shown`."""

    count: int = 0
    shown: tuple[Gap, ...] = ()

    @classmethod
    def of(cls, gaps: Sequence[Gap]) -> Gaps:
        """`gaps`: all gaps, oldest first."""
        return cls(len(gaps), tuple(gaps[:SHOWN_MAX]))

    @classmethod
    def read(cls, merged: Path) -> Gaps:
        """The gaps last published by the merger of the stream in this folder."""
        return _GAPS.read_if_valid(merged / _NAME) or cls()

    def write(self, merged: Path) -> None:
        """Publish the gaps for other processes."""
        _GAPS.write(merged / _NAME, self)


_GAPS = JsonFile(
    "The gaps",
    lambda document: Gaps(document["count"], tuple(Gap(**gap) for gap in document["gaps"])),
    lambda gaps: {"count": gaps.count, "gaps": [asdict(gap) for gap in gaps.shown]},
    durable=False,
)
