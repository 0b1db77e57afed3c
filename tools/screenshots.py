"""`make screenshots`: the pictures of the pages in docs/pages, in light and dark, taken again with a real Chromium.

The pages show the stage of `tests/pages/stage.py`: four months of billing that are the same each time. What is on the
pictures and changes all the time (ages, rates, the time of day) is not.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from playwright.sync_api import Page, sync_playwright  # noqa: E402

from stateside.core.layout import Layout  # noqa: E402
from stateside.leadership import Candidate  # noqa: E402
from stateside.serving.access.tokens import Issuer  # noqa: E402
from tests.pages.conftest import ADVICE, chromium  # noqa: E402
from tests.pages.stage import LONG, RICH, Stage, serving  # noqa: E402

FOLDER = TOP / "docs" / "pages"
DESK, PHONE = (1280, 860), (390, 844)


@dataclass(frozen=True)
class Picture:
    """One picture: of which page, once what is shown, after which clicks."""

    name: str
    address: str
    ready: str
    size: tuple[int, int] = DESK
    clicks: Sequence[str] = ()
    whole: bool = True
    wait_ms: int = 900


PICTURES = (
    Picture("bill", "/bill/emma", ".days svg path", clicks=("text=February 2026",)),
    Picture("bill-phone", "/bill/emma", ".days svg path", PHONE),
    Picture("bill-events", "/bill/emma", ".days svg path", clicks=(".type-row >> nth=0",), whole=False),
    Picture("bill-long-name", f"/bill/{LONG}", ".days svg path", PHONE, whole=False),
    Picture("bill-none", "/bill/nobody", "text=No bill yet"),
    Picture("business", "/business", "text=debit notes", clicks=("text=invoices by period",), wait_ms=2_500),
    Picture("business-phone", "/business", "text=debit notes", PHONE, wait_ms=2_500),
    Picture("control", "/control", ".node-spark path", clicks=("text=Take a savepoint",), wait_ms=6_000),
    Picture("control-phone", "/control", ".node-spark path", PHONE, whole=False, wait_ms=2_000),
    Picture("views", "/views", "#panel-rows tbody tr", whole=False),
    Picture("views-phone", "/views", "#panel-rows tbody tr", PHONE, whole=False),
    Picture("views-sql", "/views", "#panel-rows tbody tr", clicks=("#tab-sql", "text=by customer"), wait_ms=2_500),
)
TEN_MILLION = (
    Picture("bill-ten-million", f"/bill/{RICH}", ".days svg path", PHONE, whole=False),
    Picture("business-ten-million", "/business", "text=debit notes", whole=False, wait_ms=2_500),
)
NOBODY = (
    Picture("bills-nobody", "/bill", "text=No customer has", whole=False),
    Picture("business-nobody", "/business", "text=nothing has been used yet", wait_ms=2_500),
    Picture("control-nobody", "/control", ".node-spark", whole=False, wait_ms=2_500),
    Picture("views-nobody", "/views", "h1", whole=False, wait_ms=1_500),
)
DOWN = (
    Picture("bill-job-down", "/bill/emma", "text=Job is down", whole=False),
    Picture("control-job-down", "/control", "text=is down", whole=False, wait_ms=2_000),
)
GUARDED = (
    Picture("sign-in", "/sign-in", "text=Stay signed in", whole=False),
    Picture("sign-in-refused", "/sign-in", "h1", clicks=("button[type=submit]",), whole=False),
)


def main(wanted: Sequence[str]) -> int:
    """Take those whose names begin with one of these; all without any."""
    found = chromium()
    if found is None:
        print(f"screenshots: {ADVICE}", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        with staged(rich=True, customers=3) as (_, url):
            Camera(browser, url, wanted).all(TEN_MILLION)
        with staged(rich=False, customers=None) as (_, url):
            Camera(browser, url, wanted).all(NOBODY)
        with staged(rich=False, customers=60) as (stage, url):
            camera = Camera(browser, url, wanted)
            with flowing(stage), led(stage):
                camera.all(PICTURES)
            stage.kill()
            camera.all(DOWN)
            Issuer(stage.layout).create_operator("boss")
            camera.all(GUARDED)
        browser.close()
    return 0


@contextmanager
def staged(*, rich: bool, customers: int | None) -> Iterator[tuple[Stage, str]]:
    """A stage that is played on, and the address of the server before it; None: there is no customer at all."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Layout(Path(folder) / "stage"), customers or 0, rich=rich)
        if customers is None:
            stage.names = []
            stage.open()
        else:
            stage.play()
        stage.begin()
        try:
            with serving(stage.layout.root) as url:
                yield stage, url
        finally:
            stage.kill()


@contextmanager
def flowing(stage: Stage) -> Iterator[None]:
    """Somebody sends messages all the time, so that there is something to see."""
    ends = threading.Event()

    def flow() -> None:
        while not ends.wait(0.4):
            stage.use("ben", "message", 1)

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextmanager
def led(stage: Stage) -> Iterator[None]:
    """Somebody leads the application, and somebody stands by."""
    ends, root = threading.Event(), stage.layout.root
    leader = Candidate(root, "berlin-1", lease_s=10.0).wait(ends.is_set)
    assert leader is not None, "nobody else is there"
    thread = threading.Thread(target=Candidate(root, "berlin-2", lease_s=10.0).wait, args=(ends.is_set,))
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        leader.release()
        shutil.rmtree(root / "lease")


class Camera:
    """Takes pictures of a server's pages."""

    def __init__(self, browser: Any, url: str, wanted: Sequence[str]) -> None:
        self._browser, self._url, self._wanted = browser, url, wanted

    def all(self, pictures: Sequence[Picture]) -> None:
        """Each of them in light and dark."""
        for picture in pictures:
            if not self._wanted or picture.name.startswith(tuple(self._wanted)):
                for colours in ("light", "dark"):
                    self.take(picture, colours)

    def take(self, picture: Picture, colours: str) -> None:
        """One picture in these colours."""
        width, height = picture.size
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=colours,
            locale="en-GB",
            timezone_id="Europe/Berlin",
            reduced_motion="reduce",
        )
        page: Page = context.new_page()
        page.goto(self._url + picture.address)
        page.locator(picture.ready).first.wait_for(state="attached", timeout=30_000)
        for selector in picture.clicks:
            page.locator(selector).first.click()
        page.wait_for_timeout(picture.wait_ms)
        path = FOLDER / f"{picture.name}-{colours}.png"
        page.screenshot(path=path, full_page=picture.whole)
        print(f"screenshots: {path.relative_to(TOP)}, {path.stat().st_size // 1024} KiB")
        context.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
