"""All pages, in a real browser: their parts work, everybody can use them, and they are light and quick."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stateside.inspection import Finding
from stateside.leadership import Candidate
from stateside.views.savepoint import savepoints
from tests.pages.conftest import Browsing, Theatre, until
from tests.pages.open_pages import told
from tests.sizes import sized

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser
expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make setup").expect

AXE = Path(__file__).parent / "vendored" / "axe.min.js"
ADDRESSES = ("/bill/emma", "/bill", "/business", "/control", "/views", "/sign-in")
WEIGHT_BYTES_MAX = 300 * 1024
LEASE_S = 5.0  # who is not heard for so long, on a busy machine, counts as gone
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


@pytest.mark.parametrize("colours", sized(["light"], ["light", "dark"]))
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
def test_a_page_is_light_and_asks_nobody_else(browsing: Browsing, address: str) -> None:
    """A browser that has never seen a page."""
    sizes: list[int] = []
    page = browsing.context().new_page()
    browsing.watch(page)
    page.on("requestfinished", lambda done: sizes.append(done.sizes()["responseBodySize"]))
    page.goto(browsing.url + address)
    is_ready(page, address)
    assert 0 < sum(sizes) < WEIGHT_BYTES_MAX, sizes
    page.close()
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
    expect(page.locator(".chart").get_by_role("status")).to_contain_text("so far")
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
    before = row.text_content()
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
    sign = page.locator(".fresh")
    expect(sign).to_have_attribute("data-kind", "live")
    theatre.stage.kill()
    try:
        expect(page.locator(".findings")).to_contain_text("The job of bill is down", timeout=15_000)
        expect(sign).to_have_attribute("data-kind", "paused")
        expect(sign).to_contain_text(re.compile(r"Job is down · [\d.]+ s old"))
        expect(nodes.nth(4)).to_contain_text("Stale")
    finally:
        theatre.stage.begin()
    expect(page.locator(".findings")).to_have_count(0, timeout=10_000)


def test_the_control_room_is_not_live_while_the_job_is_stopped_or_answers_are_old(browsing: Browsing) -> None:
    """A bug once: it said “Live” in green of a job that was stopped, whose answers were 78 s old."""
    status = httpx.get(f"{browsing.url}/v1/status").json()
    (bill,) = status["views"]
    replica = {**bill["replica"], "stamp": {**bill["replica"]["stamp"], "age_ms": 78_000}}
    operators = [{**one, "rows": None} for one in bill["batches"][-1]["operators"]]
    batches = [*bill["batches"][:-1], {**bill["batches"][-1], "operators": operators}]
    old = {**bill, "replica": replica, "batches": batches}
    stopped = {**old, "job": {**bill["job"], "state": "stopped", "heard_ms": 80_000}}
    for view, text, kind in ((stopped, "Job is stopped · ", "paused"), (old, "", "old")):
        context = browsing.context()
        shown = json.dumps({**status, "views": [view]})
        context.route("**/v1/status", partial(_answer, shown))
        page = context.new_page()
        page.goto(f"{browsing.url}/control")
        sign = page.locator(".fresh")
        expect(sign).to_have_attribute("data-kind", kind)
        expect(sign).to_contain_text(re.compile(rf"^{text}[78]\d\.\d s old"))
        expect(page.locator(".node").nth(4)).to_contain_text("Stale")
        cells = page.get_by_role("region", name="Operators with state").locator("tbody tr td:nth-child(2)")
        expect(cells.first).to_have_text(f"{replica['rows']:,} in the replica")
        expect(cells.last).to_have_text("not counted")
        context.close()


def test_a_removed_view_does_not_make_the_others_look_old_and_findings_are_the_server_s(browsing: Browsing) -> None:
    status = httpx.get(f"{browsing.url}/v1/status").json()
    (bill,) = status["views"]
    stamp = {**bill["replica"]["stamp"], "age_ms": 3 * 86_400_000}
    job = {**bill["job"], "state": "removed", "heard_ms": 3 * 86_400_000}
    removed = {**bill, "view": "gone", "job": job, "replica": {**bill["replica"], "stamp": stamp, "rows": None}}
    context = browsing.context()
    context.route("**/v1/status", partial(_answer, json.dumps({**status, "views": [bill, removed]})))
    finding = Finding("view-removed", "notice", "gone", "gone is not declared any more", "Rows stay.", "Declare it.")
    context.route("**/v1/findings", partial(_answer, json.dumps({"time": "", "findings": [finding.as_dict()]})))
    page = context.new_page()
    page.goto(f"{browsing.url}/control")
    expect(page.locator(".findings li")).to_have_text("gone is not declared any moreRows stay. Declare it.")
    expect(page.locator(".fresh")).not_to_contain_text("gone")
    page.get_by_role("button", name="gone").click()
    expect(page.locator(".node").nth(1)).to_contain_text("Removed")
    expect(page.locator(".node").nth(3)).to_contain_text("not known")
    context.close()


def _answer(body: str, route: Route) -> None:
    route.fulfill(body=body, content_type="application/json")


def test_nulls_of_a_column_of_numbers_stand_where_its_numbers_do(browsing: Browsing) -> None:
    page = browsing.page("/views")
    is_ready(page, "/views")
    page.locator("#tab-sql").click()
    page.locator("#sql").fill("SELECT * FROM (VALUES (1, 'a'), (NULL, NULL)) AS v(n, t) ORDER BY n")
    page.get_by_role("button", name="Run").click()
    cells = page.locator(".result tbody tr", has_text="null").locator("td")
    expect(cells.first).to_have_class(re.compile("right"))
    expect(cells.last).not_to_have_class(re.compile("right"))


def test_a_legend_turns_grey_with_its_chart(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/business")
    is_ready(page, "/business")
    grey = "getComputedStyle(document.querySelector('.legend')).filter"
    assert page.evaluate(grey) == "none"
    theatre.stage.kill()
    try:
        expect(page.locator(".stack.stale")).to_have_count(1, timeout=20_000)
        assert page.evaluate(grey) == "grayscale(1)"
    finally:
        theatre.stage.begin()


def test_what_is_wrong_is_told_once_as_long_as_it_is_the_same(browsing: Browsing) -> None:
    """A bug once: the notice was made again every second, and screen readers read it every second."""
    page = browsing.context().new_page()
    page.goto(f"{browsing.url}/control")
    is_ready(page, "/control")
    page.evaluate(
        """() => {
          const isAlert = (node) => node.matches?.("[role=alert]") || node.querySelector?.("[role=alert]");
          const added = (records) => records.flatMap((record) => [...record.addedNodes]).filter(isAlert);
          globalThis.alerts = 0;
          const watch = new MutationObserver((records) => (globalThis.alerts += added(records).length));
          watch.observe(document.getElementById("main"), { subtree: true, childList: true });
        }"""
    )
    page.route("**/v1/status", lambda route: route.fulfill(status=503, json={"detail": "It is away"}))
    expect(page.get_by_role("alert")).to_contain_text("It is away")
    for _ in range(3):
        page.wait_for_event("response", lambda response: response.url.endswith("/v1/status"))
    assert page.evaluate("globalThis.alerts") == 1


def test_signing_in_leads_to_no_other_site(browsing: Browsing) -> None:
    """Browsers leave tabs and ends of lines out of an address: `/`, a tab and `/evil.example` is that host's."""
    for back in (
        "%2F%09%2Fevil.example%2Fx",
        "%2F%0A%5Cevil.example",
        "%2F%2Fevil.example",
        "https:%2F%2Fevil.example",
        "%",
    ):
        page = browsing.page(f"/sign-in#{back}")  # where no token is needed it leads on at once
        expect(page).to_have_url(f"{browsing.url}/bill", timeout=15_000)
        page.close()
    page = browsing.page("/sign-in#%2Fcontrol%23bill")
    expect(page).to_have_url(f"{browsing.url}/control#bill", timeout=15_000)


