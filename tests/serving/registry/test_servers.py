"""Servers with shares of the keys, as real processes over one checkpoint: who answers, and where others are sent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.serving.cluster import COUNTRIES, Cluster, customers
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shares 1/2 and 2/2, and a server with all keys."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start_all(one="1/2", two="2/2", whole=None)
        yield made
    finally:
        made.close()


def url(cluster: Cluster, name: str) -> str:
    return cluster.servers[name][1]


def test_a_share_answers_for_its_own_keys_and_sends_for_others_to_who_has_them(cluster: Cluster) -> None:
    held = {"one": 0, "two": 0}
    for customer in customers(cluster.customers):
        answers = {name: httpx.get(f"{url(cluster, name)}/v1/views/spending/rows/{customer}") for name in held}
        (here,) = [name for name, answer in answers.items() if answer.status_code == 200]
        (there,) = set(held) - {here}
        held[here] += 1
        document, problem = answers[here].json(), answers[there].json()
        assert [row["country"] for row in document["rows"]] == list(COUNTRIES)
        assert document["stamp"]["share"] == {"one": "1/2", "two": "2/2"}[here]
        assert (answers[there].status_code, problem["type"]) == (421, "urn:stateside:problem:misdirected")
        assert answers[there].headers["content-type"] == "application/problem+json"
        assert {each["url"] for each in problem["location"]["servers"]} == {url(cluster, here), url(cluster, "whole")}
    assert min(held.values()) > 5


def test_any_server_tells_where_a_key_is(cluster: Cluster) -> None:
    found = [httpx.get(f"{url(cluster, name)}/v1/views/spending/location/c001").json() for name in cluster.servers]
    places = [{(each["url"], each["share"], each["batch"]) for each in answer["servers"]} for answer in found]
    assert places[0] == places[1] == places[2]
    assert (url(cluster, "whole"), None, 0) in places[0]
    assert len(places[0]) == 2
    assert set(found[0]["servers"][0]) == {"url", "name", "share", "replica", "batch", "age_ms"}
    by_parameter = httpx.get(f"{url(cluster, 'one')}/v1/views/spending/location?key=c001&key=de").json()
    assert {each["url"] for each in by_parameter["servers"]} == {each["url"] for each in found[0]["servers"]}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("spending/location", 400, "key-invalid"),
        ("spending/location/a/b/c", 400, "key-invalid"),
        ("nothing/location/a", 404, "view-unknown"),
        ("spending/location/a?colour=red", 400, "request-invalid"),
    ],
)
def test_what_no_key_is_has_no_location(cluster: Cluster, path: str, status: int, code: str) -> None:
    answer = httpx.get(f"{url(cluster, 'one')}/v1/views/{path}")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (status, code)


def test_the_servers_are_listed_with_what_they_hold(cluster: Cluster) -> None:
    def servers() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{url(cluster, 'two')}/v1/servers").json()
        return found

    document = servers()
    assert document["name"] == "two"
    assert {each["name"]: each["views"]["spending"]["share"] for each in document["servers"]} == {
        "one": "1/2",
        "two": "2/2",
        "whole": None,
    }
    wait_until(lambda: all(0 <= each["silent_ms"] < 5_000 for each in servers()["servers"]))  # they announce themselves


def test_rollups_of_a_share_say_that_they_are_the_share_s_and_can_be_had_as_tallies(cluster: Cluster) -> None:
    def rollup(name: str, tallies: str = "") -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{url(cluster, name)}/v1/views/spending/rollup{tallies}").json()
        return found

    (one,), (two,), (whole,) = (rollup(name)["rows"] for name in ("one", "two", "whole"))
    assert one["orders"] + two["orders"] == whole["orders"] == 3 * cluster.customers
    assert rollup("one")["stamp"]["share"] == "1/2"
    assert "share" not in rollup("whole")["stamp"]
    (of_one,), (of_two,), (of_all,) = (rollup(name, "?tallies=1")["rows"] for name in ("one", "two", "whole"))
    added = [int(a) + int(b) for a, b in zip(of_one["tallies"], of_two["tallies"], strict=True)]
    assert [str(number) for number in added] == of_all["tallies"]


def test_a_server_that_stops_takes_its_announcement_away_and_one_that_is_killed_is_gone_soon(cluster: Cluster) -> None:
    def announced() -> set[str]:
        return {each["name"] for each in httpx.get(f"{url(cluster, 'one')}/v1/servers").json()["servers"]}

    cluster.start_all(third=None, fourth=None)
    assert {"third", "fourth"} <= announced()
    cluster.stop("third")
    assert not (cluster.announced / "servers" / "third.json").exists()
    cluster.kill("fourth")
    deadline = time.monotonic() + 60
    while "fourth" in announced():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (cluster.announced / "servers" / "fourth.json").exists(), "nobody was there to take it away"


def test_a_name_that_another_server_has_is_refused_in_one_sentence(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "stateside", "serve", str(cluster.folder / "orders"), "--port", "0"]
    command += ["--dir", str(cluster.folder / "more"), "--announce", str(cluster.announced), "--name", "one"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: Another server is called 'one'")
    assert json.loads((cluster.announced / "servers" / "one.json").read_bytes())["url"] == url(cluster, "one")
