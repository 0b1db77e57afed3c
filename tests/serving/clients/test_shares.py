"""Clients over servers with shares, as real processes: what they say is what one server with all keys says."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import KeyInvalid, OperatingError, RequestInvalid, StatesideError, ViewUnknown
from stateside.serving.clients import Client
from tests.serving.cluster import COUNTRIES, Cluster, customers

from .asked import KINDS

pytestmark = pytest.mark.e2e


@pytest.fixture(params=list(KINDS))
def client(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client, sync or async, that was told of one of the shares."""
    with KINDS[request.param](cluster.servers["one"][1]) as made:
        yield made


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.servers["whole"][1]) as made:
        yield made


def test_every_key_is_answered_as_by_one_server(cluster: Cluster, client: Any, whole: Client) -> None:
    for customer in customers(cluster.customers):
        assert client.rows("spending", customer).rows == whole.rows("spending", customer).rows
    assert client.rows("spending", "c001", "de").rows[0]["country"] == "de"
    assert client.rows("spending", "nobody").rows == []


def test_many_keys_of_both_shares_come_in_their_order_and_of_one_batch(cluster: Cluster, client: Any) -> None:
    keys = [(customer, country) for country in COUNTRIES for customer in customers(cluster.customers)]
    answer = client.lookup("spending", [*keys, ("nobody", "de"), keys[0]])
    assert [(row["customer"], row["country"]) if row else None for row in answer.found] == [*keys, None, keys[0]]
    assert answer.one_batch
    assert {stamp.share for stamp in answer.stamps} == {"1/2", "2/2"}
    assert len(answer.rows) == len(keys) + 1


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"page_rows": 7},
        {"where": ["country=de"], "page_rows": 10},
        {"where": ["customer=c007"]},
        {"order": "-total", "page_rows": 9},
        {"order": "mean", "columns": ["total"], "page_rows": 50},
        {"columns": ["country"], "page_rows": 11},
        {"rows_max": 25, "page_rows": 10},
        {"where": ["total>1000000"]},
    ],
    ids=str,
)
def test_a_scan_over_shares_is_row_for_row_that_of_one_server(client: Any, whole: Client, question: Any) -> None:
    pages = client.scan("spending", **question)
    rows = [row for page in pages for row in page.rows]
    assert rows == [row for page in whole.scan("spending", **question) for row in page.rows]
    assert all(page.one_batch for page in pages)
    assert {page.stamp.batch for page in pages} == {pages[0].stamp.batch}


def test_rollups_of_shares_are_added_up_to_the_last_unit(cluster: Cluster, client: Any, whole: Client) -> None:
    """Averages of doubles among them, which nobody could add up themselves."""
    for columns, key in (
        (["country"], ()),
        (["country"], ("de",)),
        ([], ()),
        (["customer"], ()),
        (["country"], ("x",)),
    ):
        answer = client.rollup("spending", columns, *key)
        assert answer.rows == whole.rollup("spending", columns, *key).rows
        assert (answer.one_batch, answer.stamp.share) == (True, None)
        assert {stamp.share for stamp in answer.stamps} == {"1/2", "2/2"}
    assert client.rollup("spending", []).rows[0]["orders"] == 3 * cluster.customers * (
        client.rows("spending", "c000").stamp.batch + 1
    )


def test_answers_become_frames_with_the_view_s_types(client: Any) -> None:
    answer = client.rows("spending", "c003")
    table = answer.to_arrow()
    assert table.column_names == ["customer", "country", "orders", "total", "mean"]
    assert [str(type_) for type_ in table.schema.types] == ["string", "string", "int64", "int64", "double"]
    assert answer.to_pandas()["total"].tolist() == [row["total"] for row in answer.rows]
    assert answer.to_polars().rows(named=True) == answer.rows
    assert client.rows("spending", "nobody").to_arrow().schema == table.schema, "no row, and the columns all the same"


