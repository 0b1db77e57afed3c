"""All pages, in a real browser: their parts work, everybody can use them, and they are light and quick."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stateside.checkpoint.savepoint import savepoints
from stateside.leadership import Candidate
from tests.pages.conftest import Browsing, Theatre
from tests.pages.open_pages import told
from tests.sizes import sized

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make setup").expect

AXE = Path(__file__).parent / "vendored" / "axe.min.js"
ADDRESSES = ("/bill/emma", "/bill", "/business", "/control", "/views", "/sign-in")
WEIGHT_BYTES_MAX = 300 * 1024
FIRST_PAINT_MS_MAX = 1_000
OPEN_PAGES = sized(5, 12)


def is_ready(page: Page, address: str) -> None:
    """Wait until a page shows what it is for."""
    ready = {
        "/bill/emma": ".days svg path",
        "/bill": ".some a",
        "/business": ".kpis .num >> nth=3",
        "/control": ".node-spark path",
        "/views": "#panel-rows tbody tr",
        "/sign-in": "h1",
    }
    expect(page.locator(ready[address]).first).to_be_attached(timeout=15_000)


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_axe_finds_no_serious_problem(browsing: Browsing, address: str, colours: str) -> None:
    context = browsing.context(color_scheme=colours, bypass_csp=True)  # axe itself is a script from elsewhere
    page = context.new_page()
    page.goto(browsing.url + "/v1/session")
    if address == "/sign-in":  # which leads on at once where no token is needed
        context.route("**/v1/session", lambda route: route.fulfill(json={"signed_in": False, "pages": []}))
    page.goto(browsing.url + address)
    is_ready(page, address)
    page.wait_for_timeout(300)
    page.add_script_tag(path=AXE)
    found: list[dict[str, Any]] = page.evaluate("axe.run().then((result) => result.violations)")
    grave = [
        f"{one['impact']} {one['id']}: {[node['html'][:160] + node['failureSummary'] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert not grave, "\n".join(grave)


@pytest.mark.parametrize("address", ADDRESSES[:5])
def test_a_page_is_light_and_quick_and_asks_nobody_else(browsing: Browsing, address: str) -> None:
    sizes: list[int] = []
    context = browsing.context()
    page = context.new_page()
    browsing.watch(page)
    page.on("requestfinished", lambda done: sizes.append(done.sizes()["responseBodySize"]))
    page.goto(browsing.url + address)
    is_ready(page, address)
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert 0 < sum(sizes) < WEIGHT_BYTES_MAX, sizes
    assert paint_ms < FIRST_PAINT_MS_MAX
    policy = httpx.get(browsing.url + address).headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


def test_everything_can_be_done_with_the_keyboard_alone(browsing: Browsing) -> None:
    page = browsing.page("/bill/emma")
    is_ready(page, "/bill/emma")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    reach(page, ".chart svg")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".tip")).to_contain_text("forecast")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".tip")).to_contain_text("so far")
    reach(page, ".type-row")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".type-row").first).to_be_focused()
    reach(page, ".periods summary")
    page.keyboard.press("Enter")
    expect(page.locator(".period-body").first).to_be_visible()


def reach(page: Page, selector: str) -> None:
    """Go on with the tabulator until an element of this kind has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} cannot be reached")


def test_the_focus_stays_where_it_is_when_the_amount_changes(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/bill/emma")
    is_ready(page, "/bill/emma")
    row = page.locator(".type-row", has_text="Messages")
    row.focus()
    before = row.inner_text()
    theatre.stage.use("emma", "message", 20)
    expect(row).not_to_have_text(before, timeout=10_000)
    expect(row).to_be_focused()


def test_dark_and_light_can_be_chosen_and_stay(browsing: Browsing) -> None:
    page = browsing.page("/control")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.get_by_role("button", name="Light colours")).to_be_visible()
    assert page.evaluate(ground) != light


def test_who_wants_no_motion_sees_none(browsing: Browsing) -> None:
    page = browsing.page("/bill/emma", reduced_motion="reduce")
    is_ready(page, "/bill/emma")
    assert page.evaluate("document.getAnimations().length") == 0


