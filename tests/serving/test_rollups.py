"""Rollups over HTTP, from Python and on the command line, on a real server. The job is down all the while."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import stateside
from stateside.core.errors import KeyInvalid, NotFreshEnough, RequestInvalid, ValueOverflow
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, FileLog
from stateside.serving.clients import Client
from stateside.testing import append, run_to

from .conftest import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LONG_MAX = 2**63 - 1
ORDERS = [
    ("emma", "de", "a/b", 5),
    ("ben", "de", "web", 7),
    ("ben", "fr", "web", 11),
    ("emma", "fr", "web", None),
    ("rich", "lu", "web", LONG_MAX),
    ("richer", "lu", "web", 1),
]


@pytest.fixture(scope="module")
def shop_folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A view `spending` with rollups, whose numbers of Luxembourg are too large together; a view `plain` without."""
    from pyspark.sql import functions as F

    app = stateside.App("shop", fields="country string, channel string, amount long")

    @app.view(key=["entity", "country", "channel"], rollups=[["country"], ["country", "channel"], []])
    def spending(events: DataFrame) -> DataFrame:
        total, most = F.sum("amount").alias("total"), F.max("amount").alias("most")
        return events.groupBy("entity", "country", "channel").agg(F.count("*").alias("orders"), total, most)

    @app.view(key=["entity", "country"])
    def plain(events: DataFrame) -> DataFrame:
        return events.groupBy("entity", "country").count()

    layout = Layout(tmp_path_factory.mktemp("shop"))
    payloads = [(who, {"country": where, "channel": how, "amount": n}) for who, where, how, n in ORDERS]
    append(layout, [Event(f"{n}", who, "order", 0, payload) for n, (who, payload) in enumerate(payloads)])
    run_to(app, layout, spark)
    return layout


