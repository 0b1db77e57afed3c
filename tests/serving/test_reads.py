"""Rows, scans and lookups over HTTP, on real servers whose replicas move; without Spark."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.serving.access.tokens import Issuer
from stateside.serving.clients import Client
from stateside.serving.rows import archive, relation, row_query
from tests.replica.spark_job import Changes, Row
from tests.sizes import sized

from .conftest import serving
from .rows.closing_shop import SOURCES, ClosingShop, added_up
from .rows.shop import Shop, shown

pytestmark = pytest.mark.e2e

ROWS: Changes = {
    ("ben", "de"): (1, 7),
    ("ben", "fr"): (3, 30),
    ("emma", "de"): (2, 104),
    ("emma", "fr"): (1, 5),
    ("ä/b", "it"): (1, 1),
}
SPENDING = "/v1/views/spending"
LOOKUP = f"{SPENDING}/lookup"
DOCS = Path(__file__).parents[2] / "docs" / "serving.md"


@contextmanager
def served(shop: Shop, log: Path, **headers: str) -> Iterator[httpx.Client]:
    """A client of a server on the shop's folder, which follows its checkpoint."""
    for url in serving(shop.layout, log, f"{SPENDING}/rows/emma" if not headers else "/healthz"):
        with httpx.Client(base_url=url, headers=headers, timeout=30) as client:
            yield client


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    made = Shop(tmp_path_factory.mktemp("shop"))
    made.job.run(ROWS)
    return made


