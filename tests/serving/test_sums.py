"""Sliding sums over HTTP, on a real server: `hourly` has 1 impression in the first hour of 2026, then 2, 3, 4, 5."""

from __future__ import annotations

import httpx
import pytest

from stateside.core.errors import RequestInvalid
from stateside.core.positions import Position
from stateside.serving.clients import Client

pytestmark = pytest.mark.spark


def test_a_range_of_buckets_comes_as_one_stamped_row(hours_server: str) -> None:
    path = f"{hours_server}/v1/views/hourly/sum/lamp?from=2026-01-01T01:00:00Z&to=2026-01-01T04:00:00Z"
    response = httpx.get(path)
    document = response.json()
    over = {"start": "2026-01-01T01:00:00Z", "end": "2026-01-01T04:00:00Z"}
    assert document["rows"] == [{"item": "lamp", "window": over, "seen": 9, "paid": "0.90", "mean": "0.100000"}]
    assert document["range"] == {"from": over["start"], "to": over["end"]}
    assert document["buckets"] == 3
    assert response.headers["stateside-position"] == document["stamp"]["position"] == "0:15"


def test_the_client_asks_for_the_last_hours(hours_server: str) -> None:
    with Client(hours_server) as client:
        assert client.sum("hourly", "lamp", last="2h")["rows"][0]["seen"] == 9
        assert client.sum("hourly", "lamp", last="120m", to_time="2026-01-01T02:00:00")["rows"][0]["seen"] == 3
        assert client.sum("hourly", "lamp", min_position=Position.of({"0": 15}))["rows"][0]["seen"] == 15
        assert client.sum("hourly", "chair", last="1d")["rows"] == []


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("from=2026-01-01T00:30:00Z", "inside a bucket; buckets are 1h long"),
        ("last=90m", "inside a bucket"),
        ("last=soon", "is no duration"),
        ("last=0h", "is no duration"),
        ("last=1h&from=2026-01-01T00:00:00Z", "Both from and last"),
        ("from=yesterday", "is no time"),
        ("to=2026-01-01T00:00:00Z&from=2026-01-01T03:00:00Z", "is empty"),
        ("until=2026-01-01T00:00:00Z", "no parameter 'until'"),
    ],
)
def test_a_range_that_cannot_be_answered_exactly_is_refused(hours_server: str, parameters: str, reason: str) -> None:
    response = httpx.get(f"{hours_server}/v1/views/hourly/sum/lamp?{parameters}")
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert reason in response.json()["detail"]


def test_a_sum_is_asked_for_by_the_parts_before_the_window(hours_server: str) -> None:
    with Client(hours_server) as client:
        for key in ((), ("lamp", "2026-01-01T00:00:00Z")):
            with pytest.raises(RequestInvalid, match="buckets of one key"):
                client.sum("hourly", *key, last="1h")


def test_a_view_without_a_window_has_no_sums(names_server: str) -> None:
    with Client(names_server) as client, pytest.raises(RequestInvalid, match="has no buckets to sum"):
        client.sum("orders", "A", last="1h")