@pytest.fixture(scope="module")
def shop(shop_folder: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on that folder."""
    yield from serving(shop_folder, tmp_path_factory.mktemp("logs") / "shop.log", "/v1/views/spending/rows/emma")


GERMANY = {"country": "de", "orders": 2, "total": 12}


def test_a_rollup_is_asked_by_its_coarser_key_and_stamped_as_rows_are(shop: str, shop_folder: Layout) -> None:
    response = httpx.get(f"{shop}/v1/views/spending/rollup/country/de")
    assert response.status_code == 200
    assert response.json()["rows"] == [GERMANY], "without the column that cannot be taken away again"
    assert response.json()["not_in_rollups"] == ["most"]
    assert httpx.get(f"{shop}/v1/views/spending").json()["not_in_rollups"] == ["most"]
    assert httpx.get(f"{shop}/v1/views/plain").json()["not_in_rollups"] == []
    listed = {each["view"]: each.get("not_in_rollups") for each in httpx.get(f"{shop}/v1/views").json()["views"]}
    assert listed == {"plain": None, "spending": ["most"]} | dict.fromkeys(listed.keys() - {"plain", "spending"})
    rows = httpx.get(f"{shop}/v1/views/spending/rows/emma")
    for name in ("view", "batch", "position"):
        assert response.headers[f"stateside-{name}"] == rows.headers[f"stateside-{name}"]
    stamp = response.json()["stamp"]
    assert stamp["position"] == str(FileLog(shop_folder.journal).end())
    assert stamp.keys() == rows.json()["stamp"].keys()


def test_a_coarser_key_s_first_parts_find_all_that_begin_with_them(shop: str) -> None:
    with Client(shop) as client:
        assert client.rollup("spending", ["country", "channel"], "de")["rows"] == [
            {"country": "de", "channel": "a/b", "orders": 1, "total": 5},
            {"country": "de", "channel": "web", "orders": 1, "total": 7},
        ]
        (one,) = client.rollup("spending", ["country", "channel"], "de", "a/b")["rows"]
        assert one["channel"] == "a/b"
        assert client.rollup("spending", ["country"], "d")["rows"] == [], "a prefix of a part is no part"
        assert client.rollup("spending", ["country"], "fr")["rows"] == [{"country": "fr", "orders": 2, "total": 11}]


def test_a_sum_that_is_too_large_is_an_error_and_not_a_wrong_number(shop: str) -> None:
    with Client(shop) as client:
        with pytest.raises(ValueOverflow, match="'total' of all rows together is too large for long"):
            client.rollup("spending", ["country"], "lu")
        with pytest.raises(ValueOverflow):
            client.rollup("spending", [])


def test_the_floor_holds_for_rollups_too(shop: str) -> None:
    with Client(shop) as client:
        with pytest.raises(NotFreshEnough, match="elsewhere-0:1 was asked for"):
            client.rollup("spending", ["country"], "de", min_position=Position.of({"elsewhere-0": 1}), wait_ms=50)
        assert client.rollup("spending", ["country"], "de", min_position=Position.of({"0": 6}))["rows"] == [GERMANY]


def test_what_is_not_there_is_told_with_what_is(shop: str) -> None:
    with Client(shop) as client:
        with pytest.raises(RequestInvalid, match=r"no rollup by channel\. It has rollups by: country; country,channel"):
            client.rollup("spending", ["channel"])
        with pytest.raises(RequestInvalid, match=r"no column 'city'\. It has: entity, country, channel"):
            client.rollup("spending", ["city"])
        with pytest.raises(RequestInvalid, match=r"no rollup by country\. Declare it with rollups=\[\['country'\]\]"):
            client.rollup("plain", ["country"])
        with pytest.raises(KeyInvalid, match=r"2 parts, the key of the rollup by country has 1"):
            client.rollup("spending", ["country"], "de", "web")
        with pytest.raises(KeyInvalid, match="Leave the key out"):
            client.rollup("spending", [], "de")


def test_a_rollup_goes_down_as_the_watermark_closes_rows_and_equals_the_rows_of_its_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    app, layout = stateside.App("visits", fields="country string"), Layout(tmp_path / "visits")

    @app.view(key=["entity", "country", "window"], rollups=[["country"]], archive="hours")
    def hourly(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "1 hour")
        return timed.groupBy("entity", "country", F.window("time", "1 hour")).count()

    def visit(hour: int, visits: int) -> Position:
        payloads = [("emma" if n % 2 else "ben", {"country": "de" if n % 3 else "fr"}) for n in range(visits)]
        at_us = hour * 3_600_000_000
        receipt = append(layout, [Event(f"{hour}-{n}", who, "visit", at_us, p) for n, (who, p) in enumerate(payloads)])
        run_to(app, layout, spark)
        return receipt

    receipt = visit(1, 12)
    started = contextmanager(serving)(layout, tmp_path / "server.log", "/v1/views/hourly/rows/emma")
    with started as url, Client(url) as client:
        assert visits_by_country(client, receipt) == {"de": 8, "fr": 4}
        visit(9, 3)
        assert visits_by_country(client, visit(10, 1)) == {"de": 2, "fr": 2}, "the first hour has left"
        everything = [row for who in ("emma", "ben") for row in client.rows("hourly", who).rows]
        assert sum(row["count"] for row in everything) == 16, "for the archive, where it is found too"


def visits_by_country(client: Client, receipt: Position) -> dict[str, int]:
    """The rollup, which must be what the live rows of the same batch add up to."""
    while True:
        rollup = client.rollup("hourly", ["country"], min_position=receipt, wait_ms=20_000)
        answers = [client.rows("hourly", who, source="live") for who in ("emma", "ben")]
        if {answer["stamp"]["batch"] for answer in answers} == {rollup["stamp"]["batch"]}:
            break  # else the replica has moved in between
    found: Counter[str] = Counter()
    for row in (row for answer in answers for row in answer["rows"]):
        found[row["country"]] += row["count"]
    by_country = {row["country"]: row["count"] for row in rollup["rows"]}
    assert by_country == found
    return by_country


def test_the_command_line_asks_for_rollups(shop: str) -> None:
    command = [sys.executable, "-m", "stateside", "rollup", "spending", "country", "de", "--url", shop]
    answer = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["rows"] == [GERMANY]
    total = subprocess.run([*command[:5], "--url", shop], capture_output=True, text=True, check=False)
    assert total.returncode == 1
    assert "too large for long" in total.stderr