def test_the_control_room_says_who_leads_and_who_would_take_over(browsing: Browsing, theatre: Theatre) -> None:
    page = browsing.page("/control")
    leaders, findings = page.locator(".leaders"), page.locator(".findings")
    expect(page.locator(".node").nth(1)).to_contain_text("Idle")
    expect(leaders).to_be_hidden()
    a = Candidate(theatre.layout.root, "a", lease_s=LEASE_S).wait(lambda: False)
    assert a is not None
    ends = threading.Event()
    standby = Candidate(theatre.layout.root, "b", lease_s=LEASE_S)
    try:
        expect(findings).to_contain_text("Nobody stands by", timeout=15_000)
        with ThreadPoolExecutor(1) as pool:
            b = pool.submit(standby.wait, ends.is_set)
            expect(leaders).to_have_text(re.compile("epoch 1.*aleads.*bstands by"), timeout=15_000)
            expect(findings).to_have_count(0, timeout=15_000)
            a.end()  # as if it were killed
            expect(leaders).to_have_text(re.compile("epoch 2.*bleads"), timeout=60_000)
            leader = b.result()
        assert leader is not None
        leader.release()
        expect(findings).to_contain_text("Nobody leads", timeout=15_000)
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
    batch = theatre.stage.bills.batch_number
    assert taken.batch <= batch
    theatre.stage.use("emma", "message", 1)
    expect(card.get_by_role("button", name="Take a savepoint")).to_be_enabled()
    until(lambda: theatre.stage.bills.batch_number > batch, page)
    card.get_by_role("button", name="Take a savepoint").click()
    expect(card.locator("tbody tr")).to_have_count(2)


