"""My bill, in a real browser: the amount follows the events, its freshness is told as it is, and it is one's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stateside.billing.model import DAY_US
from stateside.core.layout import Layout
from stateside.core.processes import free_port
from stateside.serving.access.tokens import Issuer
from tests.pages.conftest import Browsing, Theatre, until
from tests.pages.stage import APRIL, FEBRUARY, LONG, MARCH, NOW_US, RICH, Stage, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser
expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make setup").expect

FRESH = ".fresh"


def charged_micros(theatre: Theatre, customer: str) -> int:
    periods: list[dict[str, Any]] = httpx.get(f"{theatre.url}/v1/customers/{customer}/bill").json()["periods"]
    found: int = next(one["charged_micros"] for one in reversed(periods) if one["state"] == "draft")
    return found


def shown(micros: int) -> str:
    return f"€{micros / 1_000_000:,.2f}"


def test_the_amount_follows_appended_events_to_the_cent(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/bill/emma")
    amount = page.locator("#amount")
    expect(amount).to_have_text(shown(charged_micros(theatre, "emma")))
    for _ in range(3):
        before = charged_micros(theatre, "emma")
        theatre.stage.use("emma", "package", 1, name="weekend")
        expect(amount).to_have_text(shown(before + 4_990_000), timeout=10_000)
    expect(page.locator(FRESH)).to_have_attribute("data-kind", "live")


def test_where_streams_do_not_get_through_it_asks_instead(browsing: Browsing, theatre: Theatre) -> None:
    context = browsing.context()
    context.route("**/bill/changes", lambda route: route.abort())
    page = context.new_page()
    page.goto(f"{browsing.url}/bill/ben")
    before = charged_micros(theatre, "ben")
    theatre.stage.use("ben", "package", 1, name="weekend")
    expect(page.locator("#amount")).to_have_text(shown(before + 4_990_000), timeout=20_000)
    expect(page.locator(FRESH)).to_have_attribute("data-kind", "live", timeout=10_000)


def test_the_freshness_sign_changes_when_the_job_is_killed_and_when_it_is_back(
    browsing: Browsing, theatre: Theatre
) -> None:
    page = browsing.page("/bill/emma")
    sign = page.locator(FRESH)
    expect(sign).to_have_attribute("data-kind", "live")
    theatre.stage.kill()
    try:
        expect(sign).to_have_attribute("data-kind", "paused", timeout=15_000)
        expect(sign).to_contain_text("Job is down")
        expect(page.locator(".as-of")).to_contain_text("it may be more by now")
        expect(page.locator(".stale #amount")).to_be_visible()
        grey = page.locator(".facts dt").first.evaluate("(name) => getComputedStyle(name).color")
        for number in (".type-amount", ".facts dd", ".period-amount"):
            expect(page.locator(number).first).to_have_css("color", grey)
        before = charged_micros(theatre, "emma")
        theatre.stage.use("emma", "package", 1, name="weekend")
    finally:
        theatre.stage.begin()
    expect(page.locator("#amount")).to_have_text(shown(before + 4_990_000), timeout=10_000)
    expect(sign).to_have_attribute("data-kind", "live")
    expect(page.locator(".as-of")).to_be_hidden()


def test_the_days_follow_too_while_nothing_else_happens(browsing: Browsing, theatre: Theatre) -> None:
    """A bug once: what came a second after the last question for the days was never asked for."""
    page = browsing.page("/bill/ben")
    page.get_by_role("button", name="As a table").click()
    for _ in range(2):
        before = charged_micros(theatre, "ben")
        theatre.stage.use("ben", "package", 1, name="weekend")
        expect(page.locator("#amount")).to_have_text(shown(before + 4_990_000), timeout=20_000)
    days = httpx.get(f"{theatre.url}/v1/customers/ben/bill/course").json()["days"]
    expect(page.locator("#course-table tbody tr").last).to_contain_text(
        shown(days[-1]["amount_micros"]), timeout=20_000
    )


def test_what_the_stream_told_is_not_undone_by_an_older_answer(browsing: Browsing, theatre: Theatre) -> None:
    context = browsing.context()
    held: list[Route] = []
    context.route("**/bill/changes", lambda route: route.abort())
    page = context.new_page()
    page.goto(f"{browsing.url}/bill/ben")
    before = charged_micros(theatre, "ben")
    expect(page.locator("#amount")).to_have_text(shown(before))
    page.route("**/v1/customers/ben/bill", lambda route: held.append(route))
    until(lambda: bool(held), page)  # it asks, because no stream gets through
    first = held[0].fetch()
    theatre.stage.use("ben", "package", 1, name="weekend")
    until(lambda: charged_micros(theatre, "ben") > before, page)
    context.unroute("**/bill/changes")
    expect(page.locator("#amount")).to_have_text(shown(before + 4_990_000), timeout=30_000)
    held[-1].fulfill(response=first)
    page.wait_for_timeout(500)
    expect(page.locator("#amount")).to_have_text(shown(before + 4_990_000))
    expect(page.locator(FRESH)).to_have_attribute("data-kind", "live")


def test_the_stream_has_all_that_the_page_shows(browsing: Browsing, layout: Layout) -> None:
    """A line and a period appear, a period closes, a batch passes that changes nothing: the bill is asked for once."""
    stage, asked = Stage(layout, customers=1, rich=False), list[str]()
    stage.open()
    stage.clock.time_us = APRIL.start_us
    stage.use("emma", "message", 3, MARCH.end_us - DAY_US)
    stage.batch()
    with serving(layout.root) as url:
        page = browsing.context().new_page()
        page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/emma/bill") else None)
        page.goto(f"{url}/bill/emma")
        amount, types, periods = (page.locator(each) for each in ("#amount", ".type-row", ".periods > li"))
        expect(amount).to_have_text("€0.30")
        expect(periods).to_have_count(0)
        stage.use("emma", "package", 1, MARCH.end_us - DAY_US, name="weekend")
        stage.batch()
        expect(types).to_have_count(2, timeout=15_000)
        expect(amount).to_have_text("€5.29")
        stage.use("emma", "message", 10, APRIL.start_us)
        stage.batch()
        expect(amount).to_have_text("€1.00", timeout=15_000)
        expect(types).to_have_count(1)
        expect(periods).to_contain_text(["March 2026"])
        expect(periods.first).to_contain_text("Draft")
        stage.batch(MARCH.end_us)
        expect(periods.first).to_contain_text("Sealed", timeout=15_000)
        expect(periods.first.locator(".period-amount")).to_have_text("€5.29")
        stage.use("ben", "message", 1, APRIL.start_us)
        stage.batch()
        page.locator(".how summary").click()
        expect(page.locator(".how dd").first).to_have_text(str(stage.bills.batch_number - 1), timeout=15_000)
        expect(amount).to_have_text("€1.00")
        stage.batch(APRIL.end_us)
        expect(page.get_by_role("heading", name="Nothing open")).to_be_visible(timeout=15_000)
        expect(periods).to_have_count(2)
        assert len(asked) == 1, asked


def test_after_a_rollback_the_bill_is_the_one_that_counts_now(browsing: Browsing, theatre: Theatre) -> None:
    """Batches begin again at a smaller number then, in a replica of another name."""
    bill = httpx.get(f"{theatre.url}/v1/customers/emma/bill").json()
    bill["stamp"] |= {"batch": 50, "replica": "before"}
    context = browsing.context()
    context.route("**/bill/changes", lambda route: route.abort())
    context.route("**/v1/customers/emma/bill", lambda route: route.fulfill(json=bill))
    page = context.new_page()
    page.goto(f"{browsing.url}/bill/emma")
    current = bill["periods"][-1]
    expect(page.locator("#amount")).to_have_text(shown(current["charged_micros"]))
    current["charged_micros"] -= 1_000_000
    bill["stamp"] |= {"batch": 49}  # a worker that is a moment behind
    for _ in range(2):
        page.wait_for_event("response", lambda response: response.url.endswith("/emma/bill"))
    expect(page.locator("#amount")).to_have_text(shown(current["charged_micros"] + 1_000_000))
    bill["stamp"] |= {"batch": 10, "replica": "after"}
    expect(page.locator("#amount")).to_have_text(shown(current["charged_micros"]), timeout=20_000)


def test_a_page_whose_server_is_gone_does_not_look_live_and_finds_it_again(browsing: Browsing, layout: Layout) -> None:
    stage, port = Stage(layout, customers=0, rich=False), free_port()
    stage.open()
    stage.clock.time_us = NOW_US
    stage.use("emma", "message", 3)
    stage.begin()
    page = browsing.context().new_page()
    sign = page.locator(FRESH)
    try:
        with serving(layout.root, port=port) as url:
            page.goto(f"{url}/bill/emma")
            expect(sign).to_have_attribute("data-kind", "live", timeout=10_000)
        expect(sign).to_have_attribute("data-kind", "lost", timeout=15_000)
        expect(sign).to_contain_text(re.compile(r"No connection · [\d.]+ s old"))
        expect(page.locator(".as-of")).to_be_visible()
        stage.use("emma", "message", 2)
        with serving(layout.root, port=port):
            expect(page.locator("#amount")).to_have_text("€0.50", timeout=15_000)
            expect(sign).to_have_attribute("data-kind", "live", timeout=15_000)
    finally:
        stage.kill()


def test_a_late_event_appears_as_a_correction_with_its_note(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/bill/c001")
    period = page.locator(".periods li", has_text="February 2026")
    expect(period).to_contain_text("Sealed")
    theatre.stage.use("c001", "package", 1, FEBRUARY.end_us - DAY_US, name="weekend")
    expect(period).to_contain_text("Corrected", timeout=15_000)
    period.locator("summary").click()
    note = period.locator(".papers li").nth(1)
    expect(note).to_contain_text("Debit note corrects I-")
    expect(note).to_contain_text("1 event that came too late")
    expect(note).to_contain_text("+€4.99")


def test_the_events_behind_a_number_are_shown_page_by_page_and_add_up(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page(f"/bill/{RICH}")
    expect(page.locator("#amount")).to_have_text(shown(charged_micros(theatre, RICH)))
    row = page.locator(".type-row", has_text="Data")
    wanted = row.locator(".type-amount").inner_text()
    row.click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator("tbody tr")).to_have_count(50)
    for pages in range(2, 8):
        sheet.get_by_role("button", name="Show more").click()
        expect(sheet.locator("tbody tr")).not_to_have_count(50 * (pages - 1))
    expect(sheet).to_contain_text("all of them, adding up to")
    assert sheet.locator(".card-head p").inner_text().split("to ")[1][: len(wanted)] == wanted
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)


def test_a_customer_s_token_opens_their_own_bill_and_no_other(
    browsing: Browsing, theatre: Theatre, tokens: Callable[..., str]
) -> None:
    token = tokens("emma")
    page = browsing.page("/bill")
    expect(page).to_have_url(re.compile("/sign-in#"))
    sign_in(page, "ey.no.token")
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    sign_in(page, token)
    expect(page.locator("h1")).to_have_text("My bill")
    expect(page.locator(FRESH)).to_have_attribute("data-kind", "live")
    expect(page.locator("nav a")).to_have_count(0)
    cookies = browsing.contexts[-1].cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    assert page.evaluate("document.cookie") == ""
    page.goto(f"{browsing.url}/bill/ben")
    expect(page.get_by_role("alert")).to_contain_text("This is not data that this token reaches")
    expect(page.locator("#amount.skeleton")).to_have_count(1)
    expect(page.locator(FRESH)).to_be_hidden()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{browsing.url}/sign-in")
    browsing.noted.errors.clear()  # Chromium itself tells of 401 and 403, which were wanted here


def test_a_bill_that_is_refused_is_not_asked_for_again_and_again(
    browsing: Browsing, tokens: Callable[..., str]
) -> None:
    token, asked = tokens("emma"), list[str]()
    page = browsing.page("/sign-in")
    sign_in(page, token)
    expect(page.locator("#amount:not(.skeleton)")).to_be_visible()
    page.on("request", lambda request: asked.append(request.url) if "/ben" in request.url else None)
    page.goto(f"{browsing.url}/bill/ben")
    expect(page.get_by_role("alert")).to_be_visible()
    page.wait_for_timeout(5_000)
    assert [url for url in asked if "/v1/" in url] == [f"{browsing.url}/v1/customers/ben/bill"]
    browsing.noted.errors.clear()


def test_who_is_revoked_is_signed_out_of_an_open_page(
    browsing: Browsing, theatre: Theatre, tokens: Callable[..., str]
) -> None:
    tokens()
    page = browsing.page("/sign-in")
    sign_in(page, tokens("emma"))
    expect(page.locator("#amount:not(.skeleton)")).to_be_visible()
    Issuer(theatre.layout).revoke("emma")
    expect(page).to_have_url(re.compile("/sign-in"), timeout=20_000)
    browsing.noted.errors.clear()


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_long_names_and_large_amounts_fit_on_a_phone(browsing: Browsing) -> None:
    phone = {"viewport": {"width": 360, "height": 780}}
    for customer in (LONG, RICH):
        page = browsing.page(f"/bill/{customer}", **phone)
        expect(page.locator("#amount:not(.skeleton)")).to_be_visible()
        expect(page.locator(".days svg path").first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, customer


def test_who_has_no_bill_yet_is_told_so(browsing: Browsing) -> None:
    page = browsing.page("/bill/nobody")
    expect(page.get_by_role("heading", name="No bill yet")).to_be_visible()
    expect(page.locator(".periods")).to_have_count(0)
    expect(page.get_by_text("None yet")).to_be_visible()


def test_it_is_written_as_the_reader_s_language_writes_it(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/bill/c003", locale="de-DE")
    micros = charged_micros(theatre, "c003")
    expect(page.locator("#amount")).to_have_text(f"{micros / 1_000_000:,.2f} €".replace(".", ","))
    expect(page.locator(".eyebrow")).to_contain_text("April 2026")


def test_the_lines_of_every_period_and_their_rounding_are_its_amount(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/bill/emma")
    expect(page.locator(".type-row").first).to_be_visible(timeout=15_000)
    for item in page.locator(".periods > li").all():
        item.locator("summary").click()
        *lines, total = [amount_of(cell) for cell in item.locator("tbody td:last-child").all_inner_texts()]
        assert sum(lines) == total == amount_of(item.locator(".period-amount").inner_text())
        papers = [amount_of(text) for text in item.locator(".paper-amount").all_inner_texts()]
        assert not papers or sum(papers) == total
    theatre.stage.kill()  # so that nothing changes between two looks
    try:
        page.reload()
        expect(page.locator(".type-row").first).to_be_visible(timeout=15_000)
        shown = [amount_of(text) for text in page.locator(".type-row .type-amount").all_inner_texts()]
        assert sum(shown) == amount_of(page.locator("#amount").inner_text())
    finally:
        theatre.stage.begin()


def amount_of(text: str) -> Decimal:
    return Decimal(re.sub(r"[^\d.-]", "", text.replace("−", "-")))


def test_while_the_invoice_store_is_away_the_bill_goes_on_and_says_what_may_be_old(
    browsing: Browsing, theatre: Theatre
) -> None:
    page = browsing.page("/bill/emma")
    expect(page.locator(".periods > li").first).to_be_visible(timeout=15_000)
    table, away = theatre.layout.table("documents"), theatre.layout.root / "away"
    table.rename(away)
    try:
        theatre.stage.use("emma", "package", 1, name="weekend")
        notice = page.locator(".notice", has_text="The storage of the invoices is away")
        expect(notice).to_contain_text("What is open is up to date", timeout=20_000)
        expect(page.locator("#amount")).to_have_text(shown(charged_micros(theatre, "emma")))
        expect(page.locator(".periods > li")).to_have_count(3)
        expect(page.locator(".stale .periods")).to_have_count(1)
        business = browsing.page("/business")
        expect(business.locator(".notice", has_text="The storage of the invoices is away")).to_be_visible(
            timeout=20_000
        )
    finally:
        away.rename(table)
    theatre.stage.use("emma", "message", 1)
    expect(notice).to_have_count(0, timeout=20_000)
