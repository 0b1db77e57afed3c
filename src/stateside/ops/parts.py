"""Parts of a system that runs on this machine: each a process with a name and a log, and all that it started itself.

A part leads a session of its own (`processes.Child` sees to that), and what it starts belongs to the same session: the
executors of a Spark worker, and their Python workers. So all of it is found by that session's number, in `/proc`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stateside.errors import SetupError
from stateside.processes import Child

MEMBERS_S_MAX = 10.0
_LOOK_S = 0.1


class Part:
    """A process that may be stopped, killed, and started again as it was."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        self._command, self._environment = list(command), dict(environment)
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process id of the part, which has been started."""
        assert self._child is not None, "it was started"
        return self._child.pid

    def runs(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.returncode() is None

    def last_words(self) -> str:
        """The last line of its log."""
        return self._child.last_words() if self._child else "none"

    def start(self) -> None:
        """Start the process; it is not waited for."""
        assert not self.runs(), f"{self.name} runs already"
        self._child = Child(self._command, self.log, environment=self._environment)

    def stop(self) -> None:
        """Stop it in order, and see to it that nothing of what it started is left. It may have ended already."""
        if self._child is None:
            return
        self._child.stop()
        end_members(self.pid)

    def kill(self) -> None:
        """End it and all that it started by SIGKILL, at once, as the crash of its machine would."""
        signal_members(self.pid, signal.SIGKILL)
        assert self._child is not None, "it was started"
        self._child.stop(wait_s=0)
        signal_members(self.pid, signal.SIGKILL)  # what it may have started meanwhile


def signal_members(session: int, number: signal.Signals) -> None:
    """Send a signal to each process of a session."""
    for pid in members(session):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, number)


def end_members(session: int) -> None:
    """Give what is left of a session, whose leader was stopped, some time to end by itself, and kill it after that."""
    deadline = time.monotonic() + MEMBERS_S_MAX
    while members(session) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    signal_members(session, signal.SIGKILL)


def members(session: int, proc: Path = Path("/proc")) -> list[int]:
    """The processes of a session that have not ended; none where the system has no `/proc`."""
    found = []
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            # The command's name, in brackets, may have spaces: state, parent, group, session come behind the last one.
            state, _, _, of, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(process.name))
    return sorted(found)


def wait_until(what: str, condition: Callable[[], bool], parts: Iterable[Part], wait_s: float) -> None:
    """Until the condition holds; SetupError if it does not in time, or if one of the parts has ended before."""
    parts, deadline = list(parts), time.monotonic() + wait_s
    while not condition():
        ended = [part for part in parts if not part.runs()]
        if ended or time.monotonic() > deadline:
            told = (ended or parts)[0]
            how = f"{told.name} has ended" if ended else f"that took longer than {wait_s:.0f} s"
            raise SetupError(
                f"{what} did not come about: {how}; its last words: {told.last_words()}",
                where=str(told.log),
                next_step="Read that log, mend the cause, and start it again",
            )
        time.sleep(_LOOK_S)
