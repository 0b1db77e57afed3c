"""Servers for all tests of clients: starting them takes longer than asking them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shares 1/2 and 2/2; and a server with all keys, of which these know nothing."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.begin("whole", announced=made.folder / "apart")
        made.start_all(one="1/2", two="2/2")
        made.wait_for("whole")
        yield made
    finally:
        made.close()
