"""The ladder of docs/serving.md, of real servers under load: what is answered while something is away or made again.

Nobody gets a row that is wrong, torn or missing, nor an error that the page does not name; and when what was away is
back, all is as before, without a restart. Killed workers: `health`; killed servers: `clients/test_shares`; a killed
job: `tests/e2e`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.positions import Position
from stateside.journal import FileLog
from stateside.serving.clients import Client
from stateside.views.heartbeat import Heartbeat
from tests.serving.asking_threads import AskingThreads
from tests.serving.cluster import COUNTRIES, ORDERS, Cluster, order
from tests.serving.conftest import serving
from tests.serving.health.test_server import workers
from tests.serving.rows.closing_shop import ClosingShop
from tests.waiting import wait_until
from tests.written import Written

pytestmark = pytest.mark.e2e

VIEW = "/v1/views/spending"


@dataclass(frozen=True)
class Got:
    """An answer: to which question, the status, the code of the problem if it is one, and the document."""

    path: str
    status: int
    code: str | None
    document: dict[str, Any]


class Load(AskingThreads):
    """Clients that keep asking, a thread for each question, from `with` on; what they got is judged in the end."""

    def __init__(self, url: str, *questions: str | tuple[str, Any]) -> None:
        self.got = list[Got]()
        self.failures = list[str]()
        self._url = url
        super().__init__(partial(self._ask, question) for question in questions)

    def _ask(self, question: str | tuple[str, Any]) -> None:
        path, body = question if isinstance(question, tuple) else (question, None)
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stop.is_set():
                try:
                    answer = client.get(path) if body is None else client.post(path, json=body)
                    self.got.append(got(path, answer))
                except (httpx.TransportError, ValueError, AssertionError) as error:
                    self.failures.append(f"{path}: {error!r}")
                time.sleep(0.005)

    def statuses(self, path: str) -> Counter[int]:
        return Counter(each.status for each in self.got if each.path == path)

    def since(self) -> Callable[[str], list[Got]]:
        """What is got from now on for a question."""
        begin = len(self.got)
        return lambda path: [each for each in self.got[begin:] if each.path == path]


def got(path: str, answer: httpx.Response) -> Got:
    """The answer, of which a problem is a problem document that says what to do next, and tells no path."""
    document = answer.json()
    if answer.status_code == 200:
        return Got(path, 200, None, document)
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["status"] == answer.status_code
    assert document["next_step"]
    assert "/tmp" not in answer.text and "Traceback" not in answer.text
    return Got(path, answer.status_code, document["type"].rpartition(":")[2], document)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


QUESTIONS = (f"{VIEW}/rows/c001", f"{VIEW}/rows?limit=1000", f"{VIEW}/rollup/country", f"{VIEW}/rows/c007/de")
SECOND_QUERY = 1_000  # its counts are so much higher


def check_whole(each: Got, customers: int) -> int:
    """Of one batch of one query, with all its rows; the query's number."""
    batch, rows = each.document["stamp"]["batch"], each.document["rows"]
    counted = {row["orders"] for row in rows}
    assert len(counted) == 1, "of two batches"
    count = counted.pop() // (customers if "rollup" in each.path else 1)
    query: int
    query, of_batch = divmod(count - 1, SECOND_QUERY)
    assert of_batch == batch
    number = {QUESTIONS[0]: 3, QUESTIONS[1]: 3 * customers, QUESTIONS[2]: 3, QUESTIONS[3]: 1}
    assert len(rows) == number[each.path]
    return query


def answers_of(url: str, query: int, batch: int, customers: int) -> bool:
    """Whether each question is answered out of this batch of this query."""
    answers = [got(path, httpx.get(url + path, timeout=60)) for path in QUESTIONS]
    return all(
        each.status == 200 and each.document["stamp"]["batch"] == batch and check_whole(each, customers) == query
        for each in answers
    )


def test_while_another_query_s_replica_is_built_answers_are_whole_or_not_given(cluster: Cluster) -> None:
    url, customers = cluster.start("one"), cluster.customers
    cluster.batch()
    wait_until(lambda: answers_of(url, 0, 1, customers))
    second = Written(cluster.folder / "second", ORDERS)
    for _ in range(3):
        batch_of_second(second, customers)
    with Load(url, *QUESTIONS) as load:
        time.sleep(0.5)
        shutil.rmtree(cluster.folder / "orders")
        time.sleep(0.5)
        (cluster.folder / "second").rename(cluster.folder / "orders")
        second.folder = cluster.folder / "orders"
        wait_until(lambda: answers_of(url, 1, 2, customers))
        batch_of_second(second, customers)
        wait_until(lambda: answers_of(url, 1, 3, customers))
        since = load.since()
        time.sleep(0.3)
    assert load.failures == []
    for path in QUESTIONS:
        of_path = [each for each in load.got if each.path == path]
        assert {each.code for each in of_path if each.status != 200} <= {"not-fresh-enough"}
        queries = [check_whole(each, customers) for each in of_path if each.status == 200]
        assert queries == sorted(queries), "nobody goes back to the query that is gone"
        assert {each.status for each in since(path)} == {200}


