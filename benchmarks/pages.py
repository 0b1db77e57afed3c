"""The pages: how soon they are painted, how much they weigh, and whether a hundred open ones stay fresh.

Spark's part is played (`tests/pages/stage.py`); journal, replica, server and Chromium are real. A page is opened in a
browser that has never seen it; its weight is that of all answers' bodies as they are sent, until it shows what it is
for. The hundred pages are what pages ask, without the browsers (`tests/pages/open_pages.py`).
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare import Figure
from stateside.core.layout import Layout
from tests.pages.open_pages import told
from tests.pages.stage import Stage, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROUNDS = 5
OPEN_PAGES = 100
EVENTS = 30
READY = {
    "/bill/emma": ".days svg path",
    "/business": ".kpis .num >> nth=3",
    "/control": ".node-spark path",
    "/views": "#panel-rows tbody tr",
}


def run(folder: Path) -> Iterator[Figure]:
    stage = Stage(Layout(folder / "stage"), customers=60)
    stage.play()
    stage.begin()
    try:
        with serving(stage.layout.root) as url:
            yield from _painted(url)
            yield from _fresh(stage, url)
    finally:
        stage.kill()


def _painted(url: str) -> Iterator[Figure]:
    from playwright.sync_api import sync_playwright

    from tests.pages.conftest import ADVICE, chromium

    found = chromium()
    if found is None:
        raise SystemExit(ADVICE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for address, ready in READY.items():
            opened = [_opened(browser, url + address, ready) for _ in range(ROUNDS)]
            paints, shown, weights = zip(*opened, strict=True)
            yield Figure(f"{address}, first paint, median of {ROUNDS}", "ms", statistics.median(paints))
            yield Figure(f"{address}, first paint, slowest", "ms", max(paints))
            yield Figure(f"{address}, shows what it is for", "ms", statistics.median(shown))
            yield Figure(f"{address}, weight", "KiB", max(weights) / 1024)
        browser.close()


def _opened(browser: Browser, address: str, ready: str) -> tuple[float, float, int]:
    """First paint and content in milliseconds, and the bytes of all answers up to then."""
    context = browser.new_context(locale="en-GB", timezone_id="Europe/Berlin")
    page, sizes = context.new_page(), list[int]()
    page.on("requestfinished", lambda done: sizes.append(done.sizes()["responseBodySize"]))
    page.goto(address)
    page.locator(ready).first.wait_for(state="attached")
    shown_ms = page.evaluate("performance.now()")
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return paint_ms, shown_ms, sum(sizes)


def _fresh(stage: Stage, url: str) -> Iterator[Figure]:
    with ThreadPoolExecutor(1) as thread:  # Playwright's loop was in this one
        found = thread.submit(asyncio.run, told(stage, url, pages=OPEN_PAGES, events=EVENTS)).result()
    name = f"{OPEN_PAGES} open pages"
    yield Figure(f"{name}, from the append to the new amount, p50", "ms", statistics.median(found.delays_s) * 1_000)
    yield Figure(f"{name}, … p99", "ms", statistics.quantiles(found.delays_s, n=100)[98] * 1_000)
    yield Figure(f"{name}, … slowest of {len(found.delays_s):,}", "ms", max(found.delays_s) * 1_000)
    yield Figure(f"{name}, the oldest stamp that any was told", "ms", found.age_ms_max)