@pytest.fixture(scope="module")
def client(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(shop, tmp_path_factory.mktemp("logs") / "server.log") as made:
        yield made


def pages(client: httpx.Client, **parameters: Any) -> Iterator[dict[str, Any]]:
    """All pages of a scan."""
    cursor: dict[str, str] = {}
    while True:
        response = client.get(f"{SPENDING}/rows", params={**parameters, **cursor})
        assert response.status_code == 200, response.text
        document = response.json()
        yield document
        if document["cursor"] is None:
            return
        cursor = {"cursor": document["cursor"]}


def test_a_scan_has_all_rows_page_by_page_each_with_its_stamp(client: httpx.Client) -> None:
    found = list(pages(client, limit=2))
    assert [row for page in found for row in page["rows"]] == shown(ROWS)  # type: ignore[arg-type]
    assert {(page["stamp"]["batch"], page["stamp"]["source"]) for page in found} == {(0, "live")}


def test_filters_orders_and_columns_are_parameters(client: httpx.Client) -> None:
    asked = {"where": ["total>=5", "country!=fr"], "order": "-total", "columns": "customer,total"}
    (answer,) = pages(client, **asked)
    assert answer["rows"] == [{"customer": "emma", "total": 104}, {"customer": "ben", "total": 7}]
    ordered = [row["total"] for page in pages(client, order="total", limit=2) for row in page["rows"]]
    assert ordered == [1, 5, 7, 30, 104]


def test_a_key_is_found_whole_and_by_its_first_parts(client: httpx.Client) -> None:
    for path in ("emma/de", "%C3%A4%2Fb", "emma"):
        response = client.get(f"{SPENDING}/rows/{path}")
        assert response.status_code == 200
    whole = client.get(f"{SPENDING}/rows/emma/de", params={"columns": "total"}).json()
    assert (whole["rows"], whole["cursor"]) == ([{"total": 104}], None)
    some = client.get(f"{SPENDING}/rows/emma", params={"where": "total>5"}).json()
    assert [row["total"] for row in some["rows"]] == [104]
    assert client.get(f"{SPENDING}/rows/nobody").json()["rows"] == []


def test_many_keys_are_looked_up_in_one_request(client: httpx.Client) -> None:
    keys = [["emma", "de"], ["nobody", "de"], ["ä/b", "it"]]
    document = client.post(LOOKUP, json={"keys": keys}, params={"columns": "total", "as_of": 0}).json()
    assert document["rows"] == [{"total": 104}, None, {"total": 1}]
    assert (document["stamp"]["batch"], document["cursor"]) == (0, None)
    many = client.post(LOOKUP, json={"keys": [["ben", "fr"]] * 1_000}).json()
    assert [row["total"] for row in many["rows"]] == [30] * 1_000


def test_an_answer_that_the_client_has_already_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get(f"{SPENDING}/rows/emma")
    tag = first.headers["etag"]
    assert tag.startswith(f'W/"{first.json()["stamp"]["replica"]}-0-')
    for named in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = client.get(f"{SPENDING}/rows/emma", headers={"If-None-Match": named})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert again.headers["stateside-batch"] == "0"
        assert int(again.headers["stateside-age-ms"]) >= 0
    others = [f"{SPENDING}/rows/ben", f"{SPENDING}/rows/emma?columns=total", f"{SPENDING}/rows", f"{SPENDING}/rollup"]
    for other in others:
        response = client.get(other, headers={"If-None-Match": tag})
        assert response.status_code == 200
        assert response.headers["etag"] != tag
    assert "etag" not in client.post(LOOKUP, json={"keys": [["emma", "de"]]}).headers
    assert "etag" not in client.get(f"{SPENDING}/rows/emma?limit=0").headers, "a problem is no answer"


def test_every_question_of_the_page_is_answered(client: httpx.Client) -> None:
    block = DOCS.read_text().split("<!-- test: questions -->\n```http\n")[1].split("```")[0]
    for line in block.splitlines():
        method, path, *body = line.split(" ", 2)
        response = client.request(method, path, content=body[0] if body else None)
        assert response.status_code == 200, f"{line}: {response.text}"


def test_the_page_s_table_of_limits_has_what_the_code_has() -> None:
    assert (row_query.KEYS_MAX, row_query.KEYS_AT_ONCE_MAX) == (1_000, 100)
    assert (row_query.LIMIT_MAX, row_query.LIMIT_DEFAULT, row_query.ORDERED_LIMIT_MAX) == (10_000, 100, 1_000)
    assert (row_query.ROWS_LOOKED_AT_MAX, row_query.ORDERED_ROWS_MAX, archive.SEALED_ROWS_MAX) == (
        20_000,
        200_000,
        1_000_000,
    )
    assert (row_query.CONDITIONS_MAX, relation.ROWS_MAX) == (16, 10_000)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/views/nothing/rows", 404, "view-unknown"),
        ("/v1/views/nothing/rows/emma", 404, "view-unknown"),
        (f"{SPENDING}/rows/emma/de/more", 400, "key-invalid"),
        (f"{SPENDING}/rows?key=emma&key=de&key=more", 400, "key-invalid"),
        (f"{SPENDING}/rows?cursor=abc", 400, "cursor-invalid"),
        (f"{SPENDING}/rows?cursor=", 400, "cursor-invalid"),
        (f"{SPENDING}/rows/emma?cursor=%00", 400, "cursor-invalid"),
        (f"{SPENDING}/rows?limit=0", 400, "request-invalid"),
        (f"{SPENDING}/rows?limit=10001", 400, "request-invalid"),
        (f"{SPENDING}/rows?limit=1001&order=total", 400, "request-invalid"),
        (f"{SPENDING}/rows?limit=-1", 400, "request-invalid"),
        (f"{SPENDING}/rows?limit=ten", 400, "request-invalid"),
        (f"{SPENDING}/rows?order=colour", 400, "request-invalid"),
        (f"{SPENDING}/rows?order=", 400, "request-invalid"),
        (f"{SPENDING}/rows?columns=colour", 400, "request-invalid"),
        (f"{SPENDING}/rows?columns=", 400, "request-invalid"),
        (f"{SPENDING}/rows?where=colour=red", 400, "request-invalid"),
        (f"{SPENDING}/rows?where=total=much", 400, "request-invalid"),
        (f"{SPENDING}/rows?where=", 400, "request-invalid"),
        (f"{SPENDING}/rows?{'&'.join(['where=total=1'] * 17)}", 400, "request-invalid"),
        (f"{SPENDING}/rows?where=total={'9' * 3_900}", 200, ""),
        (f"{SPENDING}/rows?as_of=-1", 400, "request-invalid"),
        (f"{SPENDING}/rows?as_of=99&wait_ms=0", 503, "not-fresh-enough"),
        (f"{SPENDING}/rows?min_position=elsewhere:5&wait_ms=0", 503, "not-fresh-enough"),
        (f"{SPENDING}/rows?min_position=5", 400, "position-invalid"),
        (f"{SPENDING}/rows/emma?source=old", 400, "request-invalid"),
        (f"{SPENDING}/rows/emma?source=archive", 400, "request-invalid"),
        (f"{SPENDING}/rows?source=both", 400, "request-invalid"),
        (f"{SPENDING}/rows?colour=red", 400, "request-invalid"),
        (f"{SPENDING}/rows/%FF%FE", 200, ""),
        (f"{SPENDING}/rows?key=%FF", 200, ""),
        (f"{SPENDING}/rows?where=customer=%00%01", 200, ""),
        (f"{SPENDING}/rollup/colour", 400, "request-invalid"),
        (f"{SPENDING}/rollup/country?as_of=99&wait_ms=0", 503, "not-fresh-enough"),
        (f"{SPENDING}/sum/emma", 400, "request-invalid"),
        (LOOKUP, 405, "method-invalid"),
    ],
)
def test_a_bad_question_gets_a_problem_document(client: httpx.Client, path: str, status: int, code: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.json().get("type", "").rpartition(":")[2]) == (status, code), response.text
    if status != 200:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "request-invalid"),
        (b"keys", 400, "request-invalid"),
        (b"[]", 400, "request-invalid"),
        (b"{}", 400, "request-invalid"),
        (b'{"keys": []}', 400, "request-invalid"),
        (b'{"keys": {}}', 400, "request-invalid"),
        (b'{"keys": [["emma", "de"]], "limit": 5}', 400, "request-invalid"),
        (b'{"keys": [%s]}' % b",".join([b'["emma", "de"]'] * 1_001), 400, "request-invalid"),
        (b'{"keys": ["emma"]}', 400, "key-invalid"),
        (b'{"keys": [["emma", 5]]}', 400, "key-invalid"),
        (b'{"keys": [[["emma"], "de"]]}', 400, "key-invalid"),
        (b'{"keys": [["emma", 1e400]]}', 400, "request-invalid"),
        (b'{"keys": ' + b"[" * 100_000, 400, "request-invalid"),
        (b'{"keys": [["\\ud800", "de"]]}', 400, "request-invalid"),
        (b'{"keys": ["\xff"]}', 400, "request-invalid"),
        (b'{"keys": [["emma", null]]}', 200, ""),
        (b" " * ((1 << 20) + 1), 413, "body-too-large"),
    ],
)
def test_a_bad_lookup_gets_a_problem_document(client: httpx.Client, body: bytes, status: int, code: str) -> None:
    response = client.post(LOOKUP, content=body)
    assert (response.status_code, response.json().get("type", "").rpartition(":")[2]) == (status, code), response.text


