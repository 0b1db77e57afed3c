"""SQL over HTTP, on a real server: statuses, formats, streams that are cut, clients that leave. Without Spark."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from stateside.core.errors import SqlInvalid
from stateside.core.layout import Layout
from stateside.serving.clients import Client
from tests.replica.spark_job import Job
from tests.serving.conftest import serving
from tests.sizes import sized

from .asking import shop

pytestmark = pytest.mark.e2e

ENDLESS = "SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 1"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return Layout(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def job(layout: Layout) -> Job:
    """What the server follows."""
    return shop(layout)


@pytest.fixture(scope="module")
def url(job: Job, layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serving(layout, tmp_path_factory.mktemp("logs") / "server.log", "/v1/views/spending/rows/emma")


def ask(url: str, sql: str, parameters: dict[str, Any] | None = None, **question: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/sql", params=parameters, json={"sql": sql, **question}, timeout=60)


def test_a_statement_is_answered_with_its_stamps(url: str) -> None:
    response = ask(url, "SELECT customer, total FROM spending WHERE total > ? ORDER BY 1", parameters=None)
    assert response.status_code == 400
    response = httpx.post(
        f"{url}/v1/sql", json={"sql": "SELECT customer, total FROM spending WHERE total > ?", "parameters": [100]}
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["stateside-batch"] == "0"
    document = response.json()
    assert document["rows"] == [["emma", 104]]
    assert document["columns"] == [{"name": "customer", "type": "VARCHAR"}, {"name": "total", "type": "BIGINT"}]
    assert [stamp["view"] for stamp in document["stamps"]] == ["spending"]


def test_csv_and_arrow_have_their_stamps_in_a_header(url: str) -> None:
    text = "SELECT country, sum(total)::BIGINT AS total FROM spending GROUP BY 1 ORDER BY 1"
    csv, arrow = ask(url, text, format="csv"), ask(url, text, format="arrow")
    assert csv.text.splitlines() == ['"country","total"', '"de",164', '"fr",7']
    assert csv.headers["content-type"].startswith("text/csv")
    assert pa.ipc.open_stream(arrow.content).read_all().to_pydict() == {"country": ["de", "fr"], "total": [164, 7]}
    for response in (csv, arrow):
        (stamp,) = json.loads(response.headers["stateside-stamps"])
        assert (stamp["view"], stamp["batch"]) == ("spending", 0)


def test_the_relations_are_listed_with_their_columns(url: str) -> None:
    found = {each["name"]: each for each in httpx.get(f"{url}/v1/sql").json()["relations"]}
    assert sorted(found) == ["spending", "spending__by_country", "spending__by_country__customer", "spending__total"]
    assert found["spending__by_country"]["kind"] == "rollup"
    assert found["spending"]["columns"][-1] == {"name": "price", "type": "BIGINT"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sql": "SELECT * FROM read_text('/etc/passwd')"}, 400, "sql-invalid"),
        ({"sql": "DELETE FROM spending"}, 400, "sql-invalid"),
        ({"sql": "SELECT nothing FROM spending"}, 400, "sql-invalid"),
        ({"sql": "FROM nothing"}, 400, "sql-invalid"),
        ({"sql": ""}, 400, "sql-invalid"),
        ({"sql": "SELECT 1; SELECT 2"}, 400, "sql-invalid"),
        ({"sql": "FROM spending", "rows_max": 1}, 400, "sql-too-large"),
        ({"sql": ENDLESS, "timeout_ms": 100}, 504, "sql-timeout"),
        ({"sql": 1}, 400, "request-invalid"),
        ({}, 400, "request-invalid"),
        ([], 400, "request-invalid"),
        ({"sql": "SELECT 1", "format": "xml"}, 400, "request-invalid"),
        ({"sql": "SELECT 1", "rows_max": 0}, 400, "request-invalid"),
        ({"sql": "SELECT 1", "rows_max": 10**9}, 400, "request-invalid"),
        ({"sql": "SELECT 1", "timeout_ms": "1"}, 400, "request-invalid"),
        ({"sql": "SELECT 1", "parameters": "x"}, 400, "request-invalid"),
        ({"sql": "SELECT 1", "colour": "red"}, 400, "request-invalid"),
        ({"sql": "SELECT '" + "x" * 2_000_000 + "'"}, 413, "body-too-large"),
    ],
)
def test_a_bad_statement_gets_a_problem_document(url: str, body: Any, status: int, code: str) -> None:
    response = httpx.post(f"{url}/v1/sql", json=body, timeout=60)
    assert (response.status_code, response.json()["type"].rpartition(":")[2]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert "root:" not in response.text


def test_a_floor_is_waited_for_and_then_refused(url: str) -> None:
    response = ask(url, "FROM spending", {"max_age_ms": 0, "wait_ms": 50})
    assert (response.status_code, response.json()["type"].rpartition(":")[2]) == (503, "not-fresh-enough")


def test_a_stream_that_fails_midway_is_no_whole_answer(url: str) -> None:
    """Its status is out already: what is left is that the client must see that the end is missing."""
    text = "SELECT CASE WHEN range < 3_000_000 THEN 'x' ELSE error('too far') END AS x FROM range(5_000_000)"
    with pytest.raises(pa.ArrowInvalid):
        pa.ipc.open_stream(ask(url, text, format="arrow").content).read_all()
    last = ask(url, text, format="csv").text.splitlines()[-1]
    assert last.startswith('"CUT: sql-invalid: ')
    assert "too far" in last
    assert last.count('"') == 1, "no reader takes it for a row"


def test_clients_that_leave_free_their_places(url: str) -> None:
    """Four may run at a time; more than that leave."""
    for _ in range(6):
        with _sent(url, ENDLESS):
            time.sleep(0.2)
    deadline = time.monotonic() + 90
    while ask(url, "SELECT 1").status_code == 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ask(url, "SELECT 1").json()["rows"] == [[1]]


def test_beyond_so_many_at_a_time_a_reader_is_told_when_to_come_again(url: str) -> None:
    sockets = [_sent(url, ENDLESS) for _ in range(4)]
    try:
        time.sleep(1)
        refused = ask(url, "SELECT 1")
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (429, "too-many-requests")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{url}/v1/views/spending/rows/emma").status_code == 200, "the rest is answered meanwhile"
    finally:
        for each in sockets:
            each.close()


def _sent(url: str, sql: str) -> socket.socket:
    """A connection on which a statement was sent, and nobody waits for the answer."""
    address = urlsplit(url)
    body = json.dumps({"sql": sql}).encode()
    lines = [
        "POST /v1/sql HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    head = "\r\n".join([*lines, "", ""])
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(head.encode() + body)
    return connection


def test_the_server_s_own_surroundings_are_in_no_answer(url: str) -> None:
    for text in ("SELECT 'x'::INTEGER", "FROM spendings", "SELECT sum(customer) FROM spending", "SELECT 1 / 'a'"):
        found = ask(url, text).text
        assert os.environ.get("HOME", "/root") not in found
        assert "site-packages" not in found


def test_our_own_client_asks_with_sql(url: str) -> None:
    with Client(url) as client:
        found = client.sql("SELECT country, sum(total) AS total FROM spending WHERE total > ? GROUP BY 1", [50])
        assert found.rows == [{"country": "de", "total": 164}]
        assert [stamp.view for stamp in found.stamps] == ["spending"]
        with pytest.raises(SqlInvalid, match="DELETE"):
            client.sql("DELETE FROM spending")
    command = [sys.executable, "-m", "stateside", "sql", "--url", url, "--json", "SELECT count(*) AS n FROM spending"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["rows"] == [[3]]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT length(repeat('x', 4_000_000_000))",
        "SELECT len(range(1_000_000_000))",
        "SELECT max(len(list_sort(range(200_000_000))))",
    ],
)
def test_what_duckdb_itself_does_not_limit_is_ended_and_nothing_else_suffers(url: str, text: str) -> None:
    """One row that is larger than all memory: its process may be killed, the server answers on."""
    response = ask(url, text, timeout_ms=2_000)
    assert response.json()["type"].rpartition(":")[2] in ("sql-timeout", "sql-too-large", "sql-ended", "sql-invalid")
    assert response.status_code >= 400
    assert httpx.get(f"{url}/v1/views/spending/rows/emma").status_code == 200
    assert ask(url, "SELECT sum(total) FROM spending").json()["rows"] == [[171]]


def test_a_sql_process_that_dies_is_replaced(url: str) -> None:
    assert ask(url, "SELECT 1").status_code == 200
    for process in _sql_processes():
        os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + 90
    while ask(url, "SELECT 1").status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ask(url, "SELECT sum(total) FROM spending").json()["rows"] == [[171]]


def test_a_result_that_is_under_way_when_the_process_dies_is_cut(url: str) -> None:
    body = {"sql": "SELECT range AS n FROM range(10_000_000)", "format": "csv"}
    with httpx.stream("POST", f"{url}/v1/sql", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines) == '"n"'
        for process in _sql_processes():
            os.kill(process, signal.SIGKILL)
        last = ""
        for line in lines:
            last = line
    assert last.startswith('"CUT: sql-ended: ')


def _sql_processes() -> list[int]:
    """Those of servers that this process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"stateside.serving.sql.process" in (path / "cmdline").read_bytes() and _is_ours(int(path.name)):
                found.append(int(path.name))
    return found


