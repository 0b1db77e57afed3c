"""The pages of a server on a checkpoint that is not ours: views and control room, and no bills."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.pages.conftest import Browsing
from tests.serving.cluster import Cluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make setup").expect


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_any_job_s_views_are_browsed_and_watched_and_nobody_claims_that_they_are_fresh(
    browser: Browser, cluster: Cluster
) -> None:
    browsing = Browsing(browser, cluster.start("one"))
    assert httpx.get(f"{browsing.url}/bill").status_code == 404
    page = browsing.page("/")
    expect(page).to_have_url(f"{browsing.url}/control")
    expect(page.locator(".node").nth(1)).to_contain_text("Not ours")
    expect(page.locator("nav a")).to_have_text(["Control room", "Views"])
    page.get_by_role("link", name="Views").click()
    expect(page.get_by_role("heading", name="spending")).to_be_visible()
    sign = page.locator(".fresh").first
    expect(sign).to_have_attribute("data-kind", "commit")
    expect(sign).to_have_text(re.compile("Last batch .* ago"))
    expect(page.locator("#panel-rows tbody tr")).to_have_count(25)
    page.get_by_role("button", name="Watch c000, de").click()
    row = page.locator("#panel-watch tbody tr")
    expect(row).to_contain_text("c000")
    before = row.text_content()  # as it is compared, without the tabulators
    cluster.batch()
    expect(row).not_to_have_text(before, timeout=10_000)
    expect(page.locator(".told-list li").first).to_contain_text("1 changed")
    browsing.close()
