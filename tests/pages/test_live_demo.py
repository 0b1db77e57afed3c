"""The live demo in a real browser, over real Spark: parts are broken by buttons, and every sum stays right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.pages.conftest import Browsing
from tests.sizes import in_full

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(900)]
WAIT_S_MAX = 300.0


class LiveDemo:
    """A live demo as people start it."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "report.json"
        flags = ["--small", "--month", "8", "--no-browser", "--dir", str(folder / "demo"), "--json", str(self.report)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stateside", "demo", "--live", *flags],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.url = self.address.removesuffix("/demo")

    def state(self) -> dict[str, Any]:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/v1/demo")
            return answer.json() if answer.status_code == 200 else {}
        return {}

    def wait_for_periods(self, periods: int, page: Page | None = None) -> dict[str, Any]:
        ends_s = time.monotonic() + WAIT_S_MAX
        while (state := self.state()).get("score", {}).get("periods", 0) < periods:
            assert self.process.poll() is None and time.monotonic() < ends_s, state
            page.wait_for_timeout(200) if page else time.sleep(0.2)
        return state

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=120)
        return self.process.returncode, said


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[LiveDemo]:
    started = LiveDemo(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()


@in_full("tests/testbed/test_live.py has its parts, tests/e2e/test_demo.py the same system killed in the middle")
def test_parts_are_broken_by_buttons_and_every_bill_stays_even(demo: LiveDemo, browser: Browser) -> None:
    from playwright.sync_api import expect

    before = demo.wait_for_periods(3)
    browsing = Browsing(browser, demo.url)
    page = browsing.page("/demo")
    expect(page.get_by_text("Everything adds up")).to_be_visible()
    page.get_by_role("button", name="Kill Spark's driver").click()
    expect(page.locator(".story")).to_contain_text("answers are fresh again", timeout=WAIT_S_MAX * 1_000)
    page.get_by_role("button", name="Take the invoice store away").click()
    back = page.get_by_role("button", name="Bring the invoice store back")
    expect(back).to_be_visible()
    bill = httpx.get(f"{demo.url}/v1/customers/c0/bill")
    assert bill.status_code == 200 and bill.json()["periods"], "bills answer while the store is away"
    back.click()
    control = browsing.page("/control")
    expect(control.get_by_role("region", name="Break something")).to_be_visible()
    after = demo.wait_for_periods(before["score"]["periods"] + 3, page)
    browsing.close()
    assert after["score"]["ok"] and after["score"]["events"] > before["score"]["events"]
    code, said = demo.stop()
    report = json.loads(demo.report.read_text())
    assert code == 0 and report["ok"] and report["failed"] == 0, said
    assert "0 lost / 0 doubled / 0 uneven bills" in said
