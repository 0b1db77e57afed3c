"""Every route with every kind of token: who is let in, and what they see, with workers, TLS and shares of the keys.

The routes are those of the application itself, so that a new one is walked by itself: it has to say whom it lets in
(`Route.reach`), and this test what the names in its path stand for (`NAMES`) and what its body is (`BODIES`). What must
come out follows from what the route declares; and whatever is answered, a token of c1 sees nothing of another
customer, and no offset of the journal: not in the words of a job that failed either.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import ssl
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import trustme
from click.testing import CliRunner

from stateside.billing.pages import EXTENSION
from stateside.cli import main
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import Child, free_port
from stateside.journal import FileLog
from stateside.serving.access.principal import Principal
from stateside.serving.access.token_files import KeyFile
from stateside.serving.access.tokens import Claims, Issuer, holder_of
from stateside.serving.clients import Client
from stateside.serving.registry.announcer import Identity
from stateside.serving.server import Worker
from stateside.serving.web.route import Route
from stateside.views.heartbeat import Heartbeat
from tests.sizes import sized

pytestmark = pytest.mark.e2e

WRITTEN = Path(__file__).parents[1] / "compatibility" / "v0.1.0.tar.xz"

OWN, OTHER = "c1", "c2"
SECOND_US = 1_000_000


@dataclass(frozen=True)
class Token:
    """What a request has in its header, and whom that lets in: nobody if it is not valid."""

    name: str
    text: str | None
    holder: Principal | None = None


@dataclass(frozen=True)
class Ask:
    """A request, and whose data it asks for, if somebody's."""

    route: Route
    path: str
    whose: str | None = None
    body: Any = None
    parameters: dict[str, str] = field(default_factory=dict)
    accept: str = "application/json"


