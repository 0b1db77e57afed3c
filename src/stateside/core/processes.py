"""Child processes: started together, ended together, by process id and never by name.

How a child learns of its parent's death, even by SIGKILL:

    parent     spawns  python processes.py PARENT COMMAND…   no code of ours runs between fork and exec: in a process
                                                             with threads, a held lock would never be released there
    child      asks the kernel for SIGKILL at the parent's death; checks whether PARENT is still its parent; becomes
               COMMAND, in the same process, for which the kernel's setting stays in force

The kernel means the *thread* that spawned: start children in a thread that lives as long as they must.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_S_MAX = 20.0
PRIVATE_UMASK = 0o077  # files readable by their owner alone
UMASK_VARIABLE = "STATESIDE_UMASK"
EXIT_FINAL = 3  # of a part that would fail again in the same way: its supervisor does not restart it
EXIT_NO_COMMAND = 127  # as in a shell
SAFE_PATH = {
    "PYTHONSAFEPATH": "1"
}  # as `python -P`, also for Python's own children: no imports from the current folder
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def wanted_umask(environment: Mapping[str, str]) -> int:
    """The umask of our processes: private, or the octal value of STATESIDE_UMASK; SettingInvalid for other texts."""
    text = environment.get(UMASK_VARIABLE, f"{PRIVATE_UMASK:03o}")
    if not (1 <= len(text) <= 4 and set(text) <= set("01234567") and int(text, 8) <= 0o777):
        from stateside.core.errors import SettingInvalid  # every child of ours loads this module first, as a script

        raise SettingInvalid(
            f"{UMASK_VARIABLE} is {text[:80]!r}, which is no umask",
            next_step="Write it in octal: 077 for files of their owner alone, 027 to let a group read them",
        )
    return int(text, 8)


def current_umask() -> int:
    """The process's umask. Reading the umask replaces it for a moment: by a private one, never by a loose one."""
    mask = os.umask(PRIVATE_UMASK)
    os.umask(mask)
    return mask


class Child:
    """A child process with its output in a log file. The child dies with its parent, even one killed by SIGKILL."""

    def __init__(self, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is the child's whole environment; None inherits the parent's."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as output:
            self._process = spawn(command, output.fileno(), output.fileno(), environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def stop(self, wait_s: float = STOP_S_MAX) -> int:
        """Send SIGTERM, after `wait_s` SIGKILL; returns the exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def tail(self, lines: int = 15) -> str:
        """The last lines of the output, for a message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def last_words(self) -> str:
        """The last line of the output outside of stack traces."""
        told = [line for line in self.tail(200).splitlines() if line and not line[0].isspace()]
        return told[-1] if told else "none"


def spawn(
    command: Sequence[str], stdout: int, stderr: int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that dies with its parent; `stdout` and `stderr` as for Popen.

    In a session of its own: Ctrl-C reaches the parent alone, which then stops its children in order.
    """
    return subprocess.Popen(
        _bound(command),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=True,
    )


async def run(command: Sequence[str], seconds_max: float) -> tuple[int, str, str]:
    """Run a command to its end; returns (exit code, stdout, stderr). TimeoutError after `seconds_max`.

    The command is killed on a timeout, and when the waiting task is cancelled: a stopping server does not wait.
    """
    import asyncio  # not at the top: every child of ours loads this module first, and does not need asyncio

    process = await asyncio.create_subprocess_exec(
        *_bound(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds_max):
            told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    output, errors = (text.decode(errors="replace") for text in told)
    return process.returncode or 0, output, errors


def _bound(command: Sequence[str]) -> list[str]:
    """The command line for running `command` in a process bound to its parent's life."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with_parent(parent_pid: int) -> None:
    """Called in a child process: the kernel kills the child when its parent dies (on Linux; a no-op elsewhere).

    `parent_pid` is the id of the parent when it started the child. If the child has another parent by now, the parent
    has died already, and the child ends here.

    The signal is SIGKILL because the kernel sends it once for each thread of a killed parent, and no handler survives
    such a burst. A parent that ends in order stops its children itself.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def gain_no_privileges() -> None:
    """Set no_new_privs: no program that this process executes gains privileges (on Linux; a no-op elsewhere)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def free_port() -> int:
    """A loopback port on which no process listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _become(parent_pid: int, command: list[str]) -> None:
    """First code of a child: bind its life to its parent's, then exec the command."""
    die_with_parent(parent_pid)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and a command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"Error: {command[0]} cannot be run: {error.strerror}.", file=sys.stderr)
        sys.exit(EXIT_NO_COMMAND)


@contextmanager
def signals() -> Iterator[list[int]]:
    """The signals received so far. Not an Event: a second signal during `set` would deadlock on the Event's lock."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in numbers]
    try:
        yield came
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
