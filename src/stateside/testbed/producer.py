"""The producer: a process of its own, `python -m stateside.testbed.producer DESK`, and the files that steer it.

The producer appends the load's events with a feeder, and ends when answers cover all of them. Its only state is the
journal: after a kill, or an error of a journal that is away, the producer reads the journal and continues.

DESK/load.json      the events to append, and the servers to ask
DESK/pace.json      the speed of time, and the share at which it stops, so that events are left for every fault
DESK/done.json      the share of the time that has passed, written by the producer
DESK/drained        exists once everything is appended and answered; holds the answers' watermark
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from stateside.billing.model import GRACE_US, VIEW
from stateside.core.errors import InputError, StatesideError
from stateside.core.layout import Layout
from stateside.core.processes import EXIT_FINAL
from stateside.core.storage import write_atomically
from stateside.serving.clients import Client
from stateside.serving.stamp import Stamp
from stateside.testbed.feeder import NUDGE_S, Feeder, Load

PAUSE_S = 1.0  # before the next attempt at a journal that was away
LOOK_S = 0.25
HURRY = 5.0  # times the normal speed
STANDS = 0.0  # time is stopped
BEFORE = 0.15  # share of the time before the first fault: no period has closed by then
CLOSED = 0.5  # share of the time after which every first period has closed, including its grace period


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLoad(Load):
    """The events to append, the application's folder, and the servers to ask."""

    folder: str
    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Desk:
    """The folder through which a scenario and its producer communicate. No fault reaches it."""

    folder: Path

    def lay(self, load: ProducerLoad) -> None:
        """Write the load; allow the events before the first fault."""
        self.allow(BEFORE)
        write_atomically(self.folder / "load.json", json.dumps(asdict(load)).encode())

    def load(self) -> ProducerLoad:
        content = json.loads((self.folder / "load.json").read_bytes())
        return ProducerLoad(**content | {"urls": tuple(content["urls"])})

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


class Producer:
    """Appends a load, whatever happens to the journal meanwhile."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._load = desk, desk.load()
        self._client = Client(self._load.urls, deadline_s=1.0)
        self._stamp: Stamp | None = None

    def run(self) -> None:
        """Append until answers cover everything; InputError if the journal has events of another load."""
        while not self._desk.drained():
            try:
                self._append_all()
            except InputError:
                raise
            except (StatesideError, OSError) as error:
                print(f"The journal is looked at again in {PAUSE_S:g} s: {error}", file=sys.stderr, flush=True)
                time.sleep(PAUSE_S)

    def _append_all(self) -> None:
        load, layout = self._load, Layout(Path(self._load.folder))
        feeder = Feeder(load.generator(), layout, load.seconds, self._watermark_us, of_all=True, pace=self._pace)
        try:
            feeder.start()
            while not feeder.done:
                self._look()
                time.sleep(LOOK_S)
            feeder.stop()
            self._drain(feeder)
        finally:
            feeder.close()

    def _drain(self, feeder: Feeder) -> None:
        """Wait for the end. A restarted query needs one more event to close due windows."""
        nudged_s, last_us = time.monotonic(), feeder.event_time_us_max // 1_000 * 1_000 - GRACE_US
        while not self._desk.drained():
            self._look()
            reached = self._stamp is not None and self._stamp.position.covers(feeder.end)
            if reached and self._watermark_us() >= last_us:
                self._desk.note_drained(last_us)
            elif reached and time.monotonic() - nudged_s >= NUDGE_S:
                feeder.nudge()
                nudged_s = time.monotonic()
            time.sleep(LOOK_S)

    def _pace(self, share_done: float) -> float:
        self._desk.note_done(share_done)
        return self._desk.pace(share_done)

    def _look(self) -> None:
        """Update the last stamp; without an answer the old one stays."""
        try:
            self._stamp = self._client.rows(VIEW, "c0", source="live").stamp
        except StatesideError:
            return

    def _watermark_us(self) -> int:
        return 0 if self._stamp is None else self._stamp.watermark_us


def main() -> None:
    try:
        Producer(Desk(Path(sys.argv[1]))).run()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(EXIT_FINAL)


if __name__ == "__main__":
    main()
