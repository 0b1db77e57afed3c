"""Processes of ours: started together, ended together, by id and never by name.

How a child learns that its parent has died, even by SIGKILL:

    parent     spawns  python processes.py PARENT COMMAND…   no code of ours runs between fork and exec: with threads
                                                             about, it might wait for a lock that nobody holds any more
    that       asks the kernel for SIGKILL at the parent's death; looks whether PARENT is still its parent; becomes
               COMMAND, in the same process, to which the kernel's promise holds on

The kernel means the *thread* that spawned: start children in one that lives as long as they shall.
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
PRIVATE_UMASK = 0o077  # files are their owner's alone
UMASK_VARIABLE = "STATESIDE_UMASK"
EXIT_FINAL = 3  # of a part that would fail again in the same way: whoever supervises it does not start it again
EXIT_NO_COMMAND = 127  # as in a shell
SAFE_PATH = {
    "PYTHONSAFEPATH": "1"
}  # as `python -P`, also for Python's own children: no imports from the current folder
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def wanted_umask(environment: Mapping[str, str]) -> int:
    """The umask of our processes: private, or what STATESIDE_UMASK says in octal; SettingInvalid if that is none."""
    text = environment.get(UMASK_VARIABLE, f"{PRIVATE_UMASK:03o}")
    if not (1 <= len(text) <= 4 and set(text) <= set("01234567") and int(text, 8) <= 0o777):
        from stateside.core.errors import SettingInvalid  # every child of ours loads this module first, as a script

        raise SettingInvalid(
            f"{UMASK_VARIABLE} is {text[:80]!r}, which is no umask",
            next_step="Write it in octal: 077 for files of their owner alone, 027 to let a group read them",
        )
    return int(text, 8)


def current_umask() -> int:
    """The umask that this process has. It is replaced by a private one while it is looked at: never by a loose one."""
    mask = os.umask(PRIVATE_UMASK)
    os.umask(mask)
    return mask


class Child:
    """A child process with its output in a log file. It does not outlive its parent, even one killed by SIGKILL."""

    def __init__(self, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is all of the child's; by default it has its parent's."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                _bound(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops its children in order
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def stop(self, wait_s: float = STOP_S_MAX) -> int:
        """Ask it to end, insist after a while, and return how it ended."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def tail(self, lines: int = 15) -> str:
        """The last lines of its output, for a message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def last_words(self) -> str:
        """The last line of its output that is no part of a stack trace."""
        told = [line for line in self.tail(200).splitlines() if line and not line[0].isspace()]
        return told[-1] if told else "none"


async def run(command: Sequence[str], seconds_max: float) -> tuple[int, str, str]:
    """Run a command to its end: its exit code, its output and its messages; TimeoutError if that takes too long.

    It is killed then, and also when the task that waits for it is cancelled: a server that stops does not wait for it.
    """
    import asyncio  # every child of ours loads this module first, and has no use for it

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
    """The command in a process that ends with this one."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with_parent(parent_pid: int) -> None:
    """Called in a child process: have the kernel end it when its parent dies (on Linux; elsewhere it does nothing).

    `parent_pid` is the id that the parent had when it started the child. If that is no longer the parent's, the parent
    has died already, and the child ends here.

    It is SIGKILL: the kernel sends the signal once for each thread of a parent that is killed, and no handler stands a
    shower of those. A parent that ends in order has stopped its children itself.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def gain_no_privileges() -> None:
    """No program that this process becomes or starts gains any by its file (on Linux; elsewhere it does nothing)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def free_port() -> int:
    """A port on the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _become(parent_pid: int, command: list[str]) -> None:
    """What a child does first: bind its life to its parent's, then become the command."""
    die_with_parent(parent_pid)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and a command would inherit it
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"Error: {command[0]} cannot be run: {error.strerror}.", file=sys.stderr)
        sys.exit(EXIT_NO_COMMAND)


@contextmanager
def signals() -> Iterator[list[int]]:
    """The signals that came. No Event: a second signal while the first one sets it would wait for its lock for ever."""
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
