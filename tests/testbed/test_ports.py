"""Ports: free or not, and whose."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from stateside.core.ports import listener, refusal
from stateside.core.processes import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that this very process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_free_port_and_any_port_can_be_listened_on() -> None:
    assert refusal(free_port()) is None
    assert refusal(0) is None


def test_a_port_that_somebody_listens_on_is_refused(taken: int) -> None:
    assert isinstance(refusal(taken), OSError)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_listener_is_named_with_its_process(taken: int) -> None:
    assert str(listener(taken)).startswith(f"process {os.getpid()} (")


def test_nobody_listens_on_a_free_port() -> None:
    assert listener(free_port()) is None
