"""The process that moves replicas, one for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.changes.watched import Mover


@pytest.fixture(scope="session")
def mover() -> Iterator[Mover]:
    mover = Mover()
    yield mover
    mover.stop()
