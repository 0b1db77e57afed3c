"""The load: what the producer of a scenario appends, how fast, and how far it has come. Processes share it as files.

DESK/load.json      what to append, and whom to ask
DESK/pace.json      how fast time passes, and up to where: there it stands, so that events are left for every fault
DESK/done.json      how much of the time has passed, as the producer notes
DESK/drained        everything is appended, and answers have all of it; the watermark that they have it under
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stateside.billing.generator import Generator, Shares
from stateside.core.storage import write_atomically

HURRY = 5.0  # so many times as fast
STANDS = 0.0  # it stands
BEFORE = 0.15  # the share of the events before the first fault: no period has closed by then
CLOSED = 0.5  # the share of the time after which everybody's first period has closed, with its grace
BAD_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class ChaosLoad:
    """Some customers' events through compressed months, the same at every run with the same seed."""

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
        """Makes the events, and says what must come out."""
        shares = Shares(late=self.late_share, duplicate=self.duplicate_share, bad=BAD_SHARE)
        return Generator(self.seed, self.customers, self.events_per_period, self.periods, shares)


@dataclass(frozen=True, slots=True)
class Desk:
    """The folder in which the scenario and its producer tell each other how it goes. No fault reaches it."""

    folder: Path

    def lay(self, load: ChaosLoad) -> None:
        """Say what is to be appended: for now, what comes before the first fault."""
        self.allow(BEFORE)
        write_atomically(self.folder / "load.json", json.dumps(asdict(load)).encode())

    def load(self) -> ChaosLoad:
        """What is to be appended."""
        content = json.loads((self.folder / "load.json").read_bytes())
        return ChaosLoad(**content | {"urls": tuple(content["urls"])})

    def allow(self, share: float) -> None:
        """Let time pass up to this share of it, and stand there."""
        self._set_pace(1.0, share)

    def go_on(self, parts: int) -> None:
        """Let one of so many parts of the time that is left pass, from where it is now, and stand there."""
        done = self.done()
        self.allow(done + (1.0 - done) / parts)

    def hurry(self) -> None:
        """Let time pass faster from now on, to its end: nothing bad is going to happen any more."""
        self._set_pace(HURRY, 1.0)

    def pace(self, share_done: float) -> float:
        """How many times as fast time passes, when so much of it has passed."""
        told = json.loads((self.folder / "pace.json").read_bytes())
        return float(told["pace"]) if share_done < told["until"] else STANDS

    def _set_pace(self, pace: float, until: float) -> None:
        write_atomically(self.folder / "pace.json", json.dumps({"pace": pace, "until": until}).encode())

    def note_done(self, share: float) -> None:
        """Say how much of the time has passed. Said often, and not made durable: only the newest counts."""
        (self.folder / "done.new").write_text(json.dumps({"share": share}))
        (self.folder / "done.new").rename(self.folder / "done.json")

    def done(self) -> float:
        """How much of the time has passed."""
        try:
            return float(json.loads((self.folder / "done.json").read_bytes())["share"])
        except FileNotFoundError:
            return 0.0

    def note_drained(self, watermark_us: int) -> None:
        """Say that answers have everything, under a watermark as late as this one."""
        write_atomically(self.folder / "drained", json.dumps({"watermark_us": watermark_us}).encode())

    def drained(self) -> bool:
        """Whether answers have everything."""
        return (self.folder / "drained").exists()

    def watermark_us(self) -> int:
        """The watermark under which answers had everything, when they had."""
        return int(json.loads((self.folder / "drained").read_bytes())["watermark_us"])
