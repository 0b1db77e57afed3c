"""Tokens: made once, kept as hashes, let in or not. The server's part is a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stateside.errors import AccessDenied, RequestInvalid, SetupError, TokenInvalid
from stateside.layout import Layout
from stateside.processes import Child, free_port
from stateside.serving.access.holder import OPERATOR, customer
from stateside.serving.access.tokens import TokenFile, check_address
from stateside.serving.clients import Client
from stateside.serving.web.route import Route


@pytest.fixture
def tokens(layout: Layout) -> TokenFile:
    return TokenFile(layout.tokens)


def test_without_a_file_everybody_is_an_operator(tokens: TokenFile) -> None:
    assert tokens.holder(None) == tokens.holder("Bearer whatever") == OPERATOR


def test_a_token_is_its_holder_s_and_any_other_text_nobody_s(tokens: TokenFile) -> None:
    ours, emmas = tokens.add("ours"), tokens.add("emma's page", "emma")
    assert tokens.holder(f"Bearer {ours}") == OPERATOR
    assert tokens.holder(f"bearer  {emmas}") == customer("emma's page", "emma")
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {ours}",
        ours,
        f"Bearer {ours}x",
        f"Bearer {ours[:-1]}",
        "Bearer ä",
    ):
        with pytest.raises(TokenInvalid):
            tokens.holder(header)


def test_the_file_has_no_token_in_it_and_only_its_owner_can_read_it(tokens: TokenFile, layout: Layout) -> None:
    text = tokens.add("ours")
    assert text not in layout.tokens.read_text()
    assert text.removeprefix("stateside_") not in layout.tokens.read_text()
    assert layout.tokens.stat().st_mode & 0o777 == 0o600
    layout.tokens.chmod(0o640)
    with pytest.raises(SetupError, match="chmod 600"):
        tokens.holder(f"Bearer {text}")


def test_a_removed_token_is_refused_at_once_and_access_does_not_become_open(tokens: TokenFile) -> None:
    text = tokens.add("ours")
    assert tokens.holder(f"Bearer {text}") == OPERATOR
    tokens.remove("ours")
    for header in (f"Bearer {text}", None):
        with pytest.raises(TokenInvalid):
            tokens.holder(header)


def test_a_server_that_began_with_tokens_lets_nobody_in_when_their_file_is_gone(layout: Layout) -> None:
    TokenFile(layout.tokens).add("ours")
    guarded = TokenFile(layout.tokens, guarded=True)
    layout.tokens.unlink()
    with pytest.raises(TokenInvalid):
        guarded.holder(None)


def test_a_name_is_taken_once_and_none_is_removed_twice(tokens: TokenFile) -> None:
    tokens.add("ours")
    with pytest.raises(RequestInvalid, match="already"):
        tokens.add("ours")
    with pytest.raises(RequestInvalid, match="no token 'other'"):
        tokens.remove("other")
    assert [token.name for token in tokens.tokens()] == ["ours"]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"version": 2, "tokens": []}', '{"version": 1, "tokens": [{"name": 1}]}']
)
def test_a_file_that_is_not_whole_lets_nobody_in(layout: Layout, content: str) -> None:
    TokenFile(layout.tokens).add("ours")
    layout.tokens.write_text(content)
    with pytest.raises(SetupError, match="cannot be read"):
        TokenFile(layout.tokens).holder(None)


def test_without_tokens_only_the_loopback_interface_is_listened_on(tokens: TokenFile) -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        check_address(address, tokens)
    for address in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        with pytest.raises(SetupError, match="token add"):
            check_address(address, tokens)
    tokens.add("ours")
    check_address("0.0.0.0", tokens)


async def _nothing(request: object) -> object:
    raise AssertionError


@pytest.mark.parametrize(
    ("reach", "allowed"),
    [("operator", []), ("customer", ["emma"]), ("own", ["emma", "ben"]), ("anyone", ["emma", "ben"])],
)
def test_a_customer_reaches_what_the_route_says(reach: str, allowed: list[str]) -> None:
    route = Route("/v1/customers/{customer}/bill", _nothing, reach=reach)  # type: ignore[arg-type]
    route.check(OPERATOR, ("emma",))
    for name in ("emma", "ben", "Emma", ""):
        if name in allowed or (reach in ("own", "anyone")):
            route.check(customer("a page", name), ("emma",))
        else:
            with pytest.raises(AccessDenied):
                route.check(customer("a page", name), ("emma",))


def stateside(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stateside", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def guarded(layout: Layout) -> Iterator[tuple[str, str, str, Path]]:
    """A server on a folder with an operator's and a customer's token: its URL, the tokens, its log."""
    layout.root.mkdir()
    ours = stateside("token", "add", "ours", "--dir", str(layout.root)).stdout.strip()
    emmas = stateside("token", "add", "emma", "--dir", str(layout.root), "--customer", "emma").stdout.strip()
    port, log = free_port(), layout.root.parent / "server.log"
    command = [sys.executable, "-m", "stateside", "--verbose", "serve", "--dir", str(layout.root), "--port", str(port)]
    child = Child([*command, "--address", "0.0.0.0"], log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert httpx.get(f"{url}/healthz").status_code == 200, "it needs no token"
                break
            except httpx.TransportError:
                assert child.returncode() is None and time.monotonic() < deadline, child.tail()
                time.sleep(0.1)
        yield url, ours, emmas, log
    finally:
        child.stop()


@pytest.mark.e2e
def test_a_server_with_tokens_answers_their_holders_only_and_logs_none(guarded: tuple[str, str, str, Path]) -> None:
    url, ours, emmas, log = guarded
    nobody = httpx.get(f"{url}/v1/views")
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"] == "Bearer"
    assert nobody.json()["type"] == "urn:stateside:problem:token-invalid"
    assert httpx.get(f"{url}/v1/nothing").status_code == 401, "not even what there is, is told"
    with Client(url, token=ours) as client:
        assert client.get("/v1/views") == {"views": []}
    with Client(url, token=emmas) as client:
        for path in ("/v1/views", "/v1/views/bill/rows/emma", "/v1/nothing"):
            with pytest.raises(AccessDenied):
                client.get(path)
    with Client(url, token="stateside_wrong") as client, pytest.raises(TokenInvalid):
        client.get("/v1/views")
    for token in (ours, emmas, "stateside_wrong"):
        assert token not in log.read_text()


def test_a_token_that_no_header_can_have_is_refused_without_being_shown() -> None:
    with pytest.raises(RequestInvalid) as caught:
        Client("http://127.0.0.1:1", token="secret\n")
    assert "secret" not in str(caught.value)


@pytest.mark.e2e
def test_the_commands_make_list_and_remove_tokens(tmp_path: Path) -> None:
    made = stateside("token", "add", "ours", "--dir", str(tmp_path))
    assert made.returncode == 0, made.stderr
    (listed,) = json.loads(stateside("token", "list", "--json", "--dir", str(tmp_path)).stdout)["tokens"]
    assert (listed["name"], listed["customer"]) == ("ours", None)
    assert stateside("token", "remove", "ours", "--dir", str(tmp_path)).returncode == 0
    again = stateside("token", "remove", "ours", "--dir", str(tmp_path))
    assert again.returncode == 1
    assert again.stderr.startswith("Error: There is no token 'ours'")
    assert stateside("token", "list", "--dir", str(tmp_path)).stderr == "There are no tokens.\n"


@pytest.mark.e2e
def test_an_address_that_others_reach_is_refused_without_tokens(tmp_path: Path) -> None:
    done = stateside("serve", "--dir", str(tmp_path), "--address", "0.0.0.0", "--port", "0")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Without tokens everybody")
