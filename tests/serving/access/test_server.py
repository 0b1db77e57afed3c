"""A real server with TLS, tokens and limits: whom it answers, whom it turns away, and what it says then."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import jwt
import pytest
import trustme

from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.serving.access.principal import OPERATOR
from stateside.serving.access.token_files import KeyFile
from stateside.serving.access.tokens import Claims, Issuer
from stateside.serving.web.connection import HEAD_S_MAX

from .guarded_server import BODY_BYTES_MAX, RATE_PER_S, RUNNING_MAX

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).with_name("guarded_server.py")
IDLE = 1_000


@dataclass(frozen=True)
class Served:
    """A server, whom its certificate is from, and what it writes."""

    layout: Layout
    port: int
    trusting: ssl.SSLContext
    log: Path
    authority: Path
    pem: tuple[Path, Path]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def issuer(self) -> Issuer:
        return Issuer(self.layout)

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, verify=self.trusting, headers=headers, timeout=30)

    def refusals(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.layout.refusals.read_text().splitlines()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    layout, log = Layout(folder / "data"), folder / "server.log"
    layout.root.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued = authority.issue_cert("localhost", "127.0.0.1")
    pem = folder / "certificate.pem", folder / "key.pem"
    pem[0].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(pem[1])
    Issuer(layout).create_operator("first")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    port = free_port()
    child = Child([sys.executable, str(SCRIPT), str(layout.root), str(port), *map(str, pem)], log)
    found = Served(layout, port, context, log, folder / "authority.pem", pem)
    try:
        wait_for(found, child)
        yield found
    finally:
        child.stop()


def wait_for(served: Served, child: Child) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with served.client() as client:
                assert client.get("/healthz").status_code == 200, "it needs no token"
                return
        except httpx.TransportError:
            assert child.returncode() is None and time.monotonic() < deadline, child.tail()
            time.sleep(0.1)


def test_a_client_that_trusts_the_authority_is_answered_and_one_that_does_not_refuses(served: Served) -> None:
    token = served.issuer.create_operator("trusting")
    with served.client(token) as client:
        assert client.get("/v1/views").json() == {"views": []}
        assert client.get(f"https://127.0.0.1:{served.port}/v1/views").status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{served.url}/healthz")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{served.port}/healthz")


def test_an_older_tls_than_1_3_is_refused(served: Served) -> None:
    context = ssl.create_default_context(cafile=served.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/healthz", verify=context)


def bad_tokens(served: Served) -> Iterator[tuple[str, str | None]]:
    issuer, key = served.issuer, KeyFile(served.layout.keys).read()[-1]
    now_s = int(time.time())
    good = issuer.create_operator("tampered")

    def sign(iat: int, exp: int, algorithm: str = "HS256", kid: str = key.kid) -> str:
        claims = Claims(OPERATOR, "1", iat * 1_000_000, exp).payload()
        secret = "" if algorithm == "none" else key.secret
        return jwt.encode(claims, secret, algorithm, headers={"kid": kid})

    yield "none", None
    yield "forged", sign(now_s, now_s + 60)[:-6] + "AAAAAA"
    yield "expired", sign(now_s - 100, now_s - 10)
    yield "not yet valid", sign(now_s + 60, now_s + 120)
    yield "alg none", sign(now_s, now_s + 60, "none")
    yield "other kid", sign(now_s, now_s + 60, kid="other")
    yield "truncated", good[:-1]
    yield "longer", good + "A"
    yield "no token at all", "stateside"
    revoked = issuer.create_operator("revoked")
    issuer.revoke("revoked")
    yield "revoked", revoked


def test_what_is_no_valid_token_is_401_with_a_problem_and_is_not_shown_anywhere(served: Served) -> None:
    tokens = list(bad_tokens(served))
    for name, token in tokens:
        with served.client(token) as client:
            answer = client.get("/v1/views")
        assert answer.status_code == 401, name
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:stateside:problem:token-invalid"
        for secret in (each for _, each in tokens if each is not None and len(each) > 20):
            assert secret not in answer.text + served.log.read_text() + served.layout.refusals.read_text()
    with served.client() as client:
        assert client.get("/v1/nothing").status_code == 401, "not even what there is, is told"
    last = [line for line in served.refusals() if line["why"] == "This token is revoked"]
    assert last[-1]["who"] == "revoked"


def test_a_key_that_is_retired_takes_its_tokens_with_it_while_the_server_runs(served: Served) -> None:
    issuer = served.issuer
    (kid,) = (key.kid for key, _ in issuer.listed_keys())
    old = issuer.create_operator("before")
    issuer.rotate()
    new = issuer.create_operator("after")
    with served.client(old) as before, served.client(new) as after:
        assert (before.get("/v1/views").status_code, after.get("/v1/views").status_code) == (200, 200)
        issuer.retire(kid)
        assert (before.get("/v1/views").status_code, after.get("/v1/views").status_code) == (401, 200)


@pytest.mark.parametrize(
    ("roles", "where", "opened"),
    [
        (
            ("operator",),
            {},
            {"/v1/views", "/v1/slow?s=0", "/v1/customers/emma/thing?s=0", "/v1/customers/ben/thing?s=0"},
        ),
        (("read",), {}, {"/v1/slow?s=0", "/v1/customers/emma/thing?s=0", "/v1/customers/ben/thing?s=0"}),
        (("read",), {"customer": "emma"}, {"/v1/slow?s=0", "/v1/customers/emma/thing?s=0"}),
        (("append",), {}, set()),
        (("sql",), {}, set()),
    ],
)
def test_a_role_or_scope_that_does_not_reach_is_403(
    served: Served, roles: tuple[str, ...], where: dict[str, str], opened: set[str]
) -> None:
    token, _ = served.issuer.create(f"{roles[0]}{len(where)}", roles, where=where)  # type: ignore[arg-type]
    paths = ["/v1/slow?s=0", "/v1/customers/emma/thing?s=0", "/v1/customers/ben/thing?s=0"]
    with served.client(token) as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == (200 if path in opened else 403), path
        posted = client.post("/v1/echo", content=b"{}")
        assert posted.status_code == (200 if roles[0] in ("operator", "append") else 403)
        if roles[0] != "operator":
            unknown = client.get("/v1/nothing", headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
            assert unknown.status_code == 403, "what there is not, is told to operators"
            line = served.refusals()[-1]
            assert (line["status"], line["code"], line["who"]) == (403, "access-denied", f"{roles[0]}{len(where)}")
            assert (line["path"], line["address"], line["trace"]) == ("/v1/nothing", "127.0.0.1", "ab" * 16)


def test_the_methods_of_one_address_let_in_each_their_own(served: Served) -> None:
    token, _ = served.issuer.create("appender", ("append",))
    with served.client(token) as client, served.client() as nobody:
        assert client.post("/v1/echo", content=b"x").status_code == 200, "whoever may not GET it may POST it"
        assert client.get("/v1/echo").status_code == 403
        assert [nobody.request(method, "/v1/echo").status_code for method in ("PUT", "POST", "GET")] == [200, 401, 401]
        assert client.delete("/v1/echo").status_code == 405
        assert nobody.delete("/v1/echo").status_code == 401


@pytest.mark.timeout(120)
def test_a_stream_ends_soon_after_its_token_is_revoked(served: Served) -> None:
    token, _ = served.issuer.create("watcher")
    with served.client(token) as client, client.stream("GET", "/v1/stream") as stream:
        parts = stream.iter_raw()
        next(parts)
        served.issuer.revoke("watcher")
        for _ in parts:
            pass
    assert served.refusals()[-1]["who"] == "watcher"


def test_every_answer_has_the_security_headers(served: Served) -> None:
    token, _ = served.issuer.create("headers", ("operator",))
    with served.client(token) as client, served.client() as nobody:
        answers = [
            client.get(path) for path in ("/v1/views", "/v1/nothing", "/v1/broken", "/v1/views?x=1", "/v1/paper")
        ]
        answers += [nobody.get("/healthz"), nobody.get("/v1/views"), client.post("/v1/views"), client.head("/v1/views")]
        with client.stream("GET", "/v1/stream") as stream:
            answers.append(stream)
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404, 405, 500}
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        policy = answer.headers.get("content-security-policy", "")
        assert policy == "" if answer.url.path == "/v1/paper" else policy.startswith("default-src 'none'")
    assert "ZeroDivisionError" not in answers[2].text


def test_who_asks_too_often_is_429_until_the_time_that_it_is_told(served: Served) -> None:
    eager, calm = served.issuer.create("eager")[0], served.issuer.create("calm")[0]
    with served.client(eager) as client, served.client(calm) as other:
        for _ in range(RATE_PER_S * 60):
            answer = client.get("/v1/slow?s=0")
            if answer.status_code != 200:
                break
        assert answer.status_code == 429
        assert answer.json()["type"] == "urn:stateside:problem:too-many-requests"
        assert int(answer.headers["retry-after"]) == answer.json()["retry_after_s"] == 1
        assert other.get("/v1/slow?s=0").status_code == 200
        time.sleep(int(answer.headers["retry-after"]))
        assert client.get("/v1/slow?s=0").status_code == 200
    assert served.refusals()[-1]["who"] == "eager"


def test_so_many_requests_are_under_way_at_a_time_streams_included(served: Served) -> None:
    busy, calm = served.issuer.create("busy")[0], served.issuer.create("calm")[0]
    with served.client(busy) as client, served.client(calm) as other, ExitStack() as stack:
        for _ in range(RUNNING_MAX - 1):
            stack.enter_context(client.stream("GET", "/v1/stream"))
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(client.get, "/v1/slow?s=1.5")
            time.sleep(0.5)
            refused = client.get("/v1/slow?s=0")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert other.get("/v1/slow?s=0").status_code == 200
            assert last.result().json() == {"who": "busy"}
        assert client.get("/v1/slow?s=0").status_code == 200
        stack.close()
        wait_for_room(client)


def wait_for_room(client: httpx.Client) -> None:
    """The server learns that a stream's reader has left when it next writes to it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with ThreadPoolExecutor(RUNNING_MAX) as pool:
            answers = list(pool.map(lambda _: client.get("/v1/slow?s=0.3").status_code, range(RUNNING_MAX)))
        if answers == [200] * RUNNING_MAX:
            return
    raise AssertionError(answers)


