"""Processes of ours: started together, ended together, by id and never by name."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

STOP_S_MAX = 20.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Child:
    """A child process with its output in a log file. It does not outlive its parent, even one killed by SIGKILL."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops its children in order
                preexec_fn=die_with_parent,
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


def die_with_parent() -> None:
    """Called in a child process: have the kernel end it when its parent dies (on Linux; elsewhere it does nothing)."""
    if _libc is not None:
        parent = os.getppid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def free_port() -> int:
    """A port on the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
