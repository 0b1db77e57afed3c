"""The heartbeat of a running view: it tells an idle job, whose last batch is still fresh, from a dead one.

The runner writes it beside the checkpoint a few times a second; readers take it as it is, and its absence as silence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stateside.positions import Position

State = Literal["running", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """At `time_us` the runner was in this state, and the journal ended at `journal_end`."""

    time_us: int
    journal_end: Position
    state: State

    def as_json(self) -> bytes:
        """The file's content."""
        return json.dumps({"time_us": self.time_us, "journal_end": str(self.journal_end), "state": self.state}).encode()

    @classmethod
    def load(cls, path: Path) -> Heartbeat | None:
        """The heartbeat in a file; None where there is none."""
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        return cls(document["time_us"], Position.parse(document["journal_end"]), document["state"])