def test_a_body_that_is_too_large_is_413_and_noted(served: Served) -> None:
    token, _ = served.issuer.create("sender", ("append",))
    with served.client(token) as client:
        assert client.post("/v1/echo", content=b"x" * BODY_BYTES_MAX).json() == {"bytes": BODY_BYTES_MAX}
        answer = client.post("/v1/echo", content=b"x" * (BODY_BYTES_MAX + 1))
    assert answer.status_code == 413
    assert served.refusals()[-1]["code"] == "body-too-large"


def test_idle_connections_and_slow_ones_do_no_harm_and_are_closed_after_a_while(served: Served) -> None:
    """A thousand that say nothing, some that stop in the middle of their headers, some that were answered once."""
    token, _ = served.issuer.create("among them")
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(IDLE)]
        slow: list[socket.socket] = [stack.enter_context(shaken(served)) for _ in range(20)]
        for each in slow:
            each.sendall(b"GET /v1/slow HTTP/1.1\r\nHost: localhost\r\nX-A")
        client = stack.enter_context(served.client(token))
        for _ in range(30):
            assert client.get("/v1/slow?s=0").status_code == 200
        with served.client(token) as new:
            assert new.get("/v1/slow?s=0").status_code == 200, "new connections are taken too"
        deadline = time.monotonic() + HEAD_S_MAX + 10
        for each in (silent[0], silent[-1], *slow[:2]):
            each.settimeout(max(0.1, deadline - time.monotonic()))
            assert is_closed(each)


