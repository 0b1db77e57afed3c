"""Bad input of every kind, sent to a real server: the right status, a problem document that helps, nothing told.

docs/serving.md has the table; a row of it is a case here.
"""

from __future__ import annotations

import re
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from stateside.core.layout import Layout
from stateside.journal import FileLog
from stateside.serving.access.principal import OPERATOR
from stateside.serving.access.token_files import KeyFile
from stateside.serving.access.tokens import Claims, Issuer
from tests.serving.conftest import serving

from .application import make_application

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
BENS_TOTAL = 918_273_645  # what emma must not see, anywhere
IDLE = 1_000
STOLEN = Path(tempfile.gettempdir()) / "stateside-test-stolen.csv"


@dataclass(frozen=True)
class Served:
    """The server, its folder and log, and a token for each who asks."""

    url: str
    layout: Layout
    log: Path
    tokens: dict[str, str | None]

    def ask(self, case: Case) -> httpx.Response:
        token, body = self.tokens[case.who], case.content
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        path = case.path(self) if callable(case.path) else case.path
        return httpx.request(case.method, self.url + path, headers=headers, content=body, timeout=60)


@dataclass(frozen=True)
class Case:
    """What is sent, by whom, and what is answered. `input` stands in a row of the page's table."""

    input: str
    path: str | Callable[[Served], str]
    status: int
    code: str
    who: str = "operator"
    method: str = "GET"
    body: Any = None
    content: bytes | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.input}: {self.path if isinstance(self.path, str) else self.path.__name__}"[:60]


def other_question(served: Served) -> str:
    """The cursor of one question, given with another."""
    return f"/v1/views/orders/rows?limit=1&order=-year&cursor={cursor(served)}"


def tampered(served: Served) -> str:
    """A cursor of which a character is another one."""
    text = cursor(served)
    return f"/v1/views/orders/rows?limit=1&cursor={text[:20]}{'A' if text[20] != 'A' else 'B'}{text[21:]}"


def cursor(served: Served) -> str:
    headers = {"authorization": f"Bearer {served.tokens['operator']}"}
    first = httpx.get(f"{served.url}/v1/views/orders/rows?limit=1", headers=headers)
    return str(first.json()["cursor"])


def posted(input: str, path: str, body: bytes | str, status: int, code: str, who: str = "operator") -> Case:
    content = body if isinstance(body, bytes) else body.encode()
    return Case(input, path, status, code, who, "POST", content=content)


def sql(statement: str, who: str = "operator") -> Case:
    return posted("a statement", "/v1/sql", f'{{"sql": "{statement}"}}', 400, "sql-invalid", who)


