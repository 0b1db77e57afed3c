"""Components: processes of a local system with a name and a log, their supervision, and interrupts.

Each component leads a session of its own (`core.processes.Child`), and its descendants belong to the same session, such
as the executors of a Spark worker and their Python workers. So `/proc` lists all of them by the session's id.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from stateside.core import wait
from stateside.core.errors import PipelineFailed, SetupError
from stateside.core.processes import EXIT_FINAL, SAFE_PATH, Child

MEMBERS_S_MAX = 10.0
_LOOK_S = 0.1


class Startable(ABC):
    """Started at the beginning of a `with`, stopped at its end, and after a start that fails."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Component(Startable):
    """A process that can be stopped, killed, and restarted unchanged."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        self._command, self._environment = list(command), dict(environment)
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "it was started"
        return self._child.pid

    def runs(self) -> bool:
        return self._child is not None and self._child.returncode() is None

    def last_words(self) -> str:
        """The last line of its log."""
        return self._child.last_words() if self._child else "none"

    def start(self) -> None:
        """Start the process, without waiting."""
        assert not self.runs(), f"{self.name} runs already"
        self._child = Child(self._command, self.log, environment=self._environment)

    def stop(self) -> None:
        """Stop the process in order, and end all leftover descendants. The process may have ended already."""
        if self._child is None:
            return
        self._child.stop()
        end_members(self.pid)

    def kill(self) -> None:
        """End the process and its descendants by SIGKILL, at once, as a machine's crash would."""
        signal_members(self.pid, signal.SIGKILL)
        assert self._child is not None, "it was started"
        self._child.stop(wait_s=0)
        signal_members(self.pid, signal.SIGKILL)  # descendants started meanwhile


def signal_members(session: int, number: signal.Signals) -> None:
    for pid in members(session):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, number)


def end_members(session: int) -> None:
    """Give the members of a stopped leader's session time to end, then kill them."""
    wait.wait_until(lambda: not members(session), MEMBERS_S_MAX, _LOOK_S)
    signal_members(session, signal.SIGKILL)


def members(session: int, proc: Path = Path("/proc")) -> list[int]:
    """The running processes of a session; empty on systems without `/proc`."""
    found = []
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            # The command's name, in brackets, may have spaces: state, parent, group, session follow the last bracket.
            state, _, _, of, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(process.name))
    return sorted(found)


def wait_until(what: str, condition: Callable[[], bool], parts: Iterable[Component], wait_s: float) -> None:
    """Wait until the condition holds; SetupError after `wait_s`, or if one of the parts has ended."""
    parts = list(parts)

    def outcome() -> bool | list[Component]:
        """Whether the condition holds, or the parts that have ended."""
        return condition() or [part for part in parts if not part.runs()] or False

    found = wait.wait_until(outcome, wait_s, _LOOK_S)
    if found is True:
        return
    told = (found or parts)[0]
    how = f"{told.name} has ended" if found else f"that took longer than {wait_s:.0f} s"
    raise SetupError(
        f"{what} did not come about: {how}; its last words: {told.last_words()}",
        where=str(told.log),
        next_step="Read that log, mend the cause, and start it again",
    )


RESTARTS_MAX = 5  # in a row, each after less than LASTED_S
LASTED_S = 5.0
_ERROR = "Error: "  # the prefix of the command line's error line


class Supervised:
    """A `stateside` command that is restarted after an early end, unless its exit code says that a restart is useless.

    The command imports nothing from the current folder. Signals also reach its descendants: Spark's JVM with its Python
    workers, a server's workers. A `finite` command has ended for good with the exit code 0.
    """

    def __init__(
        self, name: str, arguments: list[str], log: Path, *, module: str = "stateside", finite: bool = False
    ) -> None:
        self.name, self._finite = name, finite
        self._command = [sys.executable, "-m", module, *arguments]
        self.log = log
        self.restarts = 0
        self.caused = 0  # restarts caused by faults
        self.killed_s: list[float] = []  # times of deliberate kills
        self._in_a_row = 0
        self._start()

    def supervise(self) -> None:
        """Restart the command if it has ended; PipelineFailed after too many restarts, or at once if it cannot run."""
        returncode = self.child.returncode()
        if not self.gone():
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

    def gone(self) -> bool:
        """Whether the command has ended, and should not have."""
        code = self.child.returncode()
        return code is not None and not (self._finite and code == 0)

    def kill(self) -> None:
        """End the command by SIGKILL, as a machine's crash would. Only `supervise` restarts it."""
        if self.child.returncode() is None:  # a command that ended by itself counts as unexplained
            self.caused += 1
        self.killed_s.append(time.monotonic())
        self.pause()  # so that no process reacts to the death of another one
        signal_members(self.child.pid, signal.SIGKILL)
        self.child.stop(wait_s=0)

    def pause(self) -> None:
        """Suspend the command, like a stalled machine."""
        signal_members(self.child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused command, which may have ended meanwhile."""
        signal_members(self.child.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop the command in order, and end all leftover descendants. The command may have ended already."""
        self.resume()
        self.child.stop()
        end_members(self.child.pid)

    def _start(self) -> None:
        self._began_s = time.monotonic()
        self.child = Child(self._command, self.log, environment={**os.environ, **SAFE_PATH})

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def last_error(self) -> str:
        """The last error sentence in the log, or its last line."""
        lines = self.log_text().splitlines()
        errors = [line.removeprefix(_ERROR).rstrip(".") for line in lines if line.startswith(_ERROR)]
        return errors[-1] if errors else self.child.tail(1)


HEARD = "Stopping, a moment …\n"
_STDERR = 2


class Interrupts:
    """Inside the `with`, Ctrl-C and SIGTERM are recorded, and raise KeyboardInterrupt only where the program checks.

    Python by itself raises KeyboardInterrupt anywhere, for example while a library takes a lock that is then never
    released: stopping hung on such a lock. With `Interrupts` started work finishes and clean-up completes, however
    often the user presses Ctrl-C.
    """

    def __init__(self) -> None:
        self._came = False
        self._at_once = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """KeyboardInterrupt if a signal came."""
        if self._came:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Sleep, then check."""
        time.sleep(seconds)
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside the `with` a signal interrupts immediately: for long work that shares nothing with later work."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            with suppress(OSError):  # a bare system call: the console has a lock, too
                os.write(_STDERR, HEARD.encode())
        if self._at_once:
            self._at_once = False
            raise KeyboardInterrupt
