"""Connections as the kernel sees them: how much of what was sent a client has taken.

Granian takes whatever a stream is given into memory without limit, and does not say how much of it is sent. The kernel
does: it counts the bytes that the other side has acknowledged. So a client's connection is looked for among this
process's open files, by the client's address.

On systems other than Linux, and for what is no TCP connection, none is found: then streams are sent as fast as they
come.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_OPEN_FILES = "/proc/self/fd"
_ACKNOWLEDGED = struct.Struct("<Q")
_ACKNOWLEDGED_AT = 120  # bytes into the kernel's struct tcp_info: tcpi_bytes_acked
_TCP_INFO_BYTES = _ACKNOWLEDGED_AT + _ACKNOWLEDGED.size


class Connection:
    """A client's connection, until it is closed; what another client has in its place is never touched."""

    def __init__(self, client: str, file: int) -> None:
        self._client, self._file = client, file

    def taken_bytes(self) -> int | None:
        """How many bytes the client has acknowledged since it connected; None once it is gone."""
        with suppress(OSError, struct.error), self._socket() as opened:
            if _peer(opened) == self._client:
                info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                return int(_ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)[0])
        return None

    def shut(self) -> None:
        """End it at once, whatever is still to be sent."""
        with suppress(OSError), self._socket() as opened:
            if _peer(opened) == self._client:
                opened.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """The socket under a number of its own: it stays the same one while it is looked at."""
        with socket.socket(fileno=os.dup(self._file)) as opened:
            yield opened


class Connections:
    """Finds clients' connections. Those that are in use already are not looked at again."""

    def __init__(self) -> None:
        self._used: dict[int, str] = {}

    @contextmanager
    def of(self, client: str) -> Iterator[Connection | None]:
        """The connection of the client with this address, while it is used; None if there is none to be found."""
        file = self._file(client)
        if file is None:
            yield None
            return
        self._used[file] = client
        try:
            yield Connection(client, file)
        finally:
            if self._used.get(file) == client:
                del self._used[file]

    def _file(self, client: str) -> int | None:
        try:
            files = [int(name) for name in os.listdir(_OPEN_FILES)]  # noqa: PTH208 - Paths take longer than the call
        except OSError:
            return None
        return next((file for file in files if file not in self._used and _is(file, client)), None)


def _is(file: int, client: str) -> bool:
    try:
        opened = socket.socket(fileno=file)
    except OSError:  # no socket, or closed by now
        return False
    try:
        return opened.type == socket.SOCK_STREAM and _peer(opened) == client
    except OSError:
        return False
    finally:
        opened.detach()


def _peer(opened: socket.socket) -> str | None:
    """The other side's address, as Granian writes it."""
    if opened.family == socket.AF_INET:
        host, port = opened.getpeername()
        return f"{host}:{port}"
    if opened.family == socket.AF_INET6:
        host, port, *_ = opened.getpeername()
        return f"[{host}]:{port}"
    return None