def test_after_all_this_bad_input_the_server_answers_as_before(client: httpx.Client, shop: Shop) -> None:
    for _ in range(20):
        assert client.get(f"{SPENDING}/rows/emma/de").status_code == 200


# Whose rows


def test_a_token_reaches_the_rows_of_its_scope_by_every_route(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop")
    shop.job.run(ROWS)
    issuer = Issuer(shop.layout)
    emma, _ = issuer.create("emma", where={"customer": "emma"})
    elsewhere, _ = issuer.create("elsewhere", views=["other"])
    nowhere, _ = issuer.create("nowhere", where={"tenant": "5"})
    writer, _ = issuer.create("writer", ("append",))
    with served(shop, tmp_path / "server.log", authorization=f"Bearer {emma}") as client:
        deadline = time.monotonic() + 90
        while client.get(f"{SPENDING}/rows/emma").status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [each["view"] for each in client.get("/v1/views").json()["views"]] == ["spending"]
        own = [row for row in shown(ROWS) if row["customer"] == "emma"]  # type: ignore[arg-type]
        for path in ("rows", "rows/emma", "rows?limit=1", "rows?order=total&limit=2", "rows?where=total>0"):
            rows = client.get(f"{SPENDING}/{path}").json()["rows"]
            assert rows and {row["customer"] for row in rows} == {"emma"}
        assert client.get(f"{SPENDING}/rows").json()["rows"] == own
        assert client.get(f"{SPENDING}/rollup/customer").json()["rows"] == [
            {"customer": "emma", "orders": 3, "total": 109}
        ]
        for path in ("rows/ben", "rows/nobody", "rows/ben/de", "rows?where=customer=ben", "rollup", "rollup/country"):
            assert client.get(f"{SPENDING}/{path}").status_code == 403
        assert client.post(LOOKUP, json={"keys": [["emma", "de"]]}).json()["rows"] == own[:1]
        assert client.post(LOOKUP, json={"keys": [["emma", "de"], ["ben", "de"]]}).status_code == 403
        unknown = client.get("/v1/views/nothing/rows")
        assert (unknown.status_code, "spending" in unknown.text) == (404, False), "which there are is not told"
        tag = client.get(f"{SPENDING}/rows").headers["etag"]
        for token, status in ((elsewhere, 403), (nowhere, 403), (writer, 403), ("x", 401)):
            headers = {"authorization": f"Bearer {token}", "if-none-match": tag}
            for path in ("rows", "rows/emma", "rollup/customer"):
                refused = client.get(f"{SPENDING}/{path}", headers=headers)
                assert (refused.status_code, "ben" in refused.text) == (status, False)
        for token in (elsewhere, nowhere):
            assert client.get("/v1/views", headers={"authorization": f"Bearer {token}"}).json() == {"views": []}
        operator, _ = issuer.create("ours", ("operator", "read"))
        everything = client.get(
            f"{SPENDING}/rows", headers={"authorization": f"Bearer {operator}", "if-none-match": tag}
        )
        assert len(everything.json()["rows"]) == len(ROWS)


# No torn batch

BATCHES = sized(200, 2_000)
CUSTOMERS = [f"c{number}" for number in range(12)]
COUNTRIES = ["de", "fr", "it"]


class Bank:
    """Batches that change rows, take some away and bring them back: after batch N the totals add up to N * 1000."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.random = shop, random.Random(7)

    def batch(self) -> None:
        number, rows = self.shop.job.batch, self.shop.job.rows
        changes: dict[tuple[str, str], Row | None] = {}
        for _ in range(8):
            key = self.random.choice(CUSTOMERS), self.random.choice(COUNTRIES)
            gone = self.random.random() < 0.2
            changes[key] = None if gone else (self.random.randrange(9), self.random.randrange(-500, 500))
        after = {key: row for key, row in (rows | changes).items() if row is not None and key != ("bank", "de")}
        rest = number * 1_000 - sum(total for _, total in after.values())
        changes["bank", "de"] = (number, rest)
        self.shop.job.run(changes)


def check_sums(stamp: dict[str, Any], rows: list[dict[str, Any]]) -> int:
    """An answer of all rows: their sum is that of its batch."""
    batch = int(stamp["batch"])
    assert sum(row["total"] for row in rows) == batch * 1_000
    return batch


def read_on(client: httpx.Client, stop: threading.Event, seen: set[int], wrong: list[BaseException]) -> None:
    """Ask in every way, again and again; each answer is compared with the rollup of its own batch too."""
    keys = [[customer, country] for customer in [*CUSTOMERS, "bank"] for country in COUNTRIES]
    try:
        for number in count():
            if stop.is_set():
                return
            match number % 3:
                case 0:
                    found = list(pages(client, limit=10_000))
                case 1:
                    found = list(pages(client, limit=7))
                case _:
                    found = [client.post(LOOKUP, json={"keys": keys}).json()]
            rows = [row for page in found for row in page["rows"] if row is not None]
            (batch,) = {check_sums(found[0]["stamp"], rows), *(page["stamp"]["batch"] for page in found)}
            (total,) = client.get(f"{SPENDING}/rollup", params={"as_of": batch}).json()["rows"]
            assert total["total"] == batch * 1_000
            assert total["orders"] == sum(row["orders"] for row in rows)
            countries = client.get(f"{SPENDING}/rollup/country").json()
            seen |= {batch, check_sums(countries["stamp"], countries["rows"])}
    except BaseException as error:
        wrong.append(error)


def test_concurrent_readers_of_200_batches_never_see_a_torn_one(tmp_path: Path) -> None:
    shop, stop = Shop(tmp_path / "shop"), threading.Event()
    bank, seen, wrong = Bank(shop), set[int](), list[BaseException]()
    bank.batch()
    for url in serving(shop.layout, tmp_path / "server.log", f"{SPENDING}/rows/bank"):
        clients = [httpx.Client(base_url=url, timeout=30) for _ in range(3)]
        threads = [threading.Thread(target=read_on, args=(client, stop, seen, wrong)) for client in clients]
        for thread in threads:
            thread.start()
        for _ in range(BATCHES):
            bank.batch()
            time.sleep(0.02)
        deadline = time.monotonic() + 60
        while max(seen, default=0) < BATCHES and not wrong and time.monotonic() < deadline:
            time.sleep(0.1)
        stop.set()
        for thread, client in zip(threads, clients, strict=True):
            thread.join()
            client.close()
    if wrong:
        raise wrong[0]
    assert max(seen) == BATCHES
    assert len(seen) > 20, "answers of many batches were compared"


def test_every_read_over_http_has_live_and_sealed_rows_and_says_so(tmp_path: Path) -> None:
    shop = ClosingShop(tmp_path / "shop")
    shop.batch({("emma", "de"): (1, 5), ("emma", "fr"): (2, 7), ("ben", "de"): (1, 1)})
    shop.store([("emma", "de")])
    shop.commit([("emma", "de")], {})
    with served(shop, tmp_path / "server.log") as http, Client(str(http.base_url)) as client:
        for source in SOURCES:
            rows = shop.all_expected(1, source)
            (page,) = client.scan("spending", source=source)
            assert (page.stamp.source, page.rows) == (source, rows)
            rollup = client.rollup("spending", ["country"], source=source)
            assert (rollup.stamp.source, rollup.rows) == (source, added_up(rows, ["country"]))
            first = next(client.watch("spending", source=source))
            assert first.stamp is not None
            assert (first.stamp.source, first.rows) == (source, rows)
        found = client.sql("SELECT sum(total) AS total, count(*) AS count FROM spending__all")
        assert found.rows == [{"total": 13, "count": 3}]
        assert [stamp.source for stamp in found.stamps] == ["both"]
        refused = http.get(f"{SPENDING}/changes?rollup=country&source=both", headers={"accept": "application/json"})
        assert (refused.status_code, refused.json()["detail"]) == (400, "A rollup is followed over live rows")
