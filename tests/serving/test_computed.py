"""Computed columns over HTTP, on a real server, and what readers are told while they cannot be shown. Without Spark."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid, NotFreshEnough, RequestInvalid, ValueOverflow
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import write_atomically
from stateside.replica.tail import Tail
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.views.catalogue import Catalogue, Computed
from stateside.views.functions import extend_functions
from tests.replica import spark_job
from tests.replica.spark_job import Job

from .conftest import serving

PRICE = Computed("price", of="total", by=("country",))
GERMAN = Tiers((Tier(0, 0, 1), Tier(100, 3, 2)))  # a hundred are included
STATE: spark_job.Changes = {("emma", "de"): (2, 104), ("ben", "de"): (1, 60), ("ben", "fr"): (3, 7)}


def declare(view: ViewLayout, *computed: Computed) -> None:
    write_atomically(
        view.catalogue, replace(spark_job.catalogue([["country"], []]), computed=computed or (PRICE,)).as_json()
    )


@pytest.fixture
def view(tmp_path: Path) -> ViewLayout:
    """A view of three rows whose replica is up to date."""
    job = Job(Layout(tmp_path / "shop").view("spending"))
    declare(job.view)
    extend_functions(job.view.functions, {("de",): GERMAN, ("fr",): Tiers((Tier(0, -1, 1),))})
    job.run(STATE)
    step(job.view)
    return job.view


def step(view: ViewLayout) -> None:
    tail = Tail(view)
    tail.step()
    tail.close()


@pytest.fixture
def reader(view: ViewLayout) -> Iterator[ViewReader]:
    made = ViewReader(view)
    yield made
    made.close()


def rows(reader: ViewReader, *key: str) -> list[dict[str, Any]]:
    return asyncio.run(reader.rows(key, Floor(wait_ms=0))).rows


def rollup(reader: ViewReader, columns: list[str], *key: str) -> list[dict[str, Any]]:
    return asyncio.run(reader.rollup(columns, key, Floor(wait_ms=0))).rows


@pytest.mark.e2e
def test_a_computed_column_stands_in_rows_and_rollups_over_http_and_on_the_command_line(
    view: ViewLayout, tmp_path: Path
) -> None:
    server = serving(Layout(tmp_path / "shop"), tmp_path / "server.log", "/v1/views/spending/rows/emma")
    try:
        url = next(server)
        row = {"customer": "emma", "country": "de", "orders": 2, "total": 104, "price": 6}
        assert httpx.get(f"{url}/v1/views/spending/rows/emma").json()["rows"] == [row]
        germany = {"country": "de", "orders": 3, "total": 164, "price": 6}
        assert httpx.get(f"{url}/v1/views/spending/rollup/country/de").json()["rows"] == [germany]
        command = [sys.executable, "-m", "stateside", "get", "spending/emma", "--json", "--url", url]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(answer.stdout)["rows"] == [row]
    finally:
        server.close()


def test_rows_and_rollups_have_the_computed_column_last(reader: ViewReader) -> None:
    assert [list(row.values()) for row in rows(reader, "ben")] == [["ben", "de", 1, 60, 0], ["ben", "fr", 3, 7, -7]]
    assert rollup(reader, []) == [{"orders": 6, "total": 171, "price": -1}]


def test_an_entry_that_came_after_the_reader_started_is_found(view: ViewLayout, reader: ViewReader) -> None:
    assert rows(reader, "emma")[0]["price"] == 6
    declare(view, replace(PRICE, by=("customer",)))
    extend_functions(view.functions, {("emma",): GERMAN})
    later = ViewReader(view, replica=reader._replica)
    assert rows(later, "emma")[0]["price"] == 6
    with pytest.raises(CheckpointInvalid, match=r"The view 'spending' has no function for \['ben'\]") as missing:
        rows(later, "ben")
    assert missing.value.where == str(view.functions)
    extend_functions(view.functions, {("ben",): Tiers((Tier(0, 1, 10),))})
    assert [row["price"] for row in rows(later, "ben")] == [6, 0]


def test_rollups_are_not_shown_with_other_computed_columns_than_were_declared(view: ViewLayout) -> None:
    declare(view, PRICE, Computed("fee", of="orders", by=("country",)))
    between = ViewReader(view)
    assert rows(between, "emma")[0] == {
        "customer": "emma", "country": "de", "orders": 2, "total": 104, "price": 6, "fee": 0,
    }  # fmt: skip
    with pytest.raises(NotFreshEnough, match="have other computed columns than were declared last"):
        rollup(between, [])
    between.close()
    step(view)
    after = ViewReader(view)
    assert rollup(after, []) == [{"orders": 6, "total": 171, "price": -1, "fee": -3}]
    after.close()


def test_a_rollup_that_was_declared_and_is_not_there_yet_is_awaited_and_not_called_unknown(view: ViewLayout) -> None:
    catalogue = Catalogue.load(view.catalogue)
    rollups = (*catalogue.rollups, ("country", "customer"))
    write_atomically(view.catalogue, replace(catalogue, rollups=rollups).as_json())
    between = ViewReader(view)
    with pytest.raises(NotFreshEnough, match="The rollups of 'spending' are others than were declared last"):
        rollup(between, ["country", "customer"])
    with pytest.raises(RequestInvalid, match="has no rollup by"):
        rollup(between, ["country", "country"])
    between.close()


def test_a_value_that_is_too_large_is_an_error_of_its_row_and_of_its_rollup_alone(tmp_path: Path) -> None:
    job = Job(Layout(tmp_path / "shop").view("spending"))
    declare(job.view)
    extend_functions(job.view.functions, {("de",): GERMAN, ("lu",): Tiers((Tier(0, 2**62, 1),))})
    job.run({("emma", "de"): (2, 104), ("rich", "lu"): (1, 2)})
    step(job.view)
    reader = ViewReader(job.view)
    assert rows(reader, "emma")[0]["price"] == 6
    assert rollup(reader, ["country"], "de")[0]["price"] == 6
    asks = (partial(rows, reader, "rich"), partial(rollup, reader, ["country"], "lu"), partial(rollup, reader, []))
    for ask in asks:
        with pytest.raises(ValueOverflow):
            ask()
    reader.close()
    job.run({("rich", "lu"): None})
    step(job.view)
    reader = ViewReader(job.view)
    assert rollup(reader, []) == [{"orders": 2, "total": 104, "price": 6}], "once that row is gone"
    reader.close()
