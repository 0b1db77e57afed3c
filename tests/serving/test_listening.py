"""The socket of a server: taken at its start, open once somebody answers."""

from __future__ import annotations

import socket

import pytest

from stateside.core.errors import SetupError
from stateside.core.processes import free_port
from stateside.serving.server import _listen

LOOPBACK = "127.0.0.1"


def test_who_turns_to_a_server_that_is_starting_is_refused_at_once_and_does_not_wait() -> None:
    """Found by `stateside chaos replica-killed`: clients hung in the queue of a server that was started again."""
    port = free_port()
    with _listen(LOOPBACK, port) as taken:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port), timeout=5)
        taken.listen()  # as a worker does when it is ready
        socket.create_connection((LOOPBACK, port), timeout=5).close()


def test_an_address_that_another_server_listens_on_is_refused_with_what_to_do() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        with pytest.raises(SetupError, match=r"Cannot listen on .*Choose another --port"):
            _listen(LOOPBACK, other.getsockname()[1])