def test_a_savepoint_is_taken_also_while_they_are_being_listed_and_is_shown_under_its_view_only(
    browsing: Browsing,
) -> None:
    """Bugs once: such a click did nothing, and what one view was refused stood under another."""
    held: list[Route] = []
    page = browsing.context().new_page()
    status = httpx.get(f"{browsing.url}/v1/status").json()
    (bill,) = status["views"]
    page.route("**/v1/status", lambda route: route.fulfill(json={**status, "views": [bill, {**bill, "view": "other"}]}))
    page.route("**/v1/views/*/savepoints", lambda route: held.append(route))
    page.goto(f"{browsing.url}/control")
    card = page.get_by_role("region", name="Savepoints")
    until(lambda: len(held) == 1, page)
    card.get_by_role("button", name="Take a savepoint").click()
    until(lambda: len(held) == 2, page)
    assert [one.request.method for one in held] == ["GET", "POST"]
    page.get_by_role("button", name="other", exact=True).click()
    held[1].fulfill(status=503, json={"detail": "There is no room"})
    until(lambda: len(held) == 3, page)
    expect(page.get_by_text("There is no room")).to_have_count(0)
    held[2].fulfill(json={"savepoints": []})
    held[0].fulfill(status=503, json={"detail": "There is no room"})
    expect(card).to_contain_text("No savepoint yet")
    expect(page.get_by_text("There is no room")).to_have_count(0)


def test_servers_that_cannot_be_listed_are_not_taken_for_none(browsing: Browsing) -> None:
    page = browsing.context().new_page()
    page.route("**/v1/servers", lambda route: route.fulfill(status=503, json={}))
    page.goto(f"{browsing.url}/control")
    expect(page.get_by_role("region", name="Servers")).to_contain_text("The servers cannot be listed")
    expect(page.locator(".node").nth(4)).to_contain_text("not known")


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


def test_a_hundred_open_pages_are_all_told(theatre: Theatre) -> None:
    """What a hundred pages ask, without the browsers, which this machine could not draw: stream, and bill again."""
    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop of its own in this one
        found = thread.submit(asyncio.run, told(theatre.stage, theatre.url, pages=100, events=2)).result()
    assert len(found.delays_s) == 200
