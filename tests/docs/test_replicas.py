"""The commands of docs/replicas.md, on servers over a checkpoint that is written without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.processes import Child, free_port
from tests.docs.commands import DOCS, command
from tests.serving.cluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The page's `checkpoints/orders`, with a batch, in the folder where the commands are run."""
    monkeypatch.chdir(tmp_path)
    return Cluster(tmp_path / "checkpoints")


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    port = free_port()
    child = Child([sys.executable, "-m", "stateside", *arguments, "--port", str(port)], Path(f"{port}.log"))
    try:
        wait_until(lambda: batch(f"http://127.0.0.1:{port}") is not None, child.tail)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()


def scan(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/v1/views/orders/rows?limit=1000").json()
    return found


def batch(url: str) -> int | None:
    """The batch that the server answers with; None while there is none."""
    try:
        return int(scan(url)["stamp"]["batch"])
    except (httpx.TransportError, LookupError):
        return None


def test_a_replica_is_built_read_as_of_a_batch_and_built_again_once_deleted(checkpoint: Cluster) -> None:
    serve = command("replicas.md", "serve", "replicas")
    with serving(*serve) as url:
        checkpoint.batch()
        wait_until(lambda: batch(url) == 1)
        asked = [sys.executable, "-m", "stateside", *command("replicas.md", "get"), "--url", url]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "orders, batch 0" in done.stdout
    (delete,) = (line for line in (DOCS / "replicas.md").read_text().splitlines() if line.startswith("rm -r"))
    subprocess.run(delete, shell=True, check=True)
    with serving(*serve) as url:
        assert batch(url) == 1


def test_a_shard_has_its_own_keys(checkpoint: Cluster) -> None:
    with serving(*command("replicas.md", "--share")) as url:
        answer = scan(url)
    assert answer["stamp"]["share"] == "1/4"
    assert 0 < len({row["customer"] for row in answer["rows"]}) < checkpoint.customers