def batch_of_second(written: Written, customers: int) -> None:
    """In the second query all counts are higher."""
    batch = written.batches
    rows = [order(batch, number, country) for number in range(customers) for country in COUNTRIES]
    written.batch([(key, [SECOND_QUERY + batch + 1, *values[1:]]) for key, values in rows])


def test_a_replica_that_is_deleted_under_its_server_is_built_anew_and_nobody_notices(cluster: Cluster) -> None:
    """Twice: the second time what is deleted was built so itself. A new worker finds it too, and a new server."""
    url, customers = cluster.start("one"), cluster.customers
    replica = cluster.folder / "replicas-one" / "views" / "spending" / "replica"
    with Load(url, *QUESTIONS) as load:
        for _ in range(2):
            time.sleep(0.3)
            shutil.rmtree(replica)
            wait_until((replica / "current").exists)
            batch = cluster.batch()
            wait_until(lambda batch=batch: answers_of(url, 0, batch, customers))  # type: ignore[misc]
    assert load.failures == []
    assert {each.status for each in load.got} == {200}
    for each in load.got:
        check_whole(each, customers)
    pid = cluster.servers["one"][0].pid
    (worker,) = workers(pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in workers(pid) and len(workers(pid)) == 1)
    wait_until(lambda: is_answered(url, batch, customers))
    cluster.stop("one")
    assert answers_of(cluster.start("one"), 0, batch, customers)


def is_answered(url: str, batch: int, customers: int) -> bool:
    try:
        return answers_of(url, 0, batch, customers)
    except httpx.TransportError:  # the new worker does not listen yet
        return False


# An application's folder: its archive, its journal, its job


@pytest.fixture
def shop(tmp_path: Path) -> ClosingShop:
    """Rows of emma: one sealed, two live. It is the server alone that moves the replica."""
    made = ClosingShop(tmp_path / "shop")
    made.job.run({("emma", "de"): (1, 5), ("emma", "fr"): (2, 7), ("emma", "it"): (3, 9), ("ben", "de"): (1, 1)})
    made.store([("emma", "de")])
    made.commit([("emma", "de")], {})
    return made


@pytest.fixture
def url(shop: ClosingShop, tmp_path: Path) -> Iterator[str]:
    yield from serving(shop.layout, tmp_path / "server.log", f"{VIEW}/rows/emma")


SOURCES = {"live": f"{VIEW}/rows/emma?source=live", "archive": f"{VIEW}/rows/emma?source=archive"}
BOTH = f"{VIEW}/rows/emma"
LOOKUP = f"{VIEW}/lookup", {"keys": [["emma", "de"], ["emma", "it"]]}
SQL = "/v1/sql", {"sql": "SELECT country FROM archive.closed WHERE customer = 'emma' ORDER BY country"}


def test_while_the_archive_s_storage_is_away_live_rows_are_answered_and_sealed_ones_refused(
    shop: ClosingShop, url: str
) -> None:
    table, away = shop.layout.table("closed"), shop.layout.root / "away"
    sealed = (SOURCES["archive"], BOTH, LOOKUP[0], SQL[0])
    with Load(url, *SOURCES.values(), BOTH, LOOKUP, SQL) as load:
        wait_until(lambda: all(load.statuses(path)[200] for path in sealed))
        table.rename(away)
        since = load.since()
        wait_until(lambda: all(each_is(since(path), "archive-away") for path in sealed))
        shop.job.run({("emma", "fr"): (3, 8)})  # the job goes on: it has nothing to seal
        since = load.since()
        wait_until(lambda: any(each.document["stamp"]["batch"] == 2 for each in since(SOURCES["live"])))
        away.rename(table)
        since = load.since()
        wait_until(lambda: all(each_is(since(path)[-3:], None) for path in sealed))
        shop.store([("emma", "fr")])
        shop.commit([("emma", "fr")], {})
        since = load.since()
        wait_until(lambda: any(each.document["stamp"]["batch"] == 3 for each in since(BOTH) if each.status == 200))
        since = load.since()
        wait_until(lambda: bool(since(SQL[0])[1:]))
    assert load.failures == []
    assert load.statuses(SOURCES["live"]).keys() == {200}
    for path in sealed:
        assert {each.code for each in load.got if each.path == path} == {None, "archive-away"}
    for source, path in (*SOURCES.items(), ("both", BOTH)):
        for each in load.got:
            if (each.path, each.status) == (path, 200):
                assert each.document["rows"] == shop.expected(each.document["stamp"]["batch"], source)["emma"]
    last = [each for each in load.got if (each.path, each.status) == (SQL[0], 200)][-1]
    assert last.document["rows"] == [["de"], ["fr"]]


