"""The business page, in a real browser: totals, and what is asked by SQL, of the period that is chosen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.pages.conftest import Browsing, Theatre, until
from tests.pages.stage import RICH
from tests.pages.test_bill import amount_of

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.browser
expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make setup").expect


def test_business_shows_totals_top_customers_corrections_and_dead_letters(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/business")
    totals = httpx.get(f"{theatre.url}/v1/periods/2026-01/totals").json()["currencies"][0]["total_micros"]
    page.get_by_label("Period", exact=True).select_option("2026-01")
    expect(page.locator(".kpis .num").first).to_have_text(f"€{totals / 1e6:,.2f}")
    top = page.get_by_role("region", name="Top customers")
    expect(top.locator("tbody tr").first).to_contain_text("emma", timeout=20_000)
    expect(page.get_by_role("region", name="Corrections")).to_contain_text("debit note")
    letters = page.get_by_role("region", name="Dead letters")
    expect(letters).to_contain_text("2 unknown customer")
    expect(letters).to_contain_text("The quantity -5 is below 0")
    top.get_by_role("link", name="emma").click()
    expect(page).to_have_url(re.compile("/bill/emma"))


def test_business_compares_a_period_with_the_one_before_at_the_same_day(browsing: Browsing, theatre: Theatre) -> None:
    """April stands at the 18th, half past two: the last full hour is two, and March is taken up to the same one."""
    page = browsing.page("/business")
    tile = page.locator(".kpis > div").nth(1)
    expect(tile).to_contain_text("by 18 Mar, 14:00", timeout=20_000)
    (euros,) = httpx.get(f"{theatre.url}/v1/periods/2026-04/pace").json()["pace"]["currencies"]
    now, before = euros["amount_micros"], euros["amount_before_micros"]
    whole = httpx.get(f"{theatre.url}/v1/periods/2026-03/totals").json()["currencies"][0]["total_micros"]
    assert 0 < before < whole == sum(euros["days_before"])
    expect(tile.locator("dt")).to_have_text("Against March 2026 at the same day")
    shown = "times" if now / before >= 10 else f"{now / before - 1:+.1%}".replace(".0%", "%")
    expect(tile.locator(".num")).to_contain_text(shown)
    expect(tile).to_contain_text(f"which had €{before / 1e6:,.2f}")
    days = page.get_by_role("region", name="Day by day")
    expect(days.locator("path.line")).to_have_count(2)
    days.get_by_role("img").focus()
    page.keyboard.press("End")
    expect(days.locator(".tip")).to_contain_text("18 Apr, 14:00")
    expect(days.locator(".tip")).to_contain_text(f"March 2026€{before / 1e6:,.2f}")


def test_a_period_is_shown_in_its_first_hour(browsing: Browsing) -> None:
    """A bug once: before the first full hour there is no point to tell of, and all of the page failed."""
    page = browsing.page("/control")
    found = httpx.get(f"{browsing.url}/v1/periods/2026-04/pace", timeout=60).json()
    for one in found["pace"]["currencies"]:
        one |= {"hours": 0, "days": [0], "amount_micros": 0, "amount_before_micros": 0}
    page.route("**/pace", lambda route: route.fulfill(json=found))
    page.goto(f"{browsing.url}/business")
    chart = page.get_by_role("region", name="Day by day").get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile("against March 2026. Its first hour is not over"))
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_pace_that_cannot_be_made_is_told_as_long_as_that_is_so(browsing: Browsing) -> None:
    page = browsing.context().new_page()
    page.route("**/pace", lambda route: route.fulfill(status=503, json={"detail": "There is no room"}))
    page.goto(f"{browsing.url}/business")
    days = page.get_by_role("region", name="Day by day").get_by_role("alert")
    expect(days).to_contain_text("There is no room", timeout=20_000)
    page.evaluate("document.querySelector('[aria-label=\"Day by day\"] [role=alert]').id = 'the-same'")
    for _ in range(2):
        page.wait_for_event("response", lambda response: response.url.endswith("/v1/periods"))
    expect(page.locator("#the-same")).to_be_visible()
    expect(page.locator(".kpis > div").nth(1)).to_contain_text("cannot be shown")


def test_a_pace_of_an_older_batch_says_what_it_is_of(browsing: Browsing) -> None:
    page = browsing.page("/control")
    found = httpx.get(f"{browsing.url}/v1/periods/2026-04/pace", timeout=60).json()
    found["stamp"] |= {"batch": 1, "age_ms": 600_000}
    page.route("**/pace", lambda route: route.fulfill(json=found))
    page.goto(f"{browsing.url}/business")
    expect(page.locator(".kpis > div").nth(1)).to_contain_text("; as of ", timeout=20_000)


def test_an_answer_about_another_period_than_the_chosen_one_is_not_shown(browsing: Browsing) -> None:
    held: list[Route] = []
    page = browsing.context().new_page()

    def asked(route: Route) -> None:
        if "GROUP BY customer" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/sql", asked)
    page.goto(f"{browsing.url}/business")
    until(lambda: len(held) == 1, page)  # April's, in which one customer is by far the largest
    page.get_by_label("Period", exact=True).select_option("2026-01")
    held[0].continue_()
    until(lambda: len(held) == 2, page)
    top = page.get_by_role("region", name="Top customers")
    expect(top.locator(".empty")).to_have_text("…")
    expect(top).not_to_contain_text(RICH)
    held[1].continue_()
    expect(top.locator("tbody tr").first).to_contain_text("emma", timeout=20_000)


def test_what_business_shows_adds_up(browsing: Browsing, theatre: Theatre) -> None:
    """A bug once: a total of €18,000.00 beside “Sealed €18,000.06”."""
    page = browsing.page("/business")
    for period in ("2026-01", "2026-02", "2026-03"):
        page.get_by_label("Period", exact=True).select_option(period)
        (total,) = httpx.get(f"{theatre.url}/v1/periods/{period}/totals").json()["currencies"]
        kpis = page.locator(".kpis")
        expect(kpis.locator(".num").first).to_have_text(f"€{total['total_micros'] / 1e6:,.2f}")
        shown, sealed = (amount_of(kpis.locator(".num").nth(place).inner_text()) for place in (0, 2))
        note = kpis.locator("div").first.locator(".muted").inner_text()
        assert shown == sealed + (amount_of(note) if "still open" in note else 0)
        rows = page.get_by_role("region", name="By type").locator("tbody tr td:nth-child(3)")
        *types, total_shown = [amount_of(text) for text in rows.all_inner_texts()]
        assert sum(types) == total_shown == shown
