"""Ports of the loopback interface: whether a port is free, and its listener.

Read only. Linux reports a listener in two steps, of which the second shows a user's own processes only:

    /proc/net/tcp      the listening sockets, by port, as inodes
    /proc/PID/fd/*     the open sockets of a process, as inodes
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
COMMAND_CHARS_MAX = 100
_LISTENS = "0A"


def refusal(port: int) -> OSError | None:
    """Why no process can listen on this loopback port now; None if the port is free. Port 0 means any."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: a connection just closed does no harm
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error
    return None


def listener(port: int, proc: Path = Path("/proc")) -> str | None:
    """The process that listens on this port, for people; None if the system does not report one."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    for process in proc.glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # the process ended meanwhile, or is another user's
            if any(str(handle.readlink()) in sockets for handle in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name} ({command[:COMMAND_CHARS_MAX]})"
    return None


def _listening(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()  # number, local address:port, remote address:port, state, …, inode at 9
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
