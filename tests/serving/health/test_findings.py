"""The findings of a server: one implementation for `/v1/findings`, `/metrics` and the command line."""

from __future__ import annotations

import asyncio
import os
import re
import time

import httpx
import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.layout import POINTER, Layout
from stateside.serving.registry.announcement import ANNOUNCEMENT, Announcement, HeldShare
from stateside.serving.server import Worker
from stateside.views.heartbeat import Heartbeat
from tests.serving.web.application import make_application


def ask(layout: Layout, *paths: str) -> list[httpx.Response]:
    async def asked() -> list[httpx.Response]:
        transport = httpx.ASGITransport(Worker(layout, os.getpid()).application())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(asked())


def codes(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["code"] for each in answer.json()["findings"]]


def test_findings_are_the_same_at_the_route_in_metrics_and_on_the_command_line(layout: Layout) -> None:
    make_application(layout)
    Heartbeat(time.time_ns() // 1_000, None, "failed", why="The sink is full").save(layout.view("orders").heartbeat)
    findings, metrics = ask(layout, "/v1/findings", "/metrics")
    assert codes(findings) == ["job-failed", "not-answered"]  # no replica was made
    found = re.findall(r'^stateside_finding\{code="(\S+)",view="orders"\} 1.0$', metrics.text, re.MULTILINE)
    assert found == ["job-failed", "not-answered"]
    shown = CliRunner().invoke(main, ["inspect", str(layout.root), "--explain"]).stdout
    assert "The job of orders has failed" in shown and "The sink is full." in shown
    assert "not-answered" not in shown  # only servers know of replicas


@pytest.mark.parametrize("foreign", [False, True])
def test_a_folder_without_a_view_or_with_a_checkpoint_that_is_away_has_answers_too(
    layout: Layout, foreign: bool
) -> None:
    layout.root.mkdir()
    if foreign:
        POINTER.write(layout.pointer, str(layout.root / "away"))
    findings, metrics = ask(layout, "/v1/findings", "/metrics")
    assert codes(findings) == []
    assert metrics.status_code == 200


def test_a_server_that_was_away_longer_than_batches_are_kept_is_found(layout: Layout) -> None:
    make_application(layout)
    checkpoint = layout.view("orders").checkpoint
    for log in ("offsets", "commits"):
        (checkpoint / log / "0").rename(checkpoint / log / "90")
    held = HeldShare(None, 20, 0, "r", (("customer", "string"),))
    silent_us = time.time_ns() // 1_000 - 3_600_000_000
    ANNOUNCEMENT.write(layout.root / "servers" / "b.json", Announcement("b", "http://b", silent_us, {"orders": held}))
    assert "retention-short" in codes(ask(layout, "/v1/findings")[0])
    held = HeldShare(None, 90, 0, "r", (("customer", "string"),))
    ANNOUNCEMENT.write(layout.root / "servers" / "b.json", Announcement("b", "http://b", silent_us, {"orders": held}))
    assert "retention-short" not in codes(ask(layout, "/v1/findings")[0])
