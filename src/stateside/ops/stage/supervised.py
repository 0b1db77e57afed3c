"""A part of the demo, or of a scenario of chaos, as a supervised process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from stateside.errors import PipelineFailed
from stateside.ops.parts import end_members, signal_members
from stateside.processes import EXIT_FINAL, SAFE_PATH, Child

RESTARTS_MAX = 5  # in a row, each after less than LASTED_S
LASTED_S = 5.0
_ERROR = "Error: "  # how the command line begins the one line that says why it ended


class Supervised:
    """A `stateside` command that is started again when it ends before its time, unless it says that this is no use.

    It imports nothing from the current folder, which is no part of a demo. Signals go to all that it has started, too:
    to Spark's JVM and the Python workers of that, to a server's workers.
    """

    def __init__(self, name: str, arguments: list[str], log: Path, *, module: str = "stateside") -> None:
        self.name = name
        self._command = [sys.executable, "-m", module, *arguments]
        self.log = log
        self.restarts = 0
        self.caused = 0  # so many of them somebody meant to happen
        self.killed_s: list[float] = []  # when it was killed on purpose
        self._in_a_row = 0
        self._start()

    def supervise(self) -> None:
        """Start it again if it has ended; PipelineFailed after too many times, or at once if it cannot run."""
        returncode = self.child.returncode()
        if returncode is None:
            return
        if returncode == EXIT_FINAL:
            raise PipelineFailed(f"The {self.name} cannot run: {self.last_error()}", where=str(self.log))
        self._in_a_row = 0 if time.monotonic() - self._began_s >= LASTED_S else self._in_a_row
        if self._in_a_row == RESTARTS_MAX:
            raise PipelineFailed(
                f"The {self.name} ended {RESTARTS_MAX + 1} times, last with {returncode}:\n{self.child.tail()}",
                where=str(self.log),
            )
        self.restarts += 1
        self._in_a_row += 1
        self._start()

    def kill(self) -> None:
        """End it by SIGKILL, as the crash of its machine would. It is not started again before `supervise`."""
        if self.child.returncode() is None:  # one that has ended by itself is not killed any more
            self.caused += 1
        self.killed_s.append(time.monotonic())
        self.pause()  # so that nobody who sees another one die says a last word
        signal_members(self.child.pid, signal.SIGKILL)
        self.child.stop(wait_s=0)

    def pause(self) -> None:
        """Stop it where it is, as a machine does that does not get to run any more."""
        signal_members(self.child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause. It may have ended meanwhile."""
        signal_members(self.child.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop it in order, and see to it that nothing of what it started is left. It may have ended already."""
        self.resume()
        self.child.stop()
        end_members(self.child.pid)

    def _start(self) -> None:
        self._began_s = time.monotonic()
        self.child = Child(self._command, self.log, environment={**os.environ, **SAFE_PATH})

    def log_text(self) -> str:
        """All that it has said so far."""
        return self.log.read_text(errors="replace")

    def last_error(self) -> str:
        """The last sentence with which it ended, or the last line that it said."""
        lines = self.log_text().splitlines()
        errors = [line.removeprefix(_ERROR).rstrip(".") for line in lines if line.startswith(_ERROR)]
        return errors[-1] if errors else self.child.tail(1)