def shaken(served: Served) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", served.port))
    return served.trusting.wrap_socket(plain, server_hostname="localhost")


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends it, with or without a last word, before its time is over."""
    try:
        while connection.recv(1_000):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def stateside(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stateside", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )


def test_our_own_commands_trust_the_authority_that_the_environment_names(served: Served) -> None:
    token = served.issuer.create_operator("command")
    asked = ("get", "nothing/x", "--url", served.url)
    trusted = stateside(*asked, STATESIDE_TOKEN=token, SSL_CERT_FILE=str(served.authority))
    assert "nothing" in trusted.stderr and "certificate" not in trusted.stderr.lower()
    assert "certificate verify failed" in stateside(*asked, STATESIDE_TOKEN=token).stderr.lower()
    without = stateside(*asked, SSL_CERT_FILE=str(served.authority)).stderr
    assert "Set the environment variable STATESIDE_TOKEN" in without and "Authorization" not in without


def test_an_address_that_others_reach_is_refused_without_tokens_and_without_tls(served: Served, tmp_path: Path) -> None:
    serve = ("serve", "--dir", str(tmp_path), "--address", "0.0.0.0", "--port", "0")
    tls = ("--certificate", str(served.pem[0]), "--key", str(served.pem[1]))
    assert stateside(*serve, *tls).stderr.startswith("Error: Without tokens everybody")
    Issuer(Layout(tmp_path)).create_operator("ours")
    assert stateside(*serve).stderr.startswith("Error: Without TLS everybody")
    assert stateside(*serve, *tls[:2]).stderr.startswith("Error: TLS needs a certificate and its key")
    swapped = ("--certificate", str(served.authority), "--key", str(served.pem[1]))
    assert stateside(*serve, *swapped).stderr.startswith("Error: The certificate and its key cannot be used")


def test_insecure_listens_anywhere_as_it_was_told(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "server.log"
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(tmp_path), "--address", "0.0.0.0"]
    child = Child([*command, "--port", str(port), "--insecure", "--rate", "3", "--running", "9"], log)
    try:
        deadline = time.monotonic() + 90
        while "Serving" not in log.read_text():
            assert child.returncode() is None and time.monotonic() < deadline, child.tail()
            time.sleep(0.05)
        answers = [httpx.get(f"http://127.0.0.1:{port}/v1/views").status_code for _ in range(20)]
        assert answers[0] == 200 and 429 in answers, "an address has a rate too"
    finally:
        child.stop()
