"""The producer of a scenario, a process of its own: `python -m stateside.testbed.chaos.producer DESK`.

The producer appends the load's events as the demo's feeder does, and ends when answers cover all of them. Its only
state is the journal: after a kill, or an error of a journal that is away, the producer reads the journal and continues.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from stateside.billing.model import GRACE_US, VIEW
from stateside.core.errors import InputError, StatesideError
from stateside.core.layout import Layout
from stateside.core.processes import EXIT_FINAL
from stateside.serving.clients import Client
from stateside.serving.stamp import Stamp
from stateside.testbed.chaos.load import Desk
from stateside.testbed.feeder import NUDGE_S, Feeder

PAUSE_S = 1.0  # before the next attempt at a journal that was away
LOOK_S = 0.25


class ChaosProducer:
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
        load = self._load
        layout, generator = Layout(Path(load.folder)), load.generator()
        feeder = Feeder(generator, layout, load.seconds, self._watermark_us, of_all=True, pace=self._pace)
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
        ChaosProducer(Desk(Path(sys.argv[1]))).run()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(EXIT_FINAL)


if __name__ == "__main__":
    main()
