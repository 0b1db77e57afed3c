"""Two servers, of which one finds its replica damaged: clients are answered by the other one, until it is rebuilt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stateside.serving.clients import Client
from tests.serving.cluster import WAIT_S_MAX, Cluster

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), customers=300)
    yield made
    made.close()


def replica(cluster: Cluster, name: str) -> Path:
    return next((cluster.folder / f"replicas-{name}").rglob("data.mdb")).parent


def zero_all_but_the_first_pages(folder: Path) -> None:
    """In place: those who have the file open, and mapped, have these zeros too."""
    with (folder / "data.mdb").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(8_192)
        file.write(bytes(size - 8_192))


def test_while_a_server_rebuilds_its_replica_another_one_answers(cluster: Cluster) -> None:
    damaged, whole = cluster.start_all(damaged=None, whole=None)
    truth = httpx.get(f"{whole}/v1/views/spending/rows/c007").json()["rows"]
    assert len(truth) == 3
    zero_all_but_the_first_pages(replica(cluster, "damaged"))
    with Client([damaged, whole]) as client:
        assert client.rows("spending", "c007")["rows"] == truth
    deadline_s, seen = time.monotonic() + WAIT_S_MAX, set[tuple[int, str | None]]()
    while True:
        answer = httpx.get(f"{damaged}/v1/views/spending/rows/c011")
        code = answer.json().get("type", "").rpartition(":")[2] or None
        seen.add((answer.status_code, code))
        if answer.status_code == 200 and (cluster.folder / "damaged.log").read_text().count("rebuilding"):
            break
        assert time.monotonic() < deadline_s, cluster.servers["damaged"][0].tail()
        time.sleep(0.01)
    assert seen <= {(200, None), (503, "replica-invalid")}, seen
    assert answer.json()["rows"] == httpx.get(f"{whole}/v1/views/spending/rows/c011").json()["rows"]
    assert httpx.get(f"{damaged}/readyz").status_code == 200
    assert "is damaged" in cluster.servers["damaged"][0].tail()


def test_a_server_alone_refuses_and_is_not_ready_until_the_checkpoint_is_back(cluster: Cluster) -> None:
    alone = cluster.start("alone")
    cluster.written.batch([])
    commits = cluster.folder / "orders" / "commits"
    commits.rename(commits.with_name("commits away"))
    zero_all_but_the_first_pages(replica(cluster, "alone"))
    assert httpx.get(f"{alone}/v1/views/spending/rows/c001").status_code == 503
    answer = httpx.get(f"{alone}/v1/views/spending/rows/c012")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (503, "replica-invalid")
    assert httpx.get(f"{alone}/readyz").status_code == 503
    commits.with_name("commits away").rename(commits)
    deadline_s = time.monotonic() + WAIT_S_MAX
    while httpx.get(f"{alone}/readyz").status_code != 200:
        assert time.monotonic() < deadline_s, cluster.servers["alone"][0].tail()
        time.sleep(0.05)
    assert len(httpx.get(f"{alone}/v1/views/spending/rows/c012").json()["rows"]) == 3
