"""The heartbeat of a running view: distinguishes an idle job, whose last batch is still fresh, from a dead one.

The runner writes the heartbeat beside the checkpoint a few times a second; readers treat a missing one as silence.

    running   a batch is in progress
    idle      nothing waits: the last batch is up to date
    holding   the view waits, for the reason in `why`: a sink that is away, the pause before a restart
    stopped   the runner was told to stop
    failed    the view has ended, for the reason in `why`
    removed   the running application no longer declares the view

A killed job wrote none of the last three: a heartbeat older than `SILENCE_S` means that the job is *down*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from stateside.core.json_file import JsonFile
from stateside.core.positions import Position

State = Literal["running", "idle", "holding", "stopped", "failed", "removed"]
ENDED = ("stopped", "failed", "removed")
SILENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """At `time_us` the view was in `state` at `batch`, and its source ended at `source_end`, if known.

    `end_us` is the time of `source_end`, if that is known only for an earlier time.
    """

    time_us: int
    source_end: Position | None
    state: State
    batch: int | None = None
    why: str | None = None
    end_us: int | None = None

    @classmethod
    def load(cls, path: Path) -> Heartbeat | None:
        """The heartbeat in a file; None if the file is missing or damaged, which is silence too."""
        return _FILE.read_if_valid(path)

    def save(self, path: Path) -> None:
        _FILE.write(path, self)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Heartbeat:
        end = document.get("source_end")
        return cls(**{**document, "source_end": None if end is None else Position.parse(end)})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"source_end": None if self.source_end is None else str(self.source_end)}

    def state_at(self, now_us: int) -> State | Literal["down"]:
        """The state as a reader sees it at this time: `down` if the runner ended without a word."""
        silent = now_us - self.time_us > SILENCE_S * 1_000_000
        return "down" if silent and self.state not in ENDED else self.state

    def outage(self, now_us: int) -> str | None:
        """Why no newer batch comes, in a sentence, and since when; None while the job runs."""
        since = f"{datetime.fromtimestamp(self.time_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return {
            "down": f"The job is down: it gave its last sign of life at {since}",
            "stopped": f"The job was stopped at {since}",
            "failed": f"The job failed at {since}",
            "removed": f"The application does not declare this view any more; its job stopped at {since}",
            "holding": "The job waits, and its log says for what",
        }.get(self.state_at(now_us))


_FILE = JsonFile("The heartbeat", Heartbeat.parse, Heartbeat.as_dict, durable=False, make_folder=False)
