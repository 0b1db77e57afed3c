"""A part of the demo as a supervised process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from stateside.errors import PipelineFailed
from stateside.processes import EXIT_FINAL, Child

RESTARTS_MAX = 5  # in a row, each after less than LASTED_S
LASTED_S = 5.0
_ERROR = "Error: "  # how the command line begins the one line that says why it ended


class Supervised:
    """A `stateside` command that is started again when it ends before its time, unless it says that this is no use."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self._name = name
        self._command = [sys.executable, "-m", "stateside", *arguments]
        self._log = log
        self.restarts = 0
        self._in_a_row = 0
        self._start()

    def supervise(self) -> None:
        """Start it again if it has ended; PipelineFailed after too many times, or at once if it cannot run."""
        returncode = self.child.returncode()
        if returncode is None:
            return
        if returncode == EXIT_FINAL:
            raise PipelineFailed(f"The {self._name} cannot run: {self._last_error()}", where=str(self._log))
        self._in_a_row = 0 if time.monotonic() - self._began_s >= LASTED_S else self._in_a_row
        if self._in_a_row == RESTARTS_MAX:
            raise PipelineFailed(
                f"The {self._name} ended {RESTARTS_MAX + 1} times, last with {returncode}:\n{self.child.tail()}",
                where=str(self._log),
            )
        self.restarts += 1
        self._in_a_row += 1
        self._start()

    def _start(self) -> None:
        self._began_s = time.monotonic()
        self.child = Child(self._command, self._log)

    def _last_error(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line.removeprefix(_ERROR).rstrip(".") for line in lines if line.startswith(_ERROR)]
        return errors[-1] if errors else self.child.tail(1)