@dataclass(frozen=True)
class Place:
    """A folder with tokens of all kinds, and what is another customer's in it."""

    layout: Layout
    tokens: list[Token]
    routes: list[Route]
    numbers: dict[str, list[str]]  # of each customer's documents
    foreign: re.Pattern[str]

    def token(self, name: str) -> str:
        (found,) = [each.text for each in self.tokens if each.name == name]
        assert found is not None
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A copy of the folder that version 0.1.0 wrote: thirty customers' bills, with invoices, notes and dead letters."""
    folder = tmp_path_factory.mktemp("walked")
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(folder, filter="data")
    layout = Layout(folder / "billing")
    failed = Heartbeat(time.time_ns() // 1_000, None, "failed", why="The event at 0:4711 cannot be read")
    failed.save(layout.view("bill").heartbeat)
    numbers: dict[str, list[str]] = {}
    for document in documents(layout):
        numbers.setdefault(document["customer"], []).append(document["number"])
    assert numbers[OWN] and numbers[OTHER]
    foreign = {number for customer, found in numbers.items() if customer != OWN for number in found}
    foreign |= {event.id for event in FileLog(layout.journal).events() if event.entity == OTHER}
    others = r'"c(?!1")\d{1,2}"|^c(?!1,)\d{1,2},'  # a replica's name may look like a longer number
    routes = Worker(layout, os.getpid(), EXTENSION, identity=Identity(layout.root, "x", "http://x")).application()
    pattern = re.compile(f"{others}|{'|'.join(map(re.escape, sorted(foreign)))}", re.MULTILINE)
    return Place(layout, list(tokens(layout)), list(routes.routes), numbers, pattern)


def documents(layout: Layout) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    table = DeltaTable(str(layout.table("documents"))).to_pyarrow_table(columns=["customer", "number"])
    return list(table.to_pylist())


def tokens(layout: Layout) -> Iterator[Token]:
    """All kinds: none, those that are not valid, each role, and those that are scoped to one customer."""
    issuer = Issuer(layout)
    operator = issuer.create_operator("operator")
    key, now_us = KeyFile(layout.keys).read()[-1], time.time_ns() // 1_000

    def signed(holder: Principal, secret: bytes = key.secret, issued_s: int = 0, life_s: int = 600) -> str:
        claims = Claims(holder, "1", now_us + issued_s * SECOND_US, now_us // SECOND_US + issued_s + life_s)
        return jwt.encode(claims.payload(), secret, "HS256", headers={"kid": key.kid})

    everything = holder_of("forged", ("operator",), None, {})
    yield Token("none", None)
    yield Token("malformed", "stateside")
    yield Token("another key", signed(everything, b"x" * 32))
    yield Token("expired", signed(everything, issued_s=-900))
    yield Token("of a hundred years", signed(everything, life_s=100 * 365 * 86_400))
    yield Token("revoked", issuer.create_operator("revoked"))
    issuer.revoke("revoked")
    for name, text in [("operator", operator), *((role, issuer.create(role, (role,))[0]) for role in ROLES)]:
        yield Token(name, text, holder_of(name, (name,), None, {}))
    where = {"customer": OWN}
    text, _ = issuer.create("c1", ROLES, where=where, entities=[OWN], types=["usage"])
    yield Token("c1", text, holder_of("c1", ROLES, None, where))
    earlier = holder_of("c1 of an earlier version", ROLES, None, where)
    yield Token("c1 earlier", signed(earlier), earlier)
    elsewhere = holder_of("another view", ROLES, ["orders"], where)
    yield Token("another view", signed(elsewhere), elsewhere)


ROLES: tuple[Any, ...] = ("read", "sql", "append")
NAMES: dict[str, Any] = {  # what the names in paths stand for; of a customer's data, c1's and c2's
    "customer": {OWN: OWN, OTHER: OTHER},
    "key...": {OWN: OWN, OTHER: OTHER},
    "view": "bill",
    "by_and_key...": "period_end,plan,type",
    "period": "2026-01",
    "offset": "0",
    "rest...": "anything",
    "version": "0",
    "name": "app.js",
}
SQL = [
    "select * from bill",
    "select * from bill__by_period_end__plan__type",
    "select * from archive.documents",
    "select * from archive.dead_letters",
    f"select * from bill where customer = '{OTHER}'",
    f"explain analyze select * from archive.documents where customer = '{OTHER}'",
]
BODIES: dict[tuple[str, str], Any] = {  # whose data it is, and the body
    ("POST", "/v1/events"): [
        (who, {"events": [{"id": f"@{who}/{type_}", "entity": who, "type": type_}]})
        for who, type_ in itertools.product((OWN, OTHER), ("usage", "credit"))
    ],
    ("POST", "/v1/sql"): [(None, {"sql": text, "format": form}) for text in SQL for form in ("json", "csv")],
    ("POST", "/v1/session"): [(None, {"token": "nonsense"})],
    ("POST", "/v1/views/{view}/lookup"): [
        (who, {"keys": [[who, "2026-02-01T00:00:00Z", "call", "basic@1"]]}) for who in (OWN, OTHER)
    ],
}


def asks(place: Place, route: Route) -> Iterator[Ask]:
    """All that a route is asked."""
    names = [part[1:-1] for part in route.pattern.split("/") if part.startswith("{")]
    numbers = {who: place.numbers[who][0] for who in (OWN, OTHER)}
    known = NAMES | {"number": numbers}
    assert set(names) <= set(known), f"{route.pattern} is new: say in NAMES what {set(names) - set(known)} stand for"
    whose: list[str | None] = [OWN, OTHER] if any(isinstance(known[name], dict) for name in names) else [None]
    if route.body is not None:
        assert (route.method, route.pattern) in BODIES, f"{route.pattern} is new: say in BODIES what it takes"
    for who in whose:
        values = {name: known[name][who] if isinstance(known[name], dict) else known[name] for name in names}
        path = "/".join(values[part[1:-1]] if part.startswith("{") else part for part in route.pattern.split("/"))
        asked = Ask(route, path, who)
        for of, body in BODIES.get((route.method, route.pattern), [(who, None)]):
            yield replace(asked, body=body, whose=of)
        if any(parameter.name == "key" for parameter in route.parameters) and who is None:
            yield from (replace(asked, whose=of, parameters={"key": of}) for of in (OWN, OTHER))
        if "text/event-stream" in route.kinds:
            yield replace(asked, accept="text/event-stream")
        if any(parameter.name == "min_position" for parameter in route.parameters):
            yield replace(asked, parameters={"min_position": "0:999999999", "wait_ms": "0"})


def is_allowed(ask: Ask, holder: Principal | None) -> bool | None:
    """Whether the declaration lets this holder in; None if it depends on the data, of which only the own is seen."""
    reach = ask.route.reach
    if reach == "anyone":
        return True
    role = "read" if reach in ("customer", "own") else reach
    if holder is None or role not in holder.roles:
        return False
    if not holder.is_scoped:
        return True
    if holder.views is not None and reach in ("customer", "own"):
        return False
    if reach == "append":
        types = {event["type"] for event in ask.body["events"]}
        return holder.name == "c1" and ask.whose == OWN and types == {"usage"}
    if reach in ("customer", "own"):
        return ask.whose == OWN
    return None


@contextmanager
def serving(layout: Layout, *options: str, url: str = "http://127.0.0.1", verify: Any = True) -> Iterator[httpx.Client]:
    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)]
    child = Child([*command, "--rate", "100000", *options], layout.root.parent / f"{port}.log")
    client = httpx.Client(base_url=f"{url}:{port}", verify=verify, timeout=60)
    try:
        deadline = time.monotonic() + 90
        while not is_ready(client):
            assert child.returncode() is None and time.monotonic() < deadline, child.tail()
            time.sleep(0.05)
        yield client
    finally:
        client.close()
        child.stop()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def answered(client: httpx.Client, ask: Ask, token: Token) -> tuple[int, str]:
    """The status, and all that is told: headers and body; of a stream its first event that is whole."""
    headers = {"accept": ask.accept} | ({} if token.text is None else {"authorization": f"Bearer {token.text}"})
    request: dict[str, Any] = {"headers": headers, "params": ask.parameters}
    request |= {} if ask.body is None else {"json": ask.body}
    with client.stream(ask.route.method, ask.path, **request) as answer:
        told = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            for line in answer.iter_lines():
                told += f"{line}\n"
                if line.startswith("data: "):
                    break
        else:
            told += answer.read().decode("latin-1" if "pdf" in answer.headers.get("content-type", "") else "utf-8")
    return answer.status_code, told


