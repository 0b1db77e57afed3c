"""Bills while the invoice store is away, of a real server: drafts as ever, the rest as it was known, and it says so.

The table of documents is moved away under a running server, and meanwhile the job goes on elsewhere: it seals a period
that the server has never seen. No amount is missing, or old, without a word about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.billing.model import HOUR_US, usage
from stateside.core.layout import Layout
from tests.billing.test_answers import DAY_US, FEBRUARY, JANUARY, Folder
from tests.serving.conftest import serving
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

MARCH_US = FEBRUARY.end_us
EMMA = "/v1/customers/emma"
PARAMETER = re.compile(r"\b([a-z_]+)=|\((max_age_ms|min_position|wait_ms|source)\)|\b(max_age_ms|min_position)\b")


class Store:
    """A billing folder with January sealed and February open, of which the server alone moves the replica."""

    def __init__(self, layout: Layout) -> None:
        self.folder = Folder(layout)
        self.folder.clock.time_us = JANUARY.start_us + 2 * DAY_US
        self.folder.append(self.folder.used("j-1", "call", 121), self.folder.used("j-2", "message", 3))
        self.batch()
        self.folder.clock.time_us = FEBRUARY.start_us + DAY_US
        self.use("f-1", 2)
        self.batch(JANUARY.end_us)
        self.table, self.away = layout.table("documents"), layout.root / "away"

    def use(self, id_: str, messages: int, time_us: int = FEBRUARY.start_us + HOUR_US) -> None:
        self.folder.append(usage(id_, "emma", "message", time_us, messages))

    def batch(self, *close: int) -> None:
        self.folder.bills.play(close)

    @contextmanager
    def gone(self) -> Iterator[None]:
        self.table.rename(self.away)
        try:
            yield
        finally:
            self.away.rename(self.table)

    def seal_elsewhere(self, *close: int) -> None:
        """The job has the table, and the server has not."""
        self.away.rename(self.table)
        self.batch(*close)
        self.table.rename(self.away)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Layout(tmp_path / "billing"))


@pytest.fixture
def url(store: Store, tmp_path: Path) -> Iterator[str]:
    yield from serving(store.folder.layout, tmp_path / "server.log", f"{EMMA}/bill")


def ask(url: str, path: str, **parameters: Any) -> dict[str, Any]:
    answer = httpx.get(url + path, params=parameters)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(url: str, path: str, **parameters: Any) -> str:
    """The code of the error, whose advice names parameters of the route and no others."""
    answer = httpx.get(url + path, params=parameters)
    assert answer.status_code == 503, answer.text
    paths = httpx.get(f"{url}/v1/openapi.json").json()["paths"]
    (route,) = [one for one in paths if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", one), path)]
    known = {each["name"] for each in paths[route]["get"]["parameters"]}
    named = {next(filter(None, found)) for found in PARAMETER.findall(answer.json()["next_step"])}
    assert named <= known, answer.json()
    return str(answer.json()["type"]).rpartition(":")[2]


def batch_of(url: str) -> int:
    return int(httpx.get(f"{url}/v1/views/bill/rows?limit=1").json()["stamp"]["batch"])


def periods(bill: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(one["period"], one["state"], one["charged_micros"]) for one in bill["periods"]]


def test_drafts_are_live_and_closed_periods_as_they_were_known_with_their_age(store: Store, url: str) -> None:
    before, totals = ask(url, f"{EMMA}/bill"), ask(url, "/v1/periods")
    january = ask(url, "/v1/periods/2026-01/totals")
    assert before["archive"] == totals["archive"] == {"state": "current"}
    assert periods(before) == [("2026-01", "sealed", 390_000), ("2026-02", "draft", 200_000)]
    with store.gone():
        store.use("f-2", 1)
        store.batch()
        wait_until(lambda: batch_of(url) == 2)
        bill = ask(url, f"{EMMA}/bill")
        assert periods(bill) == [("2026-01", "sealed", 390_000), ("2026-02", "draft", 300_000)], "the draft went on"
        archive = bill["archive"]
        assert (archive["state"], archive["position"]) == ("away", before["stamp"]["position"])
        assert archive["age_ms"] >= before["stamp"]["age_ms"]
        assert archive["unknown"] is None, "no period was closed since"
        assert ask(url, f"{EMMA}/invoices")["documents"][0]["number"] == "I-000000001"
        assert ask(url, "/v1/invoices/I-000000001")["document"]["charged_micros"] == 390_000
        assert httpx.get(f"{url}/v1/invoices/I-000000001.pdf").content.startswith(b"%PDF")
        course = ask(url, f"{EMMA}/bill/course", period="2026-02")
        assert (course["charged_micros"], course["archive"]["state"]) == (300_000, "away")
        assert ask(url, f"{EMMA}/bill/explain", period="2026-01")["events_behind"] == 2
        again = ask(url, "/v1/periods")
        assert [one["period"] for one in again["periods"]] == ["2026-01", "2026-02"]
        assert (again["periods"][0], again["archive"]["state"]) == (totals["periods"][0], "away")
        found = ask(url, "/v1/periods/2026-01/totals")
        assert (found["currencies"], found["archive"]["unknown"]) == (january["currencies"], None)
        assert ask(url, "/v1/periods/2026-02/totals")["archive"] == {"state": "current"}, (
            "it is open: all of it is live"
        )
        assert refused(url, "/v1/invoices/I-000000002") == "archive-away", "whether there is one is not known"
    assert ask(url, f"{EMMA}/bill")["archive"] == {"state": "current"}


def test_a_period_that_was_sealed_meanwhile_is_told_to_be_unknown(store: Store, url: str) -> None:
    before = ask(url, f"{EMMA}/bill")
    ask(url, "/v1/periods")
    with store.gone():
        store.folder.clock.time_us = MARCH_US + DAY_US
        store.use("m-1", 7, MARCH_US + HOUR_US)
        store.seal_elsewhere(FEBRUARY.end_us)
        wait_until(lambda: batch_of(url) == 2)
        bill = ask(url, f"{EMMA}/bill")
        assert periods(bill) == [("2026-01", "sealed", 390_000), ("2026-03", "draft", 700_000)]
        unknown = {"after": before["stamp"]["watermark"], "up_to": bill["stamp"]["watermark"]}
        assert bill["archive"]["unknown"] == unknown, "February is in no row and in no document that is known"
        assert ask(url, "/v1/periods")["archive"]["unknown"] == unknown
        assert ask(url, "/v1/periods/2026-03/totals")["archive"] == {"state": "current"}
        assert refused(url, "/v1/periods/2026-02/totals") == "archive-away"
        assert refused(url, f"{EMMA}/bill/explain", period="2026-02") == "archive-away"
        assert refused(url, f"{EMMA}/bill/course", period="2026-02") == "archive-away"
        assert ask(url, f"{EMMA}/bill/course")["period"] == "2026-03"
    assert [one[0] for one in periods(ask(url, f"{EMMA}/bill"))] == ["2026-01", "2026-02", "2026-03"]


def test_who_asks_for_something_fresh_is_not_given_what_is_old(store: Store, url: str) -> None:
    ask(url, f"{EMMA}/bill")
    with store.gone():
        assert refused(url, f"{EMMA}/bill", max_age_ms=0, wait_ms=0) == "not-fresh-enough"
        position = store.folder.append(usage("f-3", "emma", "message", FEBRUARY.start_us + HOUR_US, 1))
        store.batch()
        assert refused(url, f"{EMMA}/bill", min_position=str(position)) == "not-fresh-enough"
        shown = ask(url, f"{EMMA}/bill")
        answer = httpx.get(f"{url}{EMMA}/bill")
        tag = answer.headers["etag"]
        assert shown["archive"]["state"] == "away"
        assert httpx.get(f"{url}{EMMA}/bill", headers={"If-None-Match": tag}).status_code == 304
    whole = httpx.get(f"{url}{EMMA}/bill", headers={"If-None-Match": tag})
    assert (whole.status_code, whole.json()["archive"]["state"]) == (200, "current"), "not the same as what it had"


def test_a_server_that_never_saw_the_store_answers_drafts_and_says_that_it_knows_nothing_else(
    store: Store, tmp_path: Path
) -> None:
    with store.gone():
        for url in serving(store.folder.layout, tmp_path / "late.log", f"{EMMA}/bill"):
            bill = ask(url, f"{EMMA}/bill")
            assert periods(bill) == [("2026-02", "draft", 200_000)]
            archive = bill["archive"]
            assert (archive["state"], archive["as_of"], archive["age_ms"]) == ("away", None, None)
            assert archive["unknown"] == {"after": None, "up_to": bill["stamp"]["watermark"]}
            assert [one["period"] for one in ask(url, "/v1/periods")["periods"]] == ["2026-02"]
            assert refused(url, "/v1/periods/2026-01/totals") == "archive-away"
            assert refused(url, f"{EMMA}/bill", max_age_ms=10**9) == "archive-away"
            assert refused(url, f"{EMMA}/bill/explain", period="2026-01") == "archive-away"
            assert refused(url, "/v1/invoices/I-000000001") == "archive-away"
