"""Appending through both clients, to a real server on an application's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateside.errors import EventRefused
from stateside.journal import Event, Journal
from stateside.layout import Layout
from stateside.positions import Position
from stateside.serving.clients import Client
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
        end = Journal(folder.journal).end()
        assert receipt == end
        assert client.append(events) == receipt
        with pytest.raises(EventRefused):
            client.append([{"entity": "emma"}])
    assert Journal(folder.journal).end() == end


def test_the_page_s_append_gives_a_receipt(url: str, folder: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"<!-- test: append -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block.replace("http://127.0.0.1:8471", url), {"Client": Client})
    assert Position.parse(capsys.readouterr().out.strip()) == Journal(folder.journal).end()


def test_without_an_event_nothing_is_sent(url: str) -> None:
    nothing: list[Any] = []
    with Client(url) as client, pytest.raises(Exception, match="no event to append"):
        client.append(nothing)
