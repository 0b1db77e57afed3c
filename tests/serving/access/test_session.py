"""A browser's session: a cookie that counts like the header, for our own pages only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import AccessDenied, RequestInvalid, TokenInvalid
from stateside.core.layout import Layout
from stateside.serving.access.browser_session import COOKIE_CHARS_MAX, check_origin, presented, signed_in, signed_out
from stateside.serving.access.guard import Guard
from stateside.serving.access.tokens import Issuer
from tests.serving.access.test_guard import Scope

HOST = {"host": "127.0.0.1:8471"}


def cookie(token: str, **more: str) -> dict[str, str]:
    return {**HOST, "cookie": f"theme=dark; stateside-8471={token}", **more}


def test_a_cookie_counts_like_the_header_and_the_header_counts_first(layout: Layout) -> None:
    one, other = Issuer(layout).create_operator("one"), Issuer(layout).create_operator("other")
    guard = Guard.of(layout)
    with guard.visit(Scope(cookie(one))) as visit:
        assert visit.enter().name == "one"
    with guard.visit(Scope({**cookie(one), "authorization": f"Bearer {other}"})) as visit:
        assert visit.enter().name == "other"
    with guard.visit(Scope(cookie("forged.as.such"))) as visit, pytest.raises(TokenInvalid):
        visit.enter()


def test_a_revoked_token_ends_its_sessions(layout: Layout) -> None:
    issuer = Issuer(layout)
    guard, token = Guard.of(layout), issuer.create_operator("one")
    issuer.revoke("one")
    with guard.visit(Scope(cookie(token))) as visit, pytest.raises(TokenInvalid, match="revoked"):
        visit.enter()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_the_cookie_does_not_count_for_what_another_site_s_page_asks(layout: Layout, site: str) -> None:
    token = Issuer(layout).create_operator("one")
    with Guard.of(layout).visit(Scope(cookie(token) | {"sec-fetch-site": site})) as visit, pytest.raises(TokenInvalid):
        visit.enter()


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8471"},
        {"origin": "https://elsewhere.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
    ],
)
def test_what_changes_anything_is_refused_to_other_sites_pages_also_without_tokens(
    layout: Layout, headers: dict[str, str]
) -> None:
    with Guard.of(layout).visit(Scope(HOST | headers, method="POST")) as visit, pytest.raises(AccessDenied):
        visit.enter()
    check_origin("GET", HOST | headers)
    check_origin("POST", HOST | headers | {"authorization": "Bearer its.own.token"})


@pytest.mark.parametrize("host", [{}, {"host": ""}])
@pytest.mark.parametrize("origin", ["null", "", "http://", "://", "localhost"])
def test_an_origin_that_names_no_site_is_another_one_also_where_no_host_is_named(
    host: dict[str, str], origin: str
) -> None:
    with pytest.raises(AccessDenied):
        check_origin("POST", host | {"origin": origin})


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "same-origin"}, {"origin": "http://127.0.0.1:8471"}])
def test_our_own_pages_and_what_is_no_browser_may(headers: dict[str, str]) -> None:
    check_origin("POST", HOST | headers)
    assert presented(cookie("a.b.c") | headers) == "Bearer a.b.c"


def test_the_cookie_is_out_of_scripts_reach_and_goes_over_tls_only_where_there_is_tls() -> None:
    name, value = signed_in("a.b.c", HOST, secure=False, keep=False)
    assert (name, value) == ("set-cookie", "stateside-8471=a.b.c; Path=/; HttpOnly; SameSite=Strict")
    assert signed_in("a.b.c", {"host": "bills.example"}, secure=True, keep=True)[1] == (
        "stateside=a.b.c; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000; Secure"
    )
    behind_a_proxy = {"host": "bills.example", "x-forwarded-proto": "https"}
    assert signed_out(behind_a_proxy, secure=False)[1].endswith("Max-Age=0; Secure")
    with pytest.raises(RequestInvalid):
        signed_in("x" * (COOKIE_CHARS_MAX + 1), HOST, secure=False, keep=False)


def test_servers_on_other_ports_of_one_machine_have_cookies_of_their_own() -> None:
    assert presented({"host": "127.0.0.1:8472", "cookie": "stateside-8471=a.b.c"}) is None


@given(st.text(max_size=200))
def test_whatever_a_cookie_is_it_is_no_error(text: str) -> None:
    found = presented({**HOST, "cookie": text})
    assert found is None or found.startswith("Bearer ")
