"""How a real server is looked after: ready, measured, traced, restarted worker by worker, stopped in order."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serving.asking_threads import AskingThreads
from tests.serving.cluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ROWS = "/v1/views/spending/rows/c001"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(Path(tmp_path_factory.mktemp("cluster")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> str:
    return cluster.start("whole", None, "--workers", "2", "--log-json")


def test_it_is_ready_once_every_view_can_be_answered(url: str) -> None:
    answer = httpx.get(f"{url}/readyz")
    assert answer.status_code == 200
    (view,) = answer.json()["views"]
    assert (view["view"], view["batch"] >= 0, view["job"]) == ("spending", True, "unknown")
    assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}


def test_the_answer_has_the_trace_of_the_request(url: str) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    for path, status in ((ROWS, 200), ("/v1/nothing", 404)):
        answer = httpx.get(url + path, headers=headers)
        assert (answer.status_code, answer.headers["traceparent"].split("-")[1]) == (status, trace)
    assert len(httpx.get(url + ROWS).headers["traceparent"]) == 55


def test_metrics_are_those_of_all_workers(url: str, cluster: Cluster) -> None:
    def count() -> int:
        text = httpx.get(f"{url}/metrics").text
        found = re.search(r'stateside_answers_total\{.*route="/v1/views/\{view\}/rows/\{key\.\.\.\}".*\} (\S+)', text)
        return int(float(found[1])) if found else 0

    before = count()
    for _ in range(40):  # over connections of their own: both workers get some
        assert httpx.get(url + ROWS).status_code == 200
    assert count() == before + 40
    text = httpx.get(f"{url}/metrics").text
    assert 'stateside_view_rows{view="spending"} 120.0' in text
    assert 'stateside_replica_lag_batches{view="spending"} 0.0' in text
    assert 'stateside_job_state{state="unknown",view="spending"} 1.0' in text
    assert "stateside_answer_seconds_bucket" in text


class Load(AskingThreads):
    """Asks all the time, from several threads, over connections that are kept and over new ones."""

    def __init__(self, url: str) -> None:
        self.answers, self.failures = 0, list[str]()
        self._url = url
        super().__init__(partial(self._ask, kept) for kept in (True, True, False, False))

    def _ask(self, kept: bool) -> None:
        client = httpx.Client(timeout=30)
        while not self._stop.is_set():
            if not kept:
                client.close()
                client = httpx.Client(timeout=30)
            try:
                answer = client.get(self._url + ROWS)
                if answer.status_code == 200:
                    self.answers += 1
                else:
                    self.failures.append(answer.text)
            except httpx.TransportError as error:
                self.failures.append(repr(error))
        client.close()


def workers(pid: int) -> set[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in found if b"spawn_main" in _line(child)}


def _line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:  # it has ended meanwhile
        return b""


def test_workers_restarted_one_after_the_other_cost_no_request(url: str, cluster: Cluster) -> None:
    """SIGHUP: what an operator sends after new certificates, or an upgrade of what the workers load."""
    pid = cluster.servers["whole"][0].pid
    before = workers(pid)
    assert len(before) == 2
    with Load(url) as load:
        wait_until(lambda: load.answers > 10)
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: len(workers(pid) - before) == 2 and not workers(pid) & before)
        answered = load.answers
        wait_until(lambda: load.answers > answered + 10)
    assert load.failures == []


def sockets(pid: int) -> int:
    return sum("socket:" in _target(each) for each in Path(f"/proc/{pid}/fd").iterdir())


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # it was closed meanwhile
        return ""


def answers(connection: HTTPConnection) -> bool:
    """Whether a request over this connection, and no other, is answered."""
    try:
        connection.request("GET", ROWS)
        answer = connection.getresponse()
        answer.read()
    except (OSError, HTTPException):
        return False
    assert answer.status == 200
    return True


def connected(url: str, to: set[int]) -> list[HTTPConnection]:
    """Connections that are kept, until each of these workers has some."""
    before, made = {pid: sockets(pid) for pid in to}, list[HTTPConnection]()

    def has_some() -> bool:
        made.append(HTTPConnection(urlsplit(url).netloc, timeout=30))
        assert answers(made[-1])
        made[-1].auto_open = 0  # a lost connection stays lost
        return all(sockets(pid) > before[pid] for pid in to)

    wait_until(has_some)
    return made


def test_a_worker_that_is_killed_is_replaced_and_the_other_one_answers_meanwhile(url: str, cluster: Cluster) -> None:
    pid = cluster.servers["whole"][0].pid
    before = workers(pid)
    connections = connected(url, before)
    os.kill(min(before), signal.SIGKILL)
    kept = [each for each in connections if answers(each)]
    assert 0 < len(kept) < len(connections), "those of the killed worker are lost, those of the other one are not"

    def is_replaced() -> bool:
        assert all(answers(each) for each in kept)
        return min(before) not in workers(pid) and len(workers(pid)) == 2

    wait_until(is_replaced)
    assert max(before) in workers(pid)
    for each in connected(url, workers(pid)):
        assert answers(each)
        each.close()


def test_stopping_it_finishes_what_was_asked(cluster: Cluster) -> None:
    """The answer waits for a batch that does not come; SIGTERM comes meanwhile, and the answer is given."""
    url = cluster.start("stopping")
    asking = HTTPConnection(urlsplit(url).netloc, timeout=90)
    asking.request("GET", f"{ROWS}?min_position=0:999999&wait_ms=2000")
    httpx.get(f"{url}/readyz")  # the server's loop has taken in the question before this one
    cluster.stop("stopping")
    answer = asking.getresponse()
    assert answer.status == 503
    assert json.load(answer)["type"].endswith("not-fresh-enough")
    with pytest.raises(httpx.TransportError):
        httpx.get(url)
