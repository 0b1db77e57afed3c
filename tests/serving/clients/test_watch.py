"""Watching and SQL through both clients, on real servers: over shares, over servers that are killed, and resumed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import KeyInvalid, RequestInvalid
from stateside.serving.clients import Change, Client
from tests.serving.cluster import COUNTRIES, Cluster

from .asked import KINDS

pytestmark = pytest.mark.e2e


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def soon(cluster: Cluster) -> threading.Timer:
    """A batch, in a moment."""
    timer = threading.Timer(0.7, cluster.batch)
    timer.start()
    return timer


def test_a_key_is_watched_where_it_is_first_as_it_stands_and_then_as_it_changes(cluster: Cluster, kind: Any) -> None:
    batches = cluster.written.batches
    with kind(cluster.servers["one"][1]) as client:
        for customer in ("c001", "c002", "c003"):
            timer = soon(cluster)
            snapshot, changes = client.watch("spending", customer, count=2)
            timer.join()
            assert [row["country"] for row in snapshot.rows] == list(COUNTRIES)
            assert (snapshot.kind, snapshot.last, changes.kind) == ("snapshot", True, "changes")
            assert changes.stamp.batch == snapshot.stamp.batch + 1
            assert {row["orders"] for row in changes.rows} == {changes.stamp.batch + 1}
    assert cluster.written.batches == batches + 3


def test_a_later_watch_goes_on_behind_the_last_change(cluster: Cluster, kind: Any) -> None:
    with kind(cluster.servers["one"][1]) as client:
        (seen,) = client.watch("spending", "c001", count=1)
        cluster.batch()
        cluster.batch()
        told: list[Change] = client.watch("spending", "c001", after=seen.id, count=1)
        assert [change.kind for change in told] == ["changes"]
        assert told[0].stamp is not None
        assert told[0].stamp.batch > seen.stamp.batch
        reset, again = client.watch("spending", "c001", after="0-stranger", count=2)
        assert (reset.kind, again.kind) == ("reset", "snapshot")
        assert reset.reason


def test_rollups_and_whole_views_are_watched_where_all_keys_are_and_refused_where_nobody_has_them(
    cluster: Cluster, kind: Any
) -> None:
    with kind(cluster.servers["whole"][1]) as client:
        (rollup,) = client.watch("spending", rollup=["country"], count=1)
        assert [row["country"] for row in rollup.rows] == list(COUNTRIES)
        (rows,) = client.watch("spending", count=1)
        assert len(rows.rows) == 3 * cluster.customers
    with kind(cluster.servers["one"][1]) as client:
        for question in ({"rollup": ["country"]}, {}):
            with pytest.raises(RequestInvalid, match="several shares together"):
                client.watch("spending", count=1, **question)
        with pytest.raises(KeyInvalid, match="3 parts"):
            client.watch("spending", "a", "b", "c", count=1)


def test_statements_are_asked_where_all_keys_are_and_refused_where_nobody_has_them(cluster: Cluster, kind: Any) -> None:
    statement = (
        "SELECT country, sum(total) AS total, count(*) AS n FROM spending WHERE country <> ? GROUP BY ALL ORDER BY 1"
    )
    with kind(cluster.servers["whole"][1]) as client:
        answer = client.sql(statement, ["it"])
        assert [(row["country"], row["n"]) for row in answer.rows] == [
            ("de", cluster.customers),
            ("fr", cluster.customers),
        ]
        assert [stamp.view for stamp in answer.stamps] == ["spending"]
        assert [str(type_) for type_ in answer.to_arrow().schema.types] == ["string", "decimal128(38, 0)", "int64"]
    with kind(cluster.servers["one"][1]) as client, pytest.raises(RequestInvalid, match="Each server has a share"):
        client.sql(statement, ["it"])


def test_a_watch_goes_on_at_a_copy_when_its_server_is_killed_and_misses_no_batch(tmp_path: Path) -> None:
    made, heard = Cluster(tmp_path, customers=3), []
    try:
        urls = made.start_all(a=None, b=None)
        with Client(urls[0], deadline_s=20) as client:

            def listen() -> None:
                for change in client.watch("spending", "c001"):
                    heard.append(change)
                    if change.stamp is not None and change.stamp.batch == 6:
                        return

            listening = threading.Thread(target=listen, daemon=True)
            listening.start()
            for number in range(6):
                time.sleep(0.4)
                made.batch()
                if number == 2:
                    made.kill("a")
            listening.join(30)
        assert not listening.is_alive()
    finally:
        made.close()
    assert [change.kind for change in heard] == ["snapshot", *["changes"] * (len(heard) - 1)]
    batches = [change.stamp.batch for change in heard if change.stamp is not None]
    assert batches == list(range(batches[0], 7)), "every batch once, in order"
    assert all({row["orders"] for row in change.rows} == {change.stamp.batch + 1} for change in heard if change.stamp)
