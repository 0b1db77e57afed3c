"""`make recording`: docs/pages/live.gif, the live demo's page while Spark is killed and the invoice store is away.

A real live demo runs in a folder of its own, and a real Chromium presses its buttons. A frame is taken every second;
only what is interesting is kept: some seconds before and after each press, and until answers are fresh again.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from PIL import Image  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402

from tests.pages.conftest import ADVICE, chromium  # noqa: E402
from tests.pages.test_live_demo import LiveDemo  # noqa: E402

FILE: Final = TOP / "docs" / "pages" / "live.gif"
COLOURS: Final = 128
FRAME_MS: Final = 700
AROUND: Final = 4  # frames before and after a press
FRESH_FRAMES_MAX: Final = 240
KEPT_WHILE_OLD: Final = 6  # of the frames until answers are fresh again


def main() -> None:
    """Record, and write the file."""
    found = chromium()
    if found is None:
        sys.exit(ADVICE)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        demo = LiveDemo(Path(folder))
        try:
            demo.wait_for_periods(3)
            args = ["--no-sandbox"] if os.geteuid() == 0 else []
            page = playwright.chromium.launch(executable_path=found, args=args).new_page(
                viewport={"width": 960, "height": 700}
            )
            page.goto(demo.address)
            frames = recorded(page)
        finally:
            demo.stop()
    frames[0].save(FILE, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, optimize=True)
    print(f"{FILE.relative_to(TOP)}: {len(frames)} frames, {FILE.stat().st_size:,} bytes")


def recorded(page: Page) -> list[Image.Image]:
    """Spark is killed and comes back; the store goes away and comes back; the next month is audited."""
    frames = taken(page, AROUND)
    page.get_by_role("button", name="Kill Spark's driver").click()
    frames += taken(page, AROUND) + until_fresh(page)
    page.get_by_role("button", name="Take the invoice store away").click()
    frames += taken(page, AROUND)
    page.get_by_role("button", name="Bring the invoice store back").click()
    return frames + taken(page, AROUND) + until_fresh(page) + taken(page, AROUND)


def until_fresh(page: Page) -> list[Image.Image]:
    """Frames until the story's newest lines say that answers are fresh again, thinned to a few."""
    frames: list[Image.Image] = []
    for _ in range(FRESH_FRAMES_MAX):
        newest = page.locator(".story li").first.inner_text()
        if "fresh again" in newest:
            break
        frames += taken(page, 1)
    return frames[:: max(1, len(frames) // KEPT_WHILE_OLD)]


def taken(page: Page, count: int) -> list[Image.Image]:
    """Frames, one a second, with few colours."""
    frames = []
    for _ in range(count):
        page.wait_for_timeout(1_000)
        shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(shown.quantize(COLOURS, dither=Image.Dither.NONE))
    return frames


if __name__ == "__main__":
    main()