def _is_ours(process: int) -> bool:
    while process > 1 and process != os.getpid():
        process = int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
    return process == os.getpid()


def test_what_the_docs_show_is_answered(url: str) -> None:
    docs = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
    (shown,) = re.findall(r"<!-- test: sql -->\n```\n(.*?)```", docs, re.DOTALL)
    answers = []
    for line in shown.strip().splitlines():
        _, _, address, *body = shlex.split(line)
        address = address.replace("localhost:8471", url)
        answers.append(httpx.post(address, content=body[1], timeout=60) if body else httpx.get(address, timeout=60))
    totals, emma, relations = answers
    assert sorted(totals.json()["rows"]) == [["de", 164], ["fr", 7]]
    assert emma.text.splitlines()[1:] == ['"emma","de",2,104,6']
    assert relations.json()["relations"][0]["name"] == "spending"


def test_no_statement_sees_half_a_batch(url: str, job: Job) -> None:
    """The last one, because it moves the view: while batches come, the rows always add up to the rollups."""
    batches, ends = sized(30, 200), threading.Event()

    def run() -> None:
        rng = random.Random(7)
        for number in range(batches):
            keys = [(f"c{rng.randrange(50)}", rng.choice(["de", "fr"])) for _ in range(20)]
            job.run({key: rng.choice([None, (1, number), (2, rng.randrange(1_000))]) for key in dict.fromkeys(keys)})
            time.sleep(0.05)
        ends.set()

    writer = threading.Thread(target=run)
    writer.start()
    text = """
        SELECT sum(s.total), sum(s.price), count(*), any_value(t.total), any_value(t.price),
            (SELECT sum(total) FROM spending__by_country), (SELECT count(*) FROM spending__by_country__customer)
        FROM spending s, spending__total t"""
    seen = set()
    while not (ends.is_set() and job.batch - 1 in seen):
        document = ask(url, text).json()
        (((total, price, count, *rolled_up),), (stamp,)) = document["rows"], document["stamps"]
        assert rolled_up == [total, price, total, count]
        seen.add(stamp["batch"])
    writer.join()
    assert len(seen) > 3
