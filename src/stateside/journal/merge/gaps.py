"""Gaps: entities whose next event is missing, and how a merger tells other processes of them.

The file `gaps.json` in the folder of the merged stream: how many there are, and those that have waited for the longest.
It is written when they change, and not synced: after a loss of power the next merger writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from stateside.core.storage import write_atomically

SHOWN_MAX: Final = 1_000
_NAME: Final = "gaps.json"


@dataclass(frozen=True, slots=True)
class Gap:
    """An entity whose next event is missing, since its first waiting one was appended."""

    entity: str
    missing_sequence: int
    since_us: int


@dataclass(frozen=True, slots=True)
class Gaps:
    """So many there are; `shown` has those that have waited for the longest."""

    count: int = 0
    shown: tuple[Gap, ...] = ()

    @classmethod
    def of(cls, gaps: Sequence[Gap]) -> Gaps:
        """All gaps, for the longest first."""
        return cls(len(gaps), tuple(gaps[:SHOWN_MAX]))

    @classmethod
    def read(cls, merged: Path) -> Gaps:
        """As the merger of the stream in this folder told last."""
        try:
            told = json.loads((merged / _NAME).read_bytes())
        except (FileNotFoundError, ValueError):  # after a loss of power there may be nothing in it
            return cls()
        return cls(told["count"], tuple(Gap(**gap) for gap in told["gaps"]))

    def write(self, merged: Path) -> None:
        """Tell other processes."""
        content = {"count": self.count, "gaps": [asdict(gap) for gap in self.shown]}
        write_atomically(merged / _NAME, json.dumps(content).encode(), durable=False)