ROWS = "/v1/views/orders/rows"
CASES = [
    Case("an unknown view", "/v1/views/nothing/rows/emma", 404, "view-unknown"),
    Case("an unknown view", "/v1/views/..%5C..%5Cetc/rows", 404, "view-unknown"),
    Case("an unknown view", "/v1/views/nothing/rows/emma", 404, "view-unknown", who="emma"),
    Case("an unknown view", "/v1/views/nothing/changes", 404, "view-unknown"),
    posted("an unknown view", "/v1/views/nothing/lookup", '{"keys": [["emma", 2026]]}', 404, "view-unknown"),
    Case("a key", f"{ROWS}/emma/2026/more", 400, "key-invalid"),
    Case("a key", f"{ROWS}/emma/soon", 400, "key-invalid"),
    Case("a key", f"{ROWS}/emma/99999999999999999999", 400, "key-invalid"),
    Case("a key", "/v1/views/orders/location/emma/2026/more", 400, "key-invalid"),
    posted("a key", "/v1/views/orders/lookup", '{"keys": [["emma"]]}', 400, "key-invalid"),
    posted("a key", "/v1/views/orders/lookup", '{"keys": [["emma", "soon"]]}', 400, "key-invalid"),
    posted("a key", "/v1/views/orders/lookup", '{"keys": [["emma", {"a": 1}]]}', 400, "key-invalid"),
    Case("a cursor", f"{ROWS}?cursor=nonsense", 400, "cursor-invalid"),
    Case("a cursor", f"{ROWS}?cursor=", 400, "cursor-invalid"),
    Case("a cursor", tampered, 400, "cursor-invalid"),
    Case("a cursor", other_question, 400, "cursor-invalid"),
    Case("no token", f"{ROWS}/emma", 401, "token-invalid", who="nobody"),
    Case("no token", f"{ROWS}/emma", 401, "token-invalid", who="expired"),
    Case("no token", f"{ROWS}/emma", 401, "token-invalid", who="forged"),
    Case("no token", f"{ROWS}/emma", 401, "token-invalid", who="not signed"),
    Case("no token", "/v1/nothing", 401, "token-invalid", who="nobody"),
    Case("another customer", f"{ROWS}/ben/2026", 403, "access-denied", who="emma"),
    Case("another customer", f"{ROWS}/ben", 403, "access-denied", who="emma"),
    Case("another customer", f"{ROWS}?where=customer=ben", 403, "access-denied", who="emma"),
    Case("another customer", "/v1/views/orders/location/ben", 403, "access-denied", who="emma"),
    Case("another customer", "/v1/views/orders/changes?key=ben", 403, "access-denied", who="emma"),
    posted("another customer", "/v1/views/orders/lookup", '{"keys": [["ben", 2026]]}', 403, "access-denied", "emma"),
    Case("another customer", "/metrics", 403, "access-denied", who="emma"),
    posted("another customer", "/v1/events", "{}", 403, "access-denied", "emma"),
    Case("a position", f"{ROWS}/emma?min_position=0:999999&wait_ms=30000", 409, "position-ahead"),
    Case("a position", "/v1/views/orders/changes?min_position=0:4&wait_ms=30000", 409, "position-ahead"),
    Case("a position", f"{ROWS}/emma?min_position=now", 400, "position-invalid"),
    posted("a body", "/v1/views/orders/lookup", b"[" * (1 << 20) + b"1", 413, "body-too-large"),
    posted("a body", "/v1/sql", b"x" * ((1 << 20) + 1), 413, "body-too-large"),
    posted("a body", "/v1/events", b"x" * ((4 << 20) + 1), 413, "body-too-large"),
    posted("a body", "/v1/views/orders/lookup", b"[" * 100_000, 400, "request-invalid"),
    posted("a body", "/v1/events", b'{"events": [{"id": 1}]}', 400, "event-refused"),
    posted("a body", "/v1/events", b"\xff\xfe", 400, "request-invalid"),
    sql("CREATE TABLE t AS SELECT 1"),
    sql("INSERT INTO orders VALUES (1)"),
    sql(f"COPY orders TO '{STOLEN}'"),
    sql("SELECT * FROM '/etc/passwd'"),
    sql("SELECT * FROM read_csv('/etc/passwd')"),
    sql("SELECT * FROM read_text('/etc/passwd')", who="analyst"),
    sql(f"ATTACH '{STOLEN}'"),
    sql("INSTALL httpfs"),
    sql("SET enable_external_access = true"),
    sql("SELECT 1; SELECT 2"),
    Case("a parameter", f"{ROWS}?colour=red", 400, "request-invalid"),
    Case("a parameter", f"{ROWS}?wait_ms=soon", 400, "request-invalid"),
    Case("a parameter", f"{ROWS}?limit=0", 400, "request-invalid"),
    Case("a parameter", f"{ROWS}?where=sum~1", 400, "request-invalid"),
    Case("a parameter", f"{ROWS}?order=colour", 400, "request-invalid"),
    Case("an address", "/v1/nothing", 404, "route-unknown"),
    Case("an address", "/v1/..%2F..%2Fetc%2Fpasswd", 404, "route-unknown"),
    Case("an address", "/v1/views/..%2F..%2Fetc/rows", 404, "route-unknown"),
    Case("a method", f"{ROWS}/emma", 405, "method-invalid", method="DELETE"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bad-input")
    layout, log = Layout(folder / "application"), folder / "server.log"
    make_application(layout, BENS_TOTAL)
    tokens = tokens_of(layout)
    for url in serving(layout, log, "/healthz"):
        found = Served(url, layout, log, tokens)
        deadline = time.monotonic() + 90
        while found.ask(Case("", f"{ROWS}/emma", 200, "")).status_code != 200:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found


def tokens_of(layout: Layout) -> dict[str, str | None]:
    issuer = Issuer(layout)
    operator = issuer.create_operator("operator")
    key, now_s = KeyFile(layout.keys).read()[-1], int(time.time())
    old = Claims(OPERATOR, "1", (now_s - 100) * 1_000_000, now_s - 50).payload()
    new = Claims(OPERATOR, "1", now_s * 1_000_000, now_s + 600).payload()
    return {
        "operator": operator,
        "emma": issuer.create_customer("emma", "emma"),
        "analyst": issuer.create("analyst", ("sql",), where={"customer": "emma"})[0],
        "nobody": None,
        "expired": jwt.encode(old, key.secret, "HS256", headers={"kid": key.kid}),
        "forged": jwt.encode(new, "x" * 64, "HS256", headers={"kid": key.kid}),
        "not signed": jwt.encode(new, "", "none", headers={"kid": key.kid}),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input_is_a_problem_that_says_what_to_do_and_tells_nothing_else(served: Served, case: Case) -> None:
    answer = served.ask(case)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (case.status, f"urn:stateside:problem:{case.code}"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == case.status
    assert problem["detail"]
    assert problem.get("next_step"), problem
    assert_tells_nothing(served, case, answer)


def test_a_method_that_is_not_possible_is_told_together_with_those_that_are(served: Served) -> None:
    for path, operations in served.ask(Case("", "/v1/openapi.json", 200, "")).json()["paths"].items():
        address = re.sub(r"\{\w+\}", "orders", path)
        refused = served.ask(Case("", address, 405, "method-invalid", method="PATCH"))
        allowed = {method.upper() for method in operations} | ({"HEAD"} if "get" in operations else set())
        assert (address, refused.status_code) == (address, 405)
        assert refused.headers["allow"] == ", ".join(sorted(allowed))


def assert_tells_nothing(served: Served, case: Case, answer: httpx.Response) -> None:
    text = answer.text + str(answer.headers)
    for told in (str(served.layout.root), "Traceback", "site-packages", ".py", str(BENS_TOTAL), "root:"):
        assert told not in text
    for token in served.tokens.values():
        assert token is None or token not in text
    if case.who != "operator":
        assert "Views served" not in text
    assert case.who != "nobody" or "orders" not in text, "not even which views there are"


def test_after_all_of_it_nothing_was_stored_and_the_log_has_no_error(served: Served) -> None:
    for case in CASES:
        served.ask(case)
    assert not STOLEN.exists()
    assert len(list(FileLog(served.layout.journal).events())) == 3
    text = served.log.read_text()
    assert "Traceback" not in text and "ERROR" not in text, text
    refusals = served.layout.refusals.read_text()
    assert not any(token in refusals + text for token in served.tokens.values() if token is not None)


def test_with_a_thousand_idle_connections_it_answers_as_fast_as_before(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    headers = {"authorization": f"Bearer {served.tokens['operator']}"}
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=served.url, headers=headers, timeout=60))
        before_s = median_s(client)
        for _ in range(IDLE):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert median_s(client) < max(0.1, 10 * before_s)
        with httpx.Client(base_url=served.url, headers=headers, timeout=60) as new:
            assert new.get(f"{ROWS}/emma").status_code == 200
        refused = client.get(f"{ROWS}/emma/soon")
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (400, "key-invalid")


def median_s(client: httpx.Client) -> float:
    took_s = []
    for _ in range(30):
        began_s = time.perf_counter()
        assert client.get(f"{ROWS}/emma/2026").status_code == 200
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s)


def test_the_page_has_a_row_for_every_kind_of_bad_input() -> None:
    (table,) = re.findall(r"<!-- test: bad input -->\n\n((?:\|.*\n)+)", PAGE.read_text())
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]
    told = {(status, code) for row in rows for status, code in re.findall(r"(\d{3}) `([a-z-]+)`", row[1])}
    assert told == {(str(case.status), case.code) for case in CASES}
    assert all(any(case.input in row[0] for row in rows) for case in CASES)
