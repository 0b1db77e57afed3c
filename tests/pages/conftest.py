"""A real Chromium, found on the machine, and pages in it that note what they must not do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from stateside.core.layout import Layout
from stateside.serving.access.tokens import Issuer
from tests.pages.stage import Stage, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_S_MAX = 60.0
ADVICE = "No Chromium is on this machine: apt install chromium, or name one in STATESIDE_CHROMIUM"


def chromium() -> str | None:
    return os.environ.get("STATESIDE_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A module's browser; every test has a context of its own in it.

    No longer than a module: as long as it is there Playwright's loop runs in this thread, and no `asyncio.run` does.
    """
    from playwright.sync_api import sync_playwright

    found = chromium()
    if found is None:
        pytest.skip(ADVICE)
    with sync_playwright() as playwright:
        args = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to be root's
        started = playwright.chromium.launch(executable_path=found, args=args)
        yield started
        started.close()


def until(condition: Callable[[], bool], page: Page) -> None:
    """Wait until something holds, while the page goes on."""
    ends_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < ends_s, "it took too long"
        page.wait_for_timeout(50)


@dataclass
class Noted:
    """What a page did that none may do."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


class Browsing:
    """Opens pages of one server, and in the end has none of them done what it must not do."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url, self.noted, self.contexts = url, Noted(), list[Any]()
        self._browser = browser

    def context(self, **options: Any) -> BrowserContext:
        options = {"locale": "en-GB", "timezone_id": "Europe/Berlin", "color_scheme": "light", **options}
        made = self._browser.new_context(**options)
        self.contexts.append(made)
        return made

    def page(self, path: str, **options: Any) -> Page:
        page = self.context(**options).new_page()
        self.watch(page)
        page.goto(self.url + path)
        return page

    def watch(self, page: Page) -> None:
        page.on("console", lambda told: self.noted.errors.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: self.noted.errors.append(str(error)))
        page.on("request", lambda asked: self._asked(asked.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "blob:", "data:")):
            self.noted.elsewhere.append(url)

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        assert self.noted == Noted(), "pages cause no errors, and ask no other host"


@dataclass(frozen=True)
class Theatre:
    """A stage that is played on, and the server before it."""

    stage: Stage
    url: str

    @property
    def layout(self) -> Layout:
        return self.stage.layout


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """Four months of billing, with the job running; no tokens."""
    stage = Stage(Layout(tmp_path_factory.mktemp("theatre") / "folder"), customers=6)
    stage.play()
    stage.begin()
    try:
        with serving(stage.layout.root) as url:
            yield Theatre(stage, url)
    finally:
        stage.kill()


@pytest.fixture
def browsing(browser: Browser, theatre: Theatre) -> Iterator[Browsing]:
    made = Browsing(browser, theatre.url)
    yield made
    made.close()


@pytest.fixture
def tokens(theatre: Theatre) -> Iterator[Callable[..., str]]:
    """Makes tokens, from which on the server needs them; none are left in the end."""
    layout, issuer = theatre.layout, Issuer(theatre.layout)

    def make(customer: str | None = None) -> str:
        return issuer.create_operator("boss") if customer is None else issuer.create_customer(customer, customer)

    yield make
    layout.keys.unlink(missing_ok=True)
    layout.issued.unlink(missing_ok=True)