PLAIN_POSITION = re.compile(
    r"(?<![\w:.~-])0:\d+"  # a position as text, in a stamp, a header, a receipt or a sentence
    r'|"(?:position|receipt|sealed_position|offset|end|source_end)"(?!: ?"~)'  # or a number or a column that has one
)


def check(place: Place, client: httpx.Client, ask: Ask, token: Token, elsewhere: bool) -> int:
    """Ask, and compare with what the declaration says, and with whose data there is; the status."""
    status, told = answered(client, ask, token)
    what = f"{token.name}: {ask.route.method} {ask.path} {ask.parameters} {ask.body}: {status} {told[:2000]}"
    allowed = is_allowed(ask, token.holder)
    assert status < 500 or '"urn:stateside:problem:not-fresh-enough"' in told, what
    if ask.route.reach != "anyone" and token.holder is None:
        assert status == 401, what
    elif allowed is False:  # whose an `own` one is shows only when the parameters are understood
        assert status == 403 or (ask.route.reach == "own" and "min_position" in ask.parameters and status == 400), what
    elif allowed is True and ask.path != "/v1/session":
        assert status not in (401, 403), what
        held = ask.whose is not None and not elsewhere and "min_position" not in ask.parameters
        assert status == 200 or not held or ask.route.reach not in ("customer", "own", "append"), what
    if token.holder is None or token.holder.is_scoped:
        found = place.foreign.search(told)
        assert found is None, f"{found[0]} is another's: {what}"
        if ask.route.reach != "anyone":
            found = PLAIN_POSITION.search(told)
            assert found is None, f"{found[0]} tells how many events there are: {what}"
    return status


FEW = ("none", "revoked", "operator", "c1")  # where all are walked elsewhere


def walk(place: Place, client: httpx.Client, *, few: bool = False, elsewhere: bool = False) -> dict[str, set[int]]:
    """All routes with all tokens, or a few of these; the statuses of each token."""
    tokens = [token for token in place.tokens if token.name in FEW or not few]
    statuses: dict[str, set[int]] = {}
    for route in place.routes:
        for ask, token in itertools.product(asks(place, route), tokens):
            statuses.setdefault(token.name, set()).add(check(place, client, ask, token, elsewhere))
    return statuses


def test_every_route_says_whom_it_lets_in() -> None:
    with pytest.raises(TypeError, match="reach"):
        Route("/v1/new", None, "a route that says nothing")  # type: ignore[call-arg, arg-type]
    for reach in ("everybody", ""):
        with pytest.raises(AssertionError, match="no reach"):
            Route("/v1/new", None, "", reach)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="its first name is no customer"):
        Route("/v1/new/{number}", None, "", "customer")  # type: ignore[arg-type]


def test_all_routes_with_all_tokens_on_two_workers_and_then_over_tls(place: Place, tmp_path: Path) -> None:
    with serving(place.layout, "--workers", "2") as client:
        statuses = walk(place, client)
        told = positions(client, place.token("c1"))
        check_pages(client, place.token("c1"))
        check_stream(client, place.token("c1"))
    assert {200, 403} <= statuses["c1"]
    assert statuses["none"] == statuses["of a hundred years"] == {200, 401, 404}
    ids = [event.id for event in FileLog(place.layout.journal).events() if event.id.startswith("@")]
    stored = {"@c1/usage", "@c1/receipt", "@c1/credit", "@c2/usage", "@c2/credit"}
    assert set(ids) == stored, "c1 appended its own usage; two with more rights the others"
    authority, pem = trustme.CA(), (tmp_path / "certificate.pem", tmp_path / "key.pem")
    issued = authority.issue_cert("localhost")
    pem[0].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(pem[1])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = ("--certificate", str(pem[0]), "--key", str(pem[1]))
    with serving(place.layout, *options, url="https://localhost", verify=context) as client:
        assert {200, 403} <= walk(place, client, few=sized(True, False))["c1"]
        assert positions(client, place.token("c1"), told) == told, "they are good after a restart too"


