"""Parts of a system that runs on this machine: each a process with a name and a log, and all that it started itself.

A part leads a session of its own (`processes.Child` sees to that), and what it starts belongs to the same session: the
executors of a Spark worker, and their Python workers. So all of it is found by that session's number, in `/proc`.

A part of the demo, or of a scenario of chaos, as a supervised process.

Interrupts: how Ctrl-C and SIGTERM end a program that has things to put away.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType

from stateside.core.errors import PipelineFailed, SetupError
from stateside.core.processes import EXIT_FINAL, SAFE_PATH, Child

MEMBERS_S_MAX = 10.0
_LOOK_S = 0.1


class Component:
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


def wait_until(what: str, condition: Callable[[], bool], parts: Iterable[Component], wait_s: float) -> None:
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


HEARD = "Stopping, a moment …\n"
_STDERR = 2


class Interrupts:
    """Inside it, Ctrl-C and SIGTERM are noted, and become a KeyboardInterrupt where the program asks for them.

    By itself Python raises it in the middle of anything, such as a library's taking of a lock that is then never given
    back: stopping hung on that. Here, what was begun is finished, and what is put away in the end is put away whole,
    however often somebody presses Ctrl-C.
    """

    def __init__(self) -> None:
        self._came = False
        self._at_once = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """KeyboardInterrupt if a signal came."""
        if self._came:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Let some time pass, then check."""
        time.sleep(seconds)
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In here a signal interrupts in the middle: for long work that shares nothing with what comes after."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            with suppress(OSError):  # by the system call alone: the console, too, has a lock
                os.write(_STDERR, HEARD.encode())
        if self._at_once:
            self._at_once = False
            raise KeyboardInterrupt
