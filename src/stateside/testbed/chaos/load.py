"""The load of a scenario: the producer's events, pace and progress. Shared between processes as files.

DESK/load.json      the events to append, and the servers to ask
DESK/pace.json      the speed of time, and the share at which it stops, so that events are left for every fault
DESK/done.json      the share of the time that has passed, written by the producer
DESK/drained        exists once everything is appended and answered; holds the answers' watermark
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stateside.billing.generator import Generator, Shares
from stateside.core.storage import write_atomically

HURRY = 5.0  # times the normal speed
STANDS = 0.0  # time is stopped
BEFORE = 0.15  # share of the time before the first fault: no period has closed by then
CLOSED = 0.5  # share of the time after which every first period has closed, including its grace period
BAD_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class ChaosLoad:
    """Events of some customers through compressed months; the same seed makes the same events."""

    folder: str  # the application's
    urls: tuple[str, ...]
    seconds: float
    customers: int
    seed: int
    events_per_period: int = 20
    periods: int = 3
    late_share: float = 0.03
    duplicate_share: float = 0.01

    def generator(self) -> Generator:
        """The generator of the events and of the expected outcome."""
        shares = Shares(late=self.late_share, duplicate=self.duplicate_share, bad=BAD_SHARE)
        return Generator(self.seed, self.customers, self.events_per_period, self.periods, shares)


@dataclass(frozen=True, slots=True)
class Desk:
    """The folder through which a scenario and its producer communicate. No fault reaches it."""

    folder: Path

    def lay(self, load: ChaosLoad) -> None:
        """Write the load; allow the events before the first fault."""
        self.allow(BEFORE)
        write_atomically(self.folder / "load.json", json.dumps(asdict(load)).encode())

    def load(self) -> ChaosLoad:
        content = json.loads((self.folder / "load.json").read_bytes())
        return ChaosLoad(**content | {"urls": tuple(content["urls"])})

    def allow(self, share: float) -> None:
        """Let time pass up to this share, and stop there."""
        self._set_pace(1.0, share)

    def go_on(self, parts: int) -> None:
        """Let 1/`parts` of the remaining time pass, and stop there."""
        done = self.done()
        self.allow(done + (1.0 - done) / parts)

    def hurry(self) -> None:
        """Let time pass faster, to its end: no more faults follow."""
        self._set_pace(HURRY, 1.0)

    def pace(self, share_done: float) -> float:
        """The speed of time, once this share of it has passed."""
        told = json.loads((self.folder / "pace.json").read_bytes())
        return float(told["pace"]) if share_done < told["until"] else STANDS

    def _set_pace(self, pace: float, until: float) -> None:
        write_atomically(self.folder / "pace.json", json.dumps({"pace": pace, "until": until}).encode())

    def note_done(self, share: float) -> None:
        """Record the share of the time that has passed. Frequent and not durable: only the newest counts."""
        (self.folder / "done.new").write_text(json.dumps({"share": share}))
        (self.folder / "done.new").rename(self.folder / "done.json")

    def done(self) -> float:
        """The share of the time that has passed."""
        try:
            return float(json.loads((self.folder / "done.json").read_bytes())["share"])
        except FileNotFoundError:
            return 0.0

    def note_drained(self, watermark_us: int) -> None:
        """Record that answers cover everything, under a watermark of at least this."""
        write_atomically(self.folder / "drained", json.dumps({"watermark_us": watermark_us}).encode())

    def drained(self) -> bool:
        """Whether answers cover everything."""
        return (self.folder / "drained").exists()

    def watermark_us(self) -> int:
        """The watermark recorded by `note_drained`."""
        return int(json.loads((self.folder / "drained").read_bytes())["watermark_us"])