def test_what_a_server_refuses_is_raised_as_what_it_is(client: Any) -> None:
    with pytest.raises(ViewUnknown, match="Views served: spending"):
        client.rows("nothing", "c1")
    with pytest.raises(KeyInvalid, match="3 parts"):
        client.rows("spending", "a", "b", "c")
    with pytest.raises(RequestInvalid, match="has no rollup by"):
        client.rollup("spending", ["customer", "country"])
    with pytest.raises(RequestInvalid, match="no column 'colour'"):
        client.scan("spending", order="colour")


def test_keys_are_located_and_views_and_servers_listed(cluster: Cluster, client: Any) -> None:
    location = client.locate("spending", "c001")
    assert location.share in ("1/2", "2/2")
    assert [each["share"] for each in location.servers] == [location.share]
    assert [view["view"] for view in client.views()] == ["spending"]
    assert {server["name"] for server in client.servers()} == {"one", "two"}


def test_while_batches_come_every_answer_of_both_shares_is_of_one_batch(cluster: Cluster, client: Any) -> None:
    """In every batch all counts are the same: a torn answer would show two of them."""
    for _ in range(5):
        cluster.batch()
        for _ in range(2):
            answer = client.rollup("spending", ["country"])
            assert answer.one_batch
            assert {row["orders"] for row in answer.rows} == {cluster.customers * (answer.stamp.batch + 1)}
            pages = client.scan("spending", page_rows=50)
            assert {row["orders"] for page in pages for row in page.rows} == {pages[0].stamp.batch + 1}
            assert sum(len(page.rows) for page in pages) == 3 * cluster.customers


# Servers that go away


@pytest.fixture
def shaky(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_killing_a_server_under_load_costs_no_request_where_a_copy_exists_and_a_share_that_moves_is_found(
    shaky: Cluster,
) -> None:
    urls = shaky.start_all(a="1/2", b="2/2", a2="1/2", b2="2/2")
    stop, failures, answered = threading.Event(), [], [0, 0]

    def load(number: int) -> None:
        with KINDS["async" if number % 2 else "sync"](urls, deadline_s=20) as client:
            while not stop.is_set():
                customer = f"c{number * 7 % 40:03}"
                try:
                    assert len(client.rows("spending", customer).rows) == 3
                    assert len(client.lookup("spending", [(name, "de") for name in customers(10)]).rows) == 10
                    assert client.rollup("spending", ["country"]).one_batch
                    answered[number % 2] += 3
                except Exception as error:
                    failures.append(repr(error))

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(load, number) for number in range(4)]
        try:
            time.sleep(1.0)
            shaky.kill("a")
            time.sleep(1.0)
            shaky.stop("b")  # in order, and with requests under way
            time.sleep(1.0)
            shaky.start("moved", "1/2")
            shaky.kill("a2")  # share 1/2 is now only where nobody was told that it is
            time.sleep(2.0)
        finally:
            stop.set()
        for each in running:
            each.result()
    assert failures == []
    assert min(answered) > 20


def test_a_server_that_hangs_is_passed_over_for_its_copy_and_without_one_the_deadline_is_kept(shaky: Cluster) -> None:
    shaky.start_all(x=None, y=None)
    hung = _processes(shaky.servers["x"][0].pid)
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        for kind in KINDS.values():
            with kind([shaky.servers["x"][1], shaky.servers["y"][1]], deadline_s=15) as client:
                assert client.rows("spending", "c001").rows
            hanging = kind(shaky.servers["x"][1], deadline_s=1.5)
            with hanging as client, pytest.raises(OperatingError, match="No Stateside server answered"):
                client.rows("spending", "c001")
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)


def _processes(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", list(KINDS))
def test_nobody_there_is_one_sentence_within_the_deadline(kind: str) -> None:
    nobody = KINDS[kind](["http://127.0.0.1:1", "http://127.0.0.1:2"], deadline_s=0.6)
    with nobody as client, pytest.raises(OperatingError, match=r"No Stateside server answered: .*stateside serve"):
        client.rows("spending", "c001")


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", "http://[", ""])
def test_what_is_no_address_is_refused(kind: str, url: str) -> None:
    with pytest.raises(StatesideError, match="is no address"):
        KINDS[kind](url)