def each_is(answers: list[Got], code: str | None) -> bool:
    return bool(answers[1:]) and {each.code for each in answers[1:]} == {code}  # the first may have been under way


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_while_the_journal_s_disk_is_away_appends_are_refused_reads_go_on_and_nothing_acknowledged_is_lost(
    shop: ClosingShop, url: str, left: str
) -> None:
    journal, away = shop.layout.journal, shop.layout.root / "away"
    with Load(url, BOTH) as load, Appends(url) as appends:
        wait_until(lambda: len(appends.receipts) > 5)
        journal.rename(away)
        if left == "an empty folder":  # as an unmounted disk leaves it
            journal.mkdir()
        wait_until(lambda: appends.refused["journal-away"] > 3)
        with Client(url, deadline_s=60) as client:
            waiting = threading.Thread(target=lambda: appends.note("patient", client.append([event("patient")])))
            waiting.start()
            time.sleep(0.3)
            assert "patient" not in appends.receipts
            shutil.rmtree(journal, ignore_errors=True)
            away.rename(journal)
            waiting.join()
        count = len(appends.receipts)
        wait_until(lambda: len(appends.receipts) > count + 5)
    assert (load.failures, appends.failures) == ([], [])
    assert load.statuses(BOTH).keys() == {200}
    assert set(appends.refused) == {"journal-away"}
    ids = [each.id for each in FileLog(journal).events()]
    assert len(ids) == len(set(ids))
    assert {id_: ids[receipt["0"] - 1] for id_, receipt in appends.receipts.items()} == {
        id_: id_ for id_ in appends.receipts
    }


def event(id_: str) -> dict[str, Any]:
    return {"id": id_, "entity": "emma", "type": "order"}


class Appends:
    """Somebody who appends one event after the other, and repeats none; with the receipt of each that was stored."""

    def __init__(self, url: str) -> None:
        self.receipts = dict[str, Position]()
        self.refused = Counter[str]()
        self.failures = list[str]()
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._append)

    def note(self, id_: str, receipt: Position) -> None:
        self.receipts[id_] = receipt

    def _append(self) -> None:
        number = 0
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                number += 1
                body = {"events": [event(f"e{number}")]}
                try:
                    told = got("", client.post(f"{self._url}/v1/events", json=body))
                except (httpx.TransportError, ValueError, AssertionError) as error:
                    self.failures.append(repr(error))
                    continue
                if told.status == 200:
                    self.note(f"e{number}", Position.parse(told.document["receipt"]))
                else:
                    self.refused[told.code or ""] += 1
                time.sleep(0.005)

    def __enter__(self) -> Appends:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_server_that_is_told_to_stop_has_stored_every_event_that_it_acknowledged(
    shop: ClosingShop, tmp_path: Path
) -> None:
    served = serving(shop.layout, tmp_path / "server.log", f"{VIEW}/rows/emma")
    with Appends(next(served)) as appends:
        wait_until(lambda: len(appends.receipts) > 20)
        served.close()
    ids = {each.id for each in FileLog(shop.layout.journal).events()}
    assert set(appends.receipts) <= ids
    assert all("Connect" in each or "RemoteProtocol" in each or "Read" in each for each in appends.failures)


def test_the_job_s_state_and_the_age_tell_a_job_that_runs_from_one_that_is_idle_and_one_that_is_down(
    shop: ClosingShop, url: str
) -> None:
    """What its heartbeats say, which nobody writes any more once it is killed."""
    behind_us, end = 60_000_000, Position.of({"a": 20})

    def hears(state: Any, ago_us: int = 0) -> None:
        now_us = time.time_ns() // 1_000
        Heartbeat(now_us - ago_us, end, state, 1).save(shop.view.heartbeat)

    def seen() -> tuple[str, int]:
        (view,) = httpx.get(f"{url}/v1/views").json()["views"]
        answer = httpx.get(f"{url}{BOTH}")
        assert answer.json()["rows"] == shop.expected(1)["emma"], "it is answered all the while"
        return view["state"], answer.json()["stamp"]["age_ms"]

    def is_seen(state: str) -> bool:
        hears(state)
        return seen()[0] == state and seen()[1] < 30_000

    for state in ("running", "idle"):
        wait_until(partial(is_seen, state))
    hears("idle", behind_us)
    wait_until(lambda: seen()[0] == "down")
    late = httpx.get(f"{url}{BOTH}", params={"max_age_ms": 0, "wait_ms": 100})
    assert (late.status_code, got("", late).code) == (503, "not-fresh-enough")
    assert "The job is down: it gave its last sign of life at 20" in late.json()["detail"]
    assert re.search(r"it is [\d.]+ (s|min) old", late.json()["detail"])
    assert "once the job runs" in late.json()["next_step"]
    before = seen()[1]
    time.sleep(0.2)
    assert seen()[1] >= before + 150
