"""The views of a job, in a real browser: looked up, watched, and asked by SQL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.pages.conftest import Browsing, Theatre, until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser
expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make setup").expect

BIG = 2**53 + 1  # which no number of JavaScript is
SHOWN_MOST = 500  # rows that are watched


def test_views_are_browsed_looked_up_watched_and_asked_by_sql(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/views")
    rows = page.locator("#panel-rows tbody tr")
    expect(rows).to_have_count(25)
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".rows-foot")).to_contain_text("page 2")
    page.get_by_label("customer", exact=True).fill("emma")
    page.get_by_label("Only rows with").fill("type=message & events>=1")
    page.get_by_role("button", name="Look up").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name=re.compile("Watch emma")).last.click()
    expect(page.locator("#panel-watch .fresh")).to_have_attribute("data-kind", "live")
    theatre.stage.use("emma", "message", 3)
    expect(page.locator(".told-list")).to_contain_text("1 changed", timeout=10_000)
    page.get_by_role("tab", name="Schema").click()
    expect(page.locator("#panel-schema")).to_contain_text("amount_micros")
    page.get_by_role("tab", name="SQL").click()
    page.get_by_label("Statement").fill("SELECT type, sum(events) AS events FROM bill GROUP BY type ORDER BY 2 DESC")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".sql .chart rect").first).to_be_attached(timeout=20_000)
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    assert Path(saved.value.path()).read_text().startswith('"type","events"')
    page.get_by_label("Statement").fill("DROP TABLE bill")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("The statement was not answered")
    expect(page.get_by_role("button", name="CSV")).to_be_disabled()
    browsing.noted.errors.clear()  # Chromium itself tells of the 400, which was wanted here


def test_what_is_typed_is_asked_only_when_it_is_looked_up(browsing: Browsing, theatre: Theatre) -> None:
    """A bug once: every batch asked what stood in the fields, and the next page was one of another question."""
    page, asked = browsing.page("/views/bill"), list[str]()
    page.on("request", lambda request: asked.append(request.url) if "/rows?" in request.url else None)
    expect(page.locator("#panel-rows tbody tr")).to_have_count(25)
    page.get_by_label("customer", exact=True).fill("em")
    page.get_by_label("Only rows with").fill("type=mess")
    theatre.stage.use("emma", "message", 1)
    until(lambda: bool(asked), page)
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".rows-foot")).to_contain_text("page 2")
    assert not [url for url in asked if "key=" in url or "where=" in url]


def test_the_focus_stays_on_a_row_that_a_batch_changes(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/views/bill")
    page.get_by_label("customer", exact=True).fill("emma")
    page.get_by_label("Only rows with").fill("type=message")
    page.get_by_role("button", name="Look up").click()
    row = page.locator(
        "#panel-rows tbody tr", has=page.get_by_role("button", name=re.compile("Watch emma, 2026-04-30"))
    )
    expect(page.locator("#panel-rows tbody tr")).to_have_count(2)
    row.get_by_role("button").focus()
    before = row.text_content()
    theatre.stage.use("emma", "message", 1)
    expect(row).not_to_have_text(before, timeout=20_000)
    expect(row.get_by_role("button")).to_be_focused()


def test_of_two_questions_the_later_one_is_shown_whichever_is_answered_first(browsing: Browsing) -> None:
    held: list[Route] = []
    page = browsing.page("/views/bill")
    expect(page.locator("#panel-rows tbody tr")).to_have_count(25)
    page.route("**/rows?*key=emma*", lambda route: held.append(route))
    look_up(page, "emma")
    until(lambda: bool(held), page)
    look_up(page, "ben")
    first = page.locator("#panel-rows tbody tr").first
    expect(first).to_contain_text("ben")
    with page.expect_response("**/rows?*key=emma*"):
        held[0].continue_()
    page.wait_for_timeout(200)
    expect(first).to_contain_text("ben")


def look_up(page: Page, customer: str) -> None:
    page.get_by_label("customer", exact=True).fill(customer)
    page.get_by_role("button", name="Look up").click()


def test_a_watch_that_has_ended_does_not_come_back_when_the_page_is_seen_again(browsing: Browsing) -> None:
    page, asked = browsing.page("/views/bill#watch"), list[str]()
    for customer in ("emma", "ben"):
        watch(page, customer)
        expect(page.locator("#panel-watch tbody tr").first).to_contain_text(customer)
    page.on("request", lambda request: asked.append(request.url) if "/changes?" in request.url else None)
    for hidden in ("true", "false"):
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(".told-list li")).to_have_count(2)  # what there is to begin with, once more
    assert [url.partition("key=")[2] for url in asked] == ["ben"]
    expect(page.locator("#panel-watch tbody")).not_to_contain_text("emma")


def test_what_was_watched_is_watched_again_when_its_tab_is_opened_again(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/views/bill#watch")
    watch(page, "emma")
    expect(page.locator("#panel-watch tbody tr").first).to_contain_text("emma")
    page.get_by_role("tab", name="Schema").click()
    page.get_by_role("tab", name="Watch").click()
    expect(page.locator(".told-list")).to_contain_text("to begin with")
    expect(page.locator("#panel-watch .fresh")).to_have_attribute("data-kind", "live")
    theatre.stage.use("emma", "message", 1)
    expect(page.locator(".told-list")).to_contain_text("1 changed", timeout=20_000)


def test_a_watch_that_begins_with_many_rows_has_those_of_all_pages_and_says_where_it_ends(browsing: Browsing) -> None:
    """A bug once: each page of the rows took the place of the one before."""
    page = browsing.page("/views/bill#watch")
    found = httpx.get(f"{browsing.url}/v1/views/bill/rows?limit=1").json()
    rows = [{**found["rows"][0], "customer": f"w{number:04}"} for number in range(SHOWN_MOST + 100)]
    told = [
        f"event: snapshot\ndata: {json.dumps({'stamp': found['stamp'], 'rows': some, 'last': last})}\n\n"
        for some, last in ((rows[:400], False), (rows[400:], True))
    ]
    page.route("**/changes?*", lambda route: route.fulfill(content_type="text/event-stream", body="".join(told)))
    watch(page, "")
    expect(page.locator("#panel-watch tbody tr")).to_have_count(SHOWN_MOST)
    expect(page.locator("#panel-watch tbody tr").first).to_contain_text("w0000")
    expect(page.get_by_text(f"These are the first {SHOWN_MOST} rows of more")).to_be_visible()
    expect(page.locator(".told-list li").last).to_contain_text("600 rows to begin with")


def watch(page: Page, key: str) -> None:
    page.get_by_label(re.compile("Key: ")).fill(key)
    page.locator("#panel-watch").get_by_role("button", name="Watch").click()


def test_texts_that_begin_like_a_time_and_the_longest_whole_numbers_are_shown_as_they_are(browsing: Browsing) -> None:
    page = browsing.page("/views/bill#sql")
    odd = "2026-01-01T00:00:00 restarted"
    statement = f"SELECT '{odd}' AS note, '2026-13-45T00:00:00Z' AS late, {BIG} AS long, {{'n': {BIG}}} AS parts"
    page.get_by_label("Statement").fill(statement)
    page.get_by_role("button", name="Run").click()
    cells = page.locator(".result tbody td")
    expect(cells).to_have_text([odd, "2026-13-45T00:00:00Z", f"{BIG:,}", f'{{"n":{BIG}}}'], timeout=20_000)


def test_the_row_of_a_long_key_is_watched_by_that_very_key(browsing: Browsing) -> None:
    page = browsing.page("/control")
    found = httpx.get(f"{browsing.url}/v1/views/bill/rows?limit=1").json()
    body = json.dumps({**found, "rows": [{**found["rows"][0], "customer": BIG}]})
    page.route("**/rows?*", lambda route: route.fulfill(content_type="application/json", body=body))
    page.goto(f"{browsing.url}/views/bill")
    with page.expect_request("**/changes?*") as asked:
        page.get_by_role("button", name=re.compile(f"Watch {BIG}")).click()
    assert f"key={BIG}&" in asked.value.url
