"""Appending through both clients, to a real server on an application's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import EventRefused
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, FileLog
from stateside.serving.clients import Client, requests
from stateside.serving.web.event_routes import BODY_BYTES_MAX, EVENTS_MAX
from tests.serving.conftest import serving

from .asked import KINDS

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return Layout(tmp_path_factory.mktemp("application"))


@pytest.fixture(scope="module")
def url(folder: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serving(folder, tmp_path_factory.mktemp("logs") / "server.log", "/v1/views")


@pytest.mark.parametrize("kind", list(KINDS))
def test_events_are_stored_once_however_often_they_are_sent(url: str, folder: Layout, kind: str) -> None:
    events = [Event(f"{kind}-{number}", "emma", "order", 5, {"n": number}) for number in range(3)]
    with KINDS[kind](url) as client:
        receipt = client.append(events)
        end = FileLog(folder.journal).end()
        assert receipt == end
        assert client.append(events) == receipt
        with pytest.raises(EventRefused):
            client.append([{"entity": "emma"}])
    assert FileLog(folder.journal).end() == end


def test_the_page_s_append_gives_a_receipt(url: str, folder: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"<!-- test: append -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block.replace("http://127.0.0.1:8471", url), {"Client": Client})
    assert Position.parse(capsys.readouterr().out.strip()) == FileLog(folder.journal).end()


def test_without_an_event_nothing_is_sent(url: str) -> None:
    nothing: list[Any] = []
    with Client(url) as client, pytest.raises(Exception, match="no event to append"):
        client.append(nothing)


def many(kind: str, count: int, **payload: Any) -> list[Event]:
    return [Event(f"{kind}-{number}", "emma", "order", 5, {"n": number, **payload}) for number in range(count)]


def stored(folder: Layout, kind: str) -> list[str]:
    return [event.id for event in FileLog(folder.journal).events() if event.id.startswith(f"{kind}-")]


@pytest.mark.parametrize("kind", list(KINDS))
def test_more_events_than_a_request_may_have_are_sent_in_several_and_stored_in_order(
    url: str, folder: Layout, kind: str
) -> None:
    events = many(f"many {kind}", 2 * EVENTS_MAX + 1)
    with KINDS[kind](url) as client:
        receipt = client.append(events)
        assert receipt == FileLog(folder.journal).end()
        assert client.append(events) == receipt
    assert stored(folder, f"many {kind}") == [event.id for event in events]


@pytest.mark.parametrize("kind", list(KINDS))
def test_when_a_request_in_the_middle_fails_those_before_it_are_stored_and_the_error_says_how_many(
    url: str, folder: Layout, kind: str
) -> None:
    name = f"broken {kind}"
    events: list[Any] = [
        {"id": f"{name}-{number}", "entity": "emma", "type": "order"} for number in range(3 * EVENTS_MAX)
    ]
    mended = [*events]
    events[EVENTS_MAX + 5] = {"id": f"{name}-{EVENTS_MAX + 5}", "type": "order"}
    with KINDS[kind](url) as client:
        with pytest.raises(EventRefused, match=r"no entity.*The first 1,000 of 3,000 events are stored"):
            client.append(events)
        assert len(stored(folder, name)) == EVENTS_MAX, "of the request that failed nothing, and nothing after it"
        client.append(mended)
    assert stored(folder, name) == [event["id"] for event in mended], "each once"


def test_events_that_are_large_are_divided_by_their_size(url: str, folder: Layout) -> None:
    text = "ü" * 30_000  # six bytes each in JSON
    with Client(url) as client:
        client.append(many("large", 60, text=text))
    assert len(stored(folder, "large")) == 60
    sent = list(requests.appended(many("large", 60, text=text)))
    assert sum(count for count, _ in sent) == 60
    assert len(sent) > 1
    assert all(len(ask.body or b"") <= BODY_BYTES_MAX for _, ask in sent)


def test_the_client_knows_what_a_server_takes() -> None:
    assert (requests.EVENTS_MAX, requests.EVENTS_BYTES_MAX + 64) == (EVENTS_MAX, BODY_BYTES_MAX)