def positions(client: httpx.Client, token: str, before: dict[str, str] | None = None) -> dict[str, str]:
    """A scoped token's positions; those from before, or these, are good as a floor, and a receipt is waited for."""
    headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
    paths = [f"/v1/customers/{OWN}/bill", f"/v1/views/bill/rows/{OWN}", "/v1/views/bill/changes"]
    found = {path: client.get(path, headers=headers).json()["stamp"]["position"] for path in paths}
    event = {"id": "@c1/receipt", "entity": OWN, "type": "usage"}
    found["receipt"] = client.post("/v1/events", json={"events": [event]}, headers=headers).json()["receipt"]
    assert len(set(found.values())) == 2, "the stamp's, which is the same everywhere, and the receipt"
    stands, receipt = (before or found)[paths[0]], (before or found)["receipt"]
    for path in paths:
        assert client.get(path, params={"min_position": stands}, headers=headers).status_code == 200
    joined = str(Position.parse(stands).joined(Position.parse(receipt)))
    for asked in (receipt, joined):
        ahead = client.get(paths[0], params={"min_position": asked, "wait_ms": "0"}, headers=headers)
        assert (ahead.status_code, ahead.json()["type"]) == (503, "urn:stateside:problem:not-fresh-enough")
        assert f"it stands at position {stands}, {receipt} was asked for" in ahead.text
    return found


def check_pages(client: httpx.Client, token: str) -> None:
    """A scoped token pages through the events of a bill, by cursors that tell no offset."""
    path, headers = f"/v1/customers/{OWN}/bill/explain", {"authorization": f"Bearer {token}"}
    page = client.get(path, params={"limit": "3"}, headers=headers).json()
    events = page["events"]
    while page["cursor"] is not None:
        page = client.get(path, params={"limit": "3", "after": page["cursor"]}, headers=headers).json()
        events += page["events"]
    assert len({event["id"] for event in events}) == len(events) == page["events_behind"] > 3
    assert client.get(path, params={"after": "7"}, headers=headers).status_code == 400
    command = ["billing", "explain", OWN, "--limit", "3", "--after", events[2]["offset"], "--json"]
    done = CliRunner().invoke(main, [*command, "--url", str(client.base_url)], env={"STATESIDE_TOKEN": token})
    assert [each["id"] for each in json.loads(done.stdout)["events"]] == [each["id"] for each in events[3:6]]


def check_stream(client: httpx.Client, token: str) -> None:
    """A scoped token's stream has opaque positions in all kinds of events."""
    headers, kinds = {"authorization": f"Bearer {token}"}, set[str]()
    with client.stream("GET", "/v1/views/bill/changes", params={"pulse": "1"}, headers=headers) as answer:
        for line in answer.iter_lines():
            kinds |= {line} if line.startswith("event: ") else set()
            if line.startswith("data: "):
                assert json.loads(line[6:])["stamp"]["position"].startswith("~")
                assert PLAIN_POSITION.search(line) is None
            if kinds == {"event: snapshot", "event: pulse"}:
                return


def test_all_routes_with_all_tokens_on_shares_of_the_keys(place: Place, tmp_path: Path) -> None:
    """Each of two servers has some customers, c1 or c2 or both of them; the tokens are good at both."""
    places = [replace(place, layout=Layout(tmp_path / f"{number}")) for number in (1, 2)]
    with ExitStack() as stack:
        clients = []
        for number, each in enumerate(places, 1):
            shutil.copytree(place.layout.root, each.layout.root)
            shutil.rmtree(each.layout.view("bill").replica)
            options = ("--share", f"{number}/2", "--announce", str(tmp_path / "announced"), "--name", f"s{number}")
            clients.append(stack.enter_context(serving(each.layout, *options)))
        for each, client in zip(places, clients, strict=True):
            assert 403 in walk(each, client, few=sized(True, False), elsewhere=True)["c1"]
        with Client([str(client.base_url) for client in clients], token=place.token("c1")) as asking:
            answer = asking.rows("bill", OWN)
            assert answer.rows
            assert asking.rows("bill", OWN, min_position=answer.position).position == answer.position