def test_the_control_room_draws_the_path_and_says_when_the_job_is_down(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/control")
    nodes = page.locator(".node")
    expect(nodes).to_have_count(5)
    expect(nodes.nth(1)).to_contain_text("Idle")
    expect(page.locator(".sinks")).to_contain_text("dead letters")
    events = nodes.nth(0).locator(".node-main")
    before = events.inner_text()
    theatre.stage.use("emma", "message", 1)
    expect(events).not_to_have_text(before)
    expect(nodes.nth(1)).to_contain_text("0 events", timeout=10_000)
    theatre.stage.kill()
    try:
        expect(page.locator(".findings")).to_contain_text("The job of bill is down", timeout=15_000)
    finally:
        theatre.stage.begin()
    expect(page.locator(".findings")).to_have_count(0, timeout=10_000)


def test_the_control_room_says_who_leads_and_who_would_take_over(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/control")
    leaders, findings = page.locator(".leaders"), page.locator(".findings")
    expect(page.locator(".node").nth(1)).to_contain_text("Idle")
    expect(leaders).to_be_hidden()
    a = Candidate(theatre.layout.root, "a", lease_s=2.0).wait(lambda: False)
    assert a is not None
    ends = threading.Event()
    standby = Candidate(theatre.layout.root, "b", lease_s=2.0)
    try:
        expect(findings).to_contain_text("Nobody stands by")
        with ThreadPoolExecutor(1) as pool:
            b = pool.submit(standby.wait, ends.is_set)
            expect(leaders).to_have_text(re.compile("epoch 1.*aleads.*bstands by"))
            expect(findings).to_have_count(0)
            a.end()  # as if it were killed
            expect(leaders).to_have_text(re.compile("epoch 2.*bleads"), timeout=15_000)
            leader = b.result()
        assert leader is not None
        leader.release()
        expect(findings).to_contain_text("Nobody leads")
    finally:
        ends.set()
        shutil.rmtree(theatre.layout.root / "lease")
    expect(leaders).to_be_hidden(timeout=10_000)


def test_an_operator_starts_an_audit_and_reads_what_it_says(browsing: Browsing) -> None:
    page = browsing.page("/control")
    card = page.get_by_role("region", name="Audit")
    card.get_by_role("button", name="Start an audit").click()
    expect(card.get_by_role("button", name="An audit runs")).to_be_disabled()
    expect(card.get_by_text("Everything adds up")).to_be_visible(timeout=60_000)
    expect(card.locator("pre")).to_contain_text("events")
    expect(card.get_by_role("button", name="Start an audit")).to_be_enabled()


def test_an_operator_takes_a_savepoint_while_the_job_runs(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/control")
    card = page.get_by_role("region", name="Savepoints")
    expect(card).to_contain_text("No savepoint yet")
    card.get_by_role("button", name="Take a savepoint").click()
    expect(card.locator("tbody tr")).to_have_count(1)
    (taken,) = savepoints(theatre.layout.view("bill"))
    expect(card.locator("tbody tr")).to_contain_text(taken.name)
    assert taken.batch <= theatre.stage.bills.batch_number
    theatre.stage.use("emma", "message", 1)
    expect(card.get_by_role("button", name="Take a savepoint")).to_be_enabled()
    page.wait_for_timeout(1_000)
    card.get_by_role("button", name="Take a savepoint").click()
    expect(card.locator("tbody tr")).to_have_count(2)


def test_the_control_room_shows_batches_as_soon_as_there_are_any(browsing: Browsing) -> None:
    """A bug once: a room that was opened before the first report said for ever that there was none."""
    context = browsing.context()
    status = httpx.get(f"{browsing.url}/v1/status").json()
    early = {**status, "views": [{**view, "batches": []} for view in status["views"]]}
    context.route("**/v1/status", lambda route: route.fulfill(json=early))
    page = context.new_page()
    page.goto(f"{browsing.url}/control")
    card = page.get_by_role("region", name="Time of each batch").locator("[data-none]")
    expect(card).to_have_count(1)
    context.unroute("**/v1/status")
    expect(card).to_have_count(0)
    expect(page.get_by_role("region", name="Time of each batch").locator("rect").first).to_be_attached()


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
    browsing.noted.errors.clear()  # Chromium itself tells of the 400, which was wanted here


def test_business_shows_totals_top_customers_corrections_and_dead_letters(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/business")
    totals = httpx.get(f"{theatre.url}/v1/periods/2026-01/totals").json()["currencies"][0]["amount_micros"]
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
    whole = httpx.get(f"{theatre.url}/v1/periods/2026-03/totals").json()["currencies"][0]["amount_micros"]
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


def test_several_open_pages_all_stay_fresh(browsing: Browsing, theatre: Theatre) -> None:
    """All of one customer, which changes in every batch: so each of them asks for its bill again."""
    pages = [browsing.page("/bill/emma") for _ in range(OPEN_PAGES)]
    for page in pages:
        expect(page.locator(".fresh")).to_have_attribute("data-kind", "live", timeout=60_000)
    before = httpx.get(f"{theatre.url}/v1/customers/emma/bill").json()["periods"][-1]["charged_micros"]
    theatre.stage.use("emma", "package", 1, name="weekend")
    for page in pages:
        expect(page.locator("#amount")).to_have_text(f"€{(before + 4_990_000) / 1e6:,.2f}", timeout=20_000)
        expect(page.locator(".fresh")).to_have_attribute("data-kind", "live")


def test_a_hundred_open_pages_are_told_within_seconds_and_hear_of_nothing_old(theatre: Theatre) -> None:
    """What a hundred pages ask, without the browsers, which this machine could not draw: stream, and bill anew."""
    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop of its own in this one
        found = thread.submit(asyncio.run, told(theatre.stage, theatre.url, pages=100, events=2)).result()
    assert len(found.delays_s) == 200
    assert max(found.delays_s) < 5, f"the slowest page had the new amount after {max(found.delays_s):.1f} s"
    assert found.age_ms_max < 5_000, "what is older than that is not shown as live"
