"""An HTTP endpoint: a repeated batch makes the same requests, and the endpoint knows them by their keys."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from datetime import datetime

import pyarrow as pa
import pytest

from stateside.core.errors import SetupError, SinkAway, SinkRefused, ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.sinks.http import Endpoint, http
from stateside.pipeline.sinks.sink import BatchId, Guarantee, OnStep, Sink, SinkContext, SinkFactory

from .endpoint import Store, endpoint
from .harness import SCHEMA, VIEW, SinkCase, SinkSuite, Trial, Values, Verdict, World, some_rows


def store_of(layout: Layout) -> Store:
    return Store(layout.root / "endpoint.jsonl")


def posted(world: World, on_step: OnStep) -> SinkFactory:
    return http(world.address, rows_per_request_max=2, on_step=on_step)


def read_back(world: World) -> list[Values]:
    return [(row["id"], row["n"], datetime.fromisoformat(row["at"])) for row in store_of(world.layout).rows()]


class TestHttp(SinkSuite):
    case = SinkCase(
        "http", posted, read_back, steps=range(1, 5), moment_ms_max=120, imports=["httpx", "httpcore", "h11", "certifi"]
    )

    @pytest.fixture
    def address(self, url: str) -> str:
        return url

    @pytest.mark.e2e
    def test_killed_between_two_parts_it_sends_the_first_again_without_effect(
        self, trial: Callable[[Guarantee], Trial]
    ) -> None:
        killed = trial("exactly-once")
        for _ in range(5):
            killed.kill_at(3)
        assert killed.judge() == Verdict()

    @pytest.mark.e2e
    def test_killed_while_the_endpoint_comes_and_goes_it_neither_loses_nor_doubles_a_row(
        self, trial: Callable[[Guarantee], Trial], store: Store
    ) -> None:
        killed = trial("exactly-once")
        for seed in range(2):
            store.answers = [(503, {})] * 60
            killed.kill_at_moments(seed)
        assert killed.judge() == Verdict()
        assert not store.answers


@pytest.fixture
def store(layout: Layout) -> Store:
    return store_of(layout)


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with endpoint(store) as url:
        yield url


def opened(layout: Layout, factory: SinkFactory) -> Sink:
    return factory(SinkContext(layout, VIEW, SCHEMA))


def rows(count: int = 3) -> pa.Table:
    return pa.table({"id": [f"{n}" for n in range(count)], "n": [1] * count, "at": [0] * count}, SCHEMA)


def test_a_repeated_batch_sends_the_same_bytes_and_keys_in_whatever_order_its_rows_come(
    layout: Layout, store: Store, url: str
) -> None:
    sink = opened(layout, http(url, rows_per_request_max=4))
    given = [row for batch in range(4) for row in some_rows(batch)]
    for attempt in range(4):
        random.Random(attempt).shuffle(given)
        sink.write(pa.Table.from_pylist(given, SCHEMA), BatchId("q", 7))
    sent = [(headers["idempotency-key"], body) for headers, body in store.requests]
    parts = -(-len(given) // 4)
    assert len(sent) == 4 * parts
    assert len(set(sent)) == len({key for key, _ in sent}) == parts
    assert len(store.rows()) == len(given)


def test_a_request_says_what_it_is_a_part_of(layout: Layout, store: Store, url: str) -> None:
    opened(layout, http(url, rows_per_request_max=2)).write(rows(3), BatchId("q", 7))
    assert [{name: line[name] for name in ("view", "query", "batch", "part", "parts")} for line in store.lines()] == [
        {"view": VIEW, "query": "q", "batch": 7, "part": part, "parts": 2} for part in range(2)
    ]
    assert store.rows()[0] == {"id": "0", "n": 1, "at": "1970-01-01T00:00:00Z"}


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_endpoint_that_is_away_for_a_while_holds_the_batch(
    layout: Layout, store: Store, url: str, status: int
) -> None:
    store.answers = [(status, {})] * 3
    sink = opened(layout, http(url))
    for _ in range(3):
        with pytest.raises(SinkAway, match=f"answered {status}"):
            sink.write(rows(), BatchId("q", 0))
    sink.write(rows(), BatchId("q", 0))
    assert len(store.rows()) == 3


def test_an_endpoint_that_nobody_serves_holds_the_batch(layout: Layout) -> None:
    with endpoint(store_of(layout)) as url:
        sink = opened(layout, http(url))
    with pytest.raises(SinkAway, match="does not answer: ConnectError"):
        sink.write(rows(), BatchId("q", 0))


def test_an_endpoint_that_is_too_slow_holds_the_batch(layout: Layout, store: Store, url: str) -> None:
    sink = opened(layout, http(url, timeout_s=0.2))
    with store.lock, pytest.raises(SinkAway, match="does not answer: ReadTimeout"):
        sink.write(rows(), BatchId("q", 0))
    opened(layout, http(url)).write(rows(), BatchId("q", 0))
    assert len(store.rows()) == 3


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 422])
def test_a_refusal_is_told_with_its_status_and_the_beginning_of_its_reason(
    layout: Layout, store: Store, url: str, status: int
) -> None:
    store.answers = [(status, {})]
    with pytest.raises(SinkRefused, match=f"with {status}: 'no, no, ") as refused:
        opened(layout, http(f"{url}?token=secret")).write(rows(), BatchId("q", 0))
    assert len(refused.value.what) < 300
    assert "secret" not in str(refused.value)
    assert url in str(refused.value)


@pytest.mark.parametrize(
    ("header", "pause_s"), [("7", 7), ("100000", 300), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", 0)]
)
def test_a_pause_that_the_endpoint_asks_for_is_kept_up_to_a_limit(
    store: Store, url: str, header: str, pause_s: float
) -> None:
    now_s = [0.0]
    other_side = Endpoint(url, {}, 5, lambda: now_s[0])
    store.answers = [(429, {"Retry-After": header})]
    with pytest.raises(SinkAway, match="answered 429"):
        other_side.post(b'{"rows":[]}', "key")
    now_s[0] = pause_s - 1
    if pause_s:
        with pytest.raises(SinkAway, match="asked for a pause, of which 1 s are left"):
            other_side.post(b'{"rows":[]}', "key")
        assert len(store.requests) == 1
    now_s[0] = pause_s
    other_side.post(b'{"rows":[]}', "key")
    assert len(store.requests) == 2


def test_a_header_from_the_environment_is_sent_and_never_shown(
    layout: Layout, store: Store, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    factory = http(url, headers={"Authorization": "env:TOKEN", "X-From": "stateside"})
    monkeypatch.setenv("TOKEN", "Bearer hush")
    sink = opened(layout, factory)
    monkeypatch.delenv("TOKEN")
    sink.write(rows(), BatchId("q", 0))
    headers, _ = store.requests[0]
    assert (headers["authorization"], headers["x-from"]) == ("Bearer hush", "stateside")
    assert "hush" not in f"{caplog.text}{factory!r}{sink!r}{vars(sink)!r}"


def test_a_header_whose_variable_is_not_set_is_told(layout: Layout, url: str) -> None:
    with pytest.raises(SetupError, match="'Authorization' is to come from the environment variable 'NOBODY_SET_THIS'"):
        opened(layout, http(url, headers={"Authorization": "env:NOBODY_SET_THIS"}))


@pytest.mark.parametrize("value", ["hush\n", "", " hush", "hüsh", "hu\x00sh"])
def test_a_secret_that_no_header_can_have_is_told_without_showing_it(
    layout: Layout, url: str, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr("os.environ", {"TOKEN": value})
    with pytest.raises(SetupError, match="The value of the header 'Authorization'") as refused:
        opened(layout, http(url, headers={"Authorization": "env:TOKEN"}))
    assert not value.strip() or value.strip() not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://emma:hush@host/", "http://emma@host/", "ftp://host/", "host/path", "", "http:///x"]
)
def test_a_url_that_is_none_or_has_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ViewInvalid) as refused:
        http(url)
    assert "hush" not in str(refused.value)


def test_a_type_without_a_json_form_is_refused_before_a_run(layout: Layout) -> None:
    with pytest.raises(ViewInvalid, match="'a' is of the type"):
        http("http://host/")(SinkContext(layout, VIEW, pa.schema([("a", pa.month_day_nano_interval())])))


def test_a_batch_begun_with_one_limit_is_repeated_with_it_after_the_setting_was_changed(
    layout: Layout, store: Store, url: str
) -> None:
    opened(layout, http(url, rows_per_request_max=4)).write(rows(8), BatchId("q", 0))
    changed = opened(layout, http(url, rows_per_request_max=3))
    changed.write(rows(8), BatchId("q", 0))
    assert len(store.rows()) == 8
    changed.write(rows(8), BatchId("q", 1))
    opened(layout, http(url, rows_per_request_max=8)).write(rows(8), BatchId("q", 1))
    assert [len(line["rows"]) for line in store.lines()] == [4, 4, 3, 3, 2]
